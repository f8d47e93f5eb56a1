"""Tools that make the changes of `pruning`, `quantize`, `rematerialize` and `replace` in a running model.

torch is imported where a tool works, so that the predictions need none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from daydream.instrument import OpContext, Tool

LARGEST = {"int8": 127}  # steps on each side of zero


class OnOperators(Tool):
    """Has `change(context)` called for forward operators whose name and layer match."""

    def __init__(self, op: str, layer: str | None) -> None:
        self._op, self._layer = re.compile(op).search, layer
        self.add_inst_for_op(self._offered)

    def change(self, context: OpContext) -> None:
        """Order what is done to one operator."""
        raise NotImplementedError

    def _offered(self, context: OpContext) -> None:
        if context["phase"] != "forward" or not self._op(f"{context['namespace']}::{context['type']}"):
            return
        if self._layer is None or fnmatchcase(context["layer"], self._layer):
            self.change(context)


class Masked(OnOperators):
    """Multiplies weights of linear layers by masks, made once: the largest values, or two of every four."""

    def __init__(self, zeros: float | None, layer: str | None) -> None:
        super().__init__(r"^aten::linear$", layer)
        self._zeros = zeros

    def change(self, context: OpContext) -> None:
        """Make the mask of a layer's weight and order its use."""
        import torch

        weight = context.get_inputs()[1]
        size = weight.abs()
        if self._zeros is None:
            if weight.shape[-1] % 4:
                return
            fours = size.reshape(-1, 4)
            mask = (
                torch.zeros_like(fours).scatter_(1, fours.topk(2, dim=1).indices, 1.0).reshape(weight.shape)
            )
        else:
            count = int(size.numel() * self._zeros)
            mask = torch.ones_like(size).flatten()
            mask[size.flatten().argsort()[:count]] = 0.0
            mask = mask.reshape(weight.shape)
        context.insert_before_op(_product, inputs=[1], mask=mask)


class FakeQuantized(OnOperators):
    """Rounds weights, and inputs, of linear layers to steps of their largest value; they stay floats."""

    def __init__(self, dtype: str, operands: str, scaling: str, layer: str | None) -> None:
        super().__init__(r"^aten::linear$", layer)
        self._largest, self._static = LARGEST[dtype], scaling == "static"
        self._places = [0, 1] if operands == "both" else [1]

    def change(self, context: OpContext) -> None:
        """Order the rounding of one layer's operands; static scales are those of this first call."""
        given = context.get_inputs()
        scales = [self._scale(given[place]) for place in self._places] if self._static else None
        context.insert_before_op(self._round, inputs=self._places, scales=scales)

    def _scale(self, values: Any) -> float:
        return max(float(values.abs().max()) / self._largest, 1e-12)

    def _round(self, *operands: Any, scales: list[float] | None) -> tuple[Any, ...]:
        import torch

        scales = scales or [self._scale(each) for each in operands]
        ends = -self._largest - 1, self._largest
        return tuple(
            torch.fake_quantize_per_tensor_affine(each, scale, 0, *ends)
            for each, scale in zip(operands, scales, strict=True)
        )


class Rematerialized(OnOperators):
    """Runs operators again in the backward pass instead of keeping what they made."""

    def change(self, context: OpContext) -> None:
        """Order a checkpoint around one operator."""
        context.replace_op(self._again, grad=True, op=context["op"])

    def _again(self, *inputs: Any, op: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        schema = op._schema  # noqa: SLF001 - torch has no public name for it
        names = [one.name for one in schema.arguments if one.kwarg_only]
        count = len(inputs) - len(names)
        call = partial(op, **dict(zip(names, inputs[count:], strict=True)))
        return checkpoint(call, *inputs[:count], use_reentrant=False)


class Replaced(OnOperators):
    """Puts another function in the place of operators."""

    def __init__(self, op: str, layer: str | None, by: str) -> None:
        super().__init__(op, layer)
        self._by = by

    def change(self, context: OpContext) -> None:
        """Order the replacement of one operator."""
        places = [0, 1, 2] if self._by == "rms_norm" else [0]
        context.replace_op(_function(self._by), inputs=places, grad=True)


def _product(weight: Any, *, mask: Any) -> Any:
    return weight * mask


def _function(name: str) -> Callable[..., Any]:
    from torch.nn import functional

    if name == "identity":
        return lambda value: value
    found: Callable[..., Any] = getattr(functional, name)
    return found
