"""Inserted functions run: what they are given, what becomes of what they return, and what autograd sees.

And the backward pass: what is kept on autograd nodes tells which forward operator they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from daydream.instrument.compiled import opaque
from daydream.instrument.places import SWITCH, Kind, Local, Places, Record, Records
from daydream.instrument.tool import Action, Actions, InstrumentError, listed


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
    run: Callable[[], Any],
    backward: Callable[..., Any],
    tensors: list[Any],
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
            ctx: Any,
            run: Callable[[], Any],
            backward: Callable[..., Any],
            *tensors: Any,
        ) -> Any:
            ctx.own = backward
            ctx.count = len(tensors)
            return run()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None, None, *ctx.own(grads, ctx.count)

    return StraightThrough, OwnBackward


Call = Callable[..., Any]


def call_inserted(local: Local, action: Action, values: Any) -> Any:
    """Call an inserted function with the values at its places; its own operators are not instrumented."""
    import torch

    with local.silent(), torch.set_grad_enabled(action.grad and torch.is_grad_enabled()):
        return action.func(*_given(action, values), **action.kwargs)


def _given(action: Action, values: Any) -> list[Any]:
    return list(values) if action.places is None else [values[place] for place in action.places]


def _when_compiled(
    local: Local,
    action: Action,
    given: list[Any],
    like: list[Any] | None,
) -> list[Any]:
    """Have compiled code call an inserted function; `like` are tensors of the shapes of its results."""
    import torch

    with local.silent(), torch.no_grad():
        return opaque(action, given, None if like is None else [one.detach() for one in like])


def changed(local: Local, action: Action, values: list[Any]) -> dict[int, Any]:
    """Return what an inserted function makes of the values at its places; nothing if it returned None."""
    places = tuple(range(len(values))) if action.places is None else action.places
    given = _given(action, values)
    if local.tracing and not action.grad and tensors_in(given):
        return dict(zip(places, _when_compiled(local, action, given, None), strict=True))
    result = call_inserted(local, action, values)
    if result is None:
        return {}
    if len(places) == 1:
        one = result[0] if isinstance(result, tuple) and len(result) == 1 else result
        return {places[0]: one}
    if not isinstance(result, (tuple, list)) or len(result) != len(places):
        raise InstrumentError(
            f"an inserted function must return {len(places)} values, one for each of its places, or None"
        )
    return dict(zip(places, result, strict=True))


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
    outputs = listed(out)
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
    return _as_in(out, outputs)


def _as_in(out: Any, outputs: list[Any]) -> Any:
    """Return outputs as one value, a tuple or a list, as the operator returned them."""
    if not isinstance(out, (tuple, list)):
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
    local: Local,
    action: Action,
    grads: Any,
    count: int,
    name: str,
    like: Sequence[Any],
) -> tuple[Any, ...]:
    """Return the gradients that a replacement of a backward operator computes, one for each tensor input.

    `like` are tensors of their shapes, None for those without a gradient.
    """
    if local.tracing:
        shaped = [one for one in like if one is not None]
        made = iter(_when_compiled(local, action, _given(action, grads), shaped))
        return tuple(None if one is None else next(made) for one in like)
    result = call_inserted(local, action, grads)
    found = tuple(listed(result))
    if len(found) != count:
        raise InstrumentError(
            f"a replacement of the backward operator of {name} returned {len(found)} gradients; it has "
            f"{count} tensors among its inputs. Return None for those without a gradient."
        )
    return found


def _replaced(local: Local, kind: Kind, actions: Actions, call: Call, values: list[Any]) -> Any:
    import torch

    action = actions.replace
    assert action is not None  # noqa: S101 - the caller asked
    if local.tracing and not action.grad:  # the operator runs, as its result tells the shapes
        given = _given(action, values)
        if kind.writes:
            given = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
        out = _own(local, kind, actions, call, values)
        outputs = listed(out)
        made = _when_compiled(local, action, given, outputs)
        if not kind.writes:
            return _as_in(out, straight_through(outputs, made))
        _write(local, outputs[0], made[0], grad=False)
        return out
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
    return _as_in(out, straight_through(listed(out), listed(value)))


def _write(local: Local, target: Any, value: Any, *, grad: bool) -> None:
    """Write a value to a tensor that the operator writes to itself; autograd notices that it has changed."""
    import torch

    if value is target:
        return
    with local.silent(), torch.set_grad_enabled(grad and torch.is_grad_enabled()):
        target.copy_(value)


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


KEY = "daydream.instrument"  # in a node's metadata
COMPILED = "CompiledFunctionBackward"  # the node of compiled code, which has its actions within


def name_of(node: Any) -> str:
    """Return the name of an autograd node without its C++ namespace."""
    return str(node.name()).rpartition("::")[2]


@dataclass(slots=True, eq=False)
class Entry:
    """One autograd node of one iteration: its forward operator, and how often operators ran in it."""

    owner: Any
    name: str
    layer: str
    key: str
    forward: Record | None
    counts: dict[str, int] = field(default_factory=dict)
    grad_outputs: tuple[Any, ...] | None = None

    def next(self, name: str) -> str:
        """Return the id of an operator that the node runs now, and count it."""
        ordinal = self.counts.get(name, 0)
        self.counts[name] = ordinal + 1
        return f"backward/{self.key}/{name}/{ordinal}"


class Nodes:
    """Finds and marks the nodes of forward operators, and runs what tools ordered on them."""

    def __init__(self, records: Records, places: Places) -> None:
        self.records = records
        self.places = places
        self.active = False
        self.analysing = False
        self._inner: set[str] = set()

    def settle(self) -> None:
        """Note which forward operators' nodes run operators that have actions."""
        self._inner = self.records.forward_of_inner()

    def watches(self, record: Record) -> bool:
        """Return whether the node of a forward operator must be marked."""
        return self.analysing or record.actions.on_node or record.context["op_id"] in self._inner

    def mark(self, kind: Kind, record: Record, out: Any) -> None:
        """Find the node that an operator's outputs have got, keep on it whose it is, and hook it."""
        context = record.context
        node = next((each.grad_fn for each in tensors_in([out]) if each.grad_fn is not None), None)
        if node is None:
            context._node_known = True  # noqa: SLF001 - the context belongs to this package
            return
        kept = node.metadata.get(KEY)
        mine = kept is None or kept.owner is not self or kept.forward is None
        if kind.composite or not mine:
            if kept is not None and kept.forward is not None and kept.forward.node is not None:
                context._backward = kept.forward.node.context  # noqa: SLF001
            context._node_known = True  # noqa: SLF001
            if kind.composite and record.actions.before_backward:
                entry = Entry(self, name_of(node), context["layer"], "", record)
                node.register_prehook(lambda grads: self._before(entry, None, grads))
            return
        of_node = self.records.add_node(record, name_of(node))
        context._backward, context._node_known = of_node.context, True  # noqa: SLF001
        key = context["op_id"].partition("/")[2]
        entry = node.metadata[KEY] = Entry(self, name_of(node), context["layer"], key, record)
        if self.records.want_backward or record.actions.on_node:
            node.register_prehook(lambda grads: self._before(entry, of_node, grads))
            node.register_hook(lambda made, grads: self._after(entry, of_node, made, grads))

    def discover(self, values: list[Any], layer: str) -> None:
        """Note the layer of nodes that no operator made, such as those of `torch.autograd.Function`."""
        for each in tensors_in(values):
            node = each.grad_fn
            if node is not None and KEY not in node.metadata:
                node.metadata[KEY] = self._unknown(node, layer)

    def entry_of(self, node: Any) -> Entry:
        """Return what is known of a node that runs."""
        entry = node.metadata.get(KEY)
        if entry is None or entry.owner is not self:
            variable = getattr(node, "variable", None)
            layer = "" if variable is None else self.places.parameters.get(id(variable), "")
            entry = node.metadata[KEY] = self._unknown(node, layer)
        return entry

    def _unknown(self, node: Any, layer: str) -> Entry:
        """Return an entry that counts, over all nodes of the name in this iteration."""
        name = name_of(node)
        parameter = hasattr(node, "variable")
        entry = Entry(self, name, layer, f"{layer if parameter else ''}/{name}", None)
        if not parameter:
            entry.counts = self.places.counts_of(name)
        return entry

    def _before(
        self,
        entry: Entry,
        record: Record | None,
        grads: tuple[Any, ...],
    ) -> tuple[Any, ...] | None:
        entry.counts.clear()
        local = self.places.local
        if not self._on(local):
            return None
        if record is not None and record.context._first:  # noqa: SLF001
            record.context._first = False  # noqa: SLF001
            self.records.offer(local, record, inputs=grads, grad_outputs=grads)
        ordered = entry.forward.actions.before_backward if entry.forward else []
        made = _exchanged(local, ordered, grads)
        entry.grad_outputs = made if self.analysing else None
        return made

    def _after(
        self,
        entry: Entry,
        record: Record,
        made: tuple[Any, ...],
        grads: tuple[Any, ...],
    ) -> tuple[Any, ...] | None:
        local = self.places.local
        entry.grad_outputs = None
        if not self._on(local):
            return None
        own = record.actions.replace_backward
        if own is not None and entry.name != "OwnBackwardBackward":
            made = own_gradients(local, own, grads, len(made), entry.name, made)
        if record.claim():
            self.records.offer(local, record, inputs=grads, outputs=made, grad_outputs=grads)
        return _exchanged(local, record.actions.after_backward, made)

    def _on(self, local: Local) -> bool:
        return self.active and not local.quiet and not SWITCH.off


def _exchanged(local: Local, ordered: list[Action], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return gradients with what inserted functions return in their places."""
    values = list(grads)
    for action in ordered:
        for place, value in changed(local, action, values).items():
            values[place] = value
    return tuple(values)
