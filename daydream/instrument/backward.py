"""The backward pass: autograd nodes, told by what is kept on them which forward operator they are of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daydream.instrument.actions import changed, own_gradients, tensors_in
from daydream.instrument.context import Action
from daydream.instrument.places import SWITCH, Local, Places
from daydream.instrument.records import Kind, Record, Records

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
