"""Values that autograd takes in without seeing them made: straight through, or by another backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from daydream.instrument.tool import InstrumentError


def straight_through(original: Any, value: Any) -> Any:
    """Return `value` as autograd's continuation of `original`: its gradient goes there unchanged.

    Lists of tensors are treated one by one. What needs no gradient is returned as it is.

    Raises:
        InstrumentError: the shapes differ, so that no gradient can go through.
    """
    import torch

    if isinstance(original, (list, tuple)) and isinstance(value, (list, tuple)):
        if len(original) != len(value):
            raise InstrumentError(f"{len(original)} tensors were given and {len(value)} returned")
        return [straight_through(one, other) for one, other in zip(original, value, strict=True)]
    if value is original or not isinstance(value, torch.Tensor):
        return value
    if not isinstance(original, torch.Tensor) or not (
        torch.is_grad_enabled() and original.requires_grad
    ):
        return value
    if original.shape != value.shape:
        raise InstrumentError(
            f"an inserted function made {tuple(value.shape)} of {tuple(original.shape)}; outside autograd "
            "the shape must stay. Insert it with grad=True."
        )
    return _functions()[0].apply(original, [value])


def with_own_backward(
    run: Callable[[], Any], backward: Callable[..., Any], tensors: list[Any]
) -> Any:
    """Return what `run` returns, with `backward` as its gradient: from those of outputs to one a tensor."""
    return _functions()[1].apply(run, backward, *tensors)


@lru_cache(maxsize=1)
def _functions() -> tuple[Any, Any]:
    import torch

    class StraightThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, original: Any, holder: list[Any]) -> Any:  # noqa: ARG004
            return holder[0].data  # a tensor of its own, neither an input nor a view

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # noqa: ARG004
            return grad, None

    class OwnBackward(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, run: Callable[[], Any], backward: Callable[..., Any], *tensors: Any
        ) -> Any:
            ctx.own, ctx.count = backward, len(tensors)
            return run()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None, None, *ctx.own(grads, ctx.count)

    return StraightThrough, OwnBackward
