"""Inserted functions run: what they are given, what becomes of what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daydream.instrument.context import Action, Actions
from daydream.instrument.errors import InstrumentError
from daydream.instrument.gradients import straight_through, with_own_backward
from daydream.instrument.kinds import Kind
from daydream.instrument.opaque import opaque
from daydream.instrument.places import Local

Call = Callable[..., Any]


def call_inserted(local: Local, action: Action, values: Any) -> Any:
    """Call an inserted function with the values at its places; its own operators are not instrumented."""
    import torch

    given = _given(action, values)
    local.quiet += 1
    try:
        if action.grad:
            return action.func(*given, **action.kwargs)
        with torch.no_grad():
            return action.func(*given, **action.kwargs)
    finally:
        local.quiet -= 1


def _given(action: Action, values: Any) -> list[Any]:
    return list(values) if action.places is None else [values[place] for place in action.places]


def changed(local: Local, action: Action, values: list[Any]) -> dict[int, Any]:
    """Return what an inserted function makes of the values at its places; nothing if it returned None."""
    if local.tracing and not action.grad and tensors_in(_given(action, values)):
        return _changed_when_compiled(local, action, values)
    result = call_inserted(local, action, values)
    if result is None:
        return {}
    places = tuple(range(len(values))) if action.places is None else action.places
    if len(places) == 1:
        one = result[0] if isinstance(result, tuple) and len(result) == 1 else result
        return {places[0]: one}
    if not isinstance(result, (tuple, list)) or len(result) != len(places):
        raise InstrumentError(
            f"an inserted function must return {len(places)} values, one for each of its places, or None"
        )
    return dict(zip(places, result, strict=True))


def _changed_when_compiled(local: Local, action: Action, values: list[Any]) -> dict[int, Any]:
    import torch

    places = tuple(range(len(values))) if action.places is None else action.places
    local.quiet += 1
    try:
        with torch.no_grad():
            return dict(zip(places, opaque(action, _given(action, values), None), strict=True))
    finally:
        local.quiet -= 1


def run_operator(local: Local, kind: Kind, actions: Actions, call: Call, values: list[Any]) -> Any:
    """Run an operator with the actions on it; `values` are its arguments at the places of the schema."""
    for action in actions.before:
        for place, value in changed(local, action, values).items():
            if place in kind.written:
                _write(local, values[place], value, grad=action.grad)
            else:
                values[place] = value if action.grad else straight_through(values[place], value)
    out = (
        _replaced(local, kind, actions, call, values)
        if actions.replace
        else _own(local, kind, actions, call, values)
    )
    if not actions.after:
        return out
    several = isinstance(out, (tuple, list))
    outputs = list(out) if several else [out]
    for action in actions.after:
        for place, value in changed(local, action, outputs).items():
            if kind.is_view:
                raise InstrumentError(
                    f"{kind.type} returns a view, which an inserted function cannot exchange; "
                    "insert it before the operators that read the view"
                )
            if kind.writes:
                _write(local, outputs[place], value, grad=action.grad)
            else:
                outputs[place] = value if action.grad else straight_through(outputs[place], value)
    if not several:
        return outputs[0]
    return tuple(outputs) if isinstance(out, tuple) else outputs


def _own(local: Local, kind: Kind, actions: Actions, call: Call, values: list[Any]) -> Any:
    import torch

    args, kwargs = kind.split(values)
    action = actions.replace_backward
    tensors = tensors_in(values)
    if action is None or kind.writes or kind.is_view or not torch.is_grad_enabled():
        return call(*args, **kwargs)
    if not any(each.requires_grad for each in tensors):
        return call(*args, **kwargs)
    return with_own_backward(
        lambda: call(*args, **kwargs),
        lambda grads, count: own_gradients(local, action, grads, count, kind.type, tensors),
        tensors,
    )


def own_gradients(
    local: Local, action: Action, grads: Any, count: int, name: str, like: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the gradients that a replacement of a backward operator computes, one for each tensor input.

    `like` are tensors of their shapes, None for those without a gradient.
    """
    if local.tracing:
        return _gradients_when_compiled(local, action, grads, like)
    result = call_inserted(local, action, grads)
    found = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(found) != count:
        raise InstrumentError(
            f"a replacement of the backward operator of {name} returned {len(found)} gradients; it has "
            f"{count} tensors among its inputs. Return None for those without a gradient."
        )
    return found


def _gradients_when_compiled(
    local: Local, action: Action, grads: Any, like: Sequence[Any]
) -> tuple[Any, ...]:
    import torch

    local.quiet += 1
    try:
        with torch.no_grad():
            shaped = [one.detach() for one in like if one is not None]
            made = iter(opaque(action, _given(action, grads), shaped))
    finally:
        local.quiet -= 1
    return tuple(None if one is None else next(made) for one in like)


def _replaced(local: Local, kind: Kind, actions: Actions, call: Call, values: list[Any]) -> Any:
    import torch

    action = actions.replace
    assert action is not None  # noqa: S101 - the caller asked
    if local.tracing and not action.grad:
        return _replaced_when_compiled(local, kind, actions, call, values)
    value = call_inserted(local, action, values)
    written = next(iter(sorted(kind.written)), None)
    tensors = tensors_in(values)
    needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    if action.grad or not needs_grad:
        if written is None:
            return value
        _write(local, values[written], value, grad=action.grad)
        return values[written]
    out = _own(local, kind, actions, call, values)
    if written is not None:
        _write(local, out, value, grad=False)
        return out
    if isinstance(out, (tuple, list)):
        made = straight_through(list(out), list(value))
        return tuple(made) if isinstance(out, tuple) else made
    return straight_through(out, value)


def _replaced_when_compiled(local: Local, kind: Kind, actions: Actions, call: Call, values: list[Any]) -> Any:
    """Run the operator, whose result tells the shapes, and go on with what the replacement returns."""
    import torch

    action = actions.replace
    assert action is not None  # noqa: S101 - the caller asked
    given = _given(action, values)
    given = [one.clone() if kind.writes and isinstance(one, torch.Tensor) else one for one in given]
    out = _own(local, kind, actions, call, values)
    several = isinstance(out, (tuple, list))
    outputs = list(out) if several else [out]
    local.quiet += 1
    try:
        with torch.no_grad():
            made = opaque(action, given, [one.detach() for one in outputs])
    finally:
        local.quiet -= 1
    if kind.writes:
        _write(local, outputs[0], made[0], grad=False)
        return out
    made = [straight_through(one, other) for one, other in zip(outputs, made, strict=True)]
    return (tuple(made) if isinstance(out, tuple) else made) if several else made[0]


def _write(local: Local, target: Any, value: Any, *, grad: bool) -> None:
    """Write a value to a tensor that the operator writes to itself; autograd notices that it has changed."""
    import torch

    if value is target:
        return
    local.quiet += 1
    try:
        with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
            target.copy_(value)
    finally:
        local.quiet -= 1


def tensors_in(values: Any) -> list[Any]:
    """Return the tensors among values, those in lists included, in order."""
    import torch

    found: list[Any] = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += [one for one in each if isinstance(one, torch.Tensor)]
    return found
