"""Inserted functions in compiled code: one call each, which the compiler does not look into.

So they may do what they do in eager mode: keep what they see, decide by values, write to files. Those that
autograd differentiates (`grad=True`) are traced instead, and what else they do is done once, in compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

from daydream.instrument.context import Action, listed
from daydream.instrument.tool import InstrumentError

_NUMBERS = count()


@dataclass(frozen=True)
class Call:
    """An inserted function, what it is given besides tensors, and which tensors its results are like."""

    action: Action
    given: tuple[
        Any, ...
    ]  # a place among the tensors, a list of places, or what is no tensor as (value,)
    like: tuple[int, ...]
    observes: bool  # None means that all stays


_CALLS: dict[
    int, Call
] = {}  # by number; kept, as compiled code may run its backward pass any time later


def opaque(action: Action, given: Sequence[Any], like: Sequence[Any] | None) -> list[Any]:
    """Have compiled code call an inserted function, outside autograd.

    Args:
        action: the function.
        given: what it is given.
        like: tensors that its results are like, in shape, type and layout; `given` itself if None, and then
            a function that returns None leaves them as they are.

    Returns:
        as many tensors as `like` has.

    Raises:
        InstrumentError: something of it cannot be handed to compiled code.
    """
    import torch

    tensors: list[Any] = []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return len(tensors) - 1
        if isinstance(value, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in value):
            return [place(one) for one in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise InstrumentError(
                "an inserted function is given a size that compiled code leaves open"
            )
        return (value,)

    places = tuple(place(value) for value in given)
    if like is None:
        if not all(isinstance(one, int) for one in places):
            raise InstrumentError("an inserted function changes what is no tensor")
        likes = places
    else:
        likes = tuple(range(len(tensors), len(tensors) + len(like)))
        tensors += like
    number = next(_NUMBERS)
    _CALLS[number] = Call(action, places, likes, observes=like is None)
    return _operator()(tensors, number)


@lru_cache(maxsize=1)
def _operator() -> Any:
    import torch

    def call(values: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return _run(_CALLS[number], values)

    def fake(values: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return [torch.empty_like(values[place]) for place in _CALLS[number].like]

    schema = "(Tensor[] values, int number) -> Tensor[]"
    operator: Any = torch.library.custom_op(
        "daydream_instrument::call", call, mutates_args=(), schema=schema
    )
    operator.register_fake(fake)
    return operator


def _run(call: Call, values: list[Any]) -> list[Any]:
    import torch

    def value(place: Any) -> Any:
        if isinstance(place, int):
            return values[place]
        return place[0] if isinstance(place, tuple) else [value(one) for one in place]

    with torch.no_grad():
        result = call.action.func(*(value(place) for place in call.given), **call.action.kwargs)
        like = [values[place] for place in call.like]
        if result is None and call.observes:
            return [one.clone() for one in like]
        found = listed(result)
        if len(found) != len(like):
            raise InstrumentError(
                f"an inserted function returned {len(found)} values; {len(like)} are needed"
            )
        return [_as(made, one, values) for made, one in zip(found, like, strict=True)]


def _as(made: Any, like: Any, values: list[Any]) -> Any:
    """Return a tensor as compiled code expects it: of its own memory, in the layout that was foreseen."""
    import torch

    if made is None:
        return torch.zeros_like(like)
    if made.shape != like.shape:
        raise InstrumentError(
            f"an inserted function made {tuple(made.shape)} of {tuple(like.shape)}; outside autograd the "
            "shape must stay. Insert it with grad=True."
        )
    fresh = all(
        made.untyped_storage().data_ptr() != one.untyped_storage().data_ptr() for one in values
    )
    if fresh and made.dtype == like.dtype and made.stride() == torch.empty_like(like).stride():
        return made
    return torch.empty_like(like).copy_(made)
