"""What is known of each operator, by id: its context, the actions on it, whether tools were offered it.

The kinds of operators that can be instrumented, and their arguments at the places of the schema.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from daydream.instrument import torch_private
from daydream.instrument.context import Actions, OpContext
from daydream.instrument.places import BACKWARD, Local
from daydream.instrument.tool import Tool

if TYPE_CHECKING:
    from daydream.instrument.backward import Entry


_CLAIMING = threading.Lock()


@dataclass(slots=True, eq=False)
class Record:
    """One operator, or the autograd node of one."""

    context: OpContext
    actions: Actions
    kind: Kind | None
    entry_record: Record | None  # in the backward pass, that of the forward operator
    at_mode: bool = False
    node: Record | None = None  # of a forward operator, that of its node
    open: bool = True  # no tool was offered it

    def claim(self) -> bool:
        """Return whether it has to be offered, which one thread is told once."""
        if not self.open:
            return False
        with _CLAIMING:
            first = self.open
            self.open = False
        return first


class Records:
    """All records by id, and the tools that are offered them."""

    def __init__(self, tools: list[Tool]) -> None:
        self.all: dict[str, Record] = {}
        self._callbacks = {
            (backward, late): [
                each.callback
                for tool in tools
                for each in tool.registrations
                if (each.backward, each.require_outputs) == (backward, late)
            ]
            for backward in (False, True)
            for late in (False, True)
        }

    @property
    def want_backward(self) -> bool:
        """Whether any tool looks at the backward pass."""
        return bool(self._callbacks[True, False] or self._callbacks[True, True])

    def clear(self) -> None:
        """Forget everything, so that all operators are analysed again."""
        self.all.clear()

    def add(
        self,
        op_id: str,
        kind: Kind,
        phase: str,
        layer: str,
        entry: Entry | None,
        *,
        at_mode: bool,
    ) -> Record:
        """Make the record of an operator that is met for the first time."""
        forward = None if entry is None else entry.forward
        facts = {} if forward is None else dict(forward.context)
        facts |= {
            "op": kind.op,
            "op_id": op_id,
            "type": kind.type,
            "namespace": str(kind.op.namespace),
            "layer": layer if entry is None else entry.layer,
            "phase": phase,
            "composite": kind.composite,
        }
        if entry is not None:
            facts |= {
                "backward_type": entry.name,
                "forward_id": forward and forward.context["op_id"],
            }
        context = OpContext(facts, Actions(), kind="operator" if entry is None else "inner")
        record = Record(context, context.actions, kind, forward, at_mode)
        return self.all.setdefault(op_id, record)

    def add_node(self, forward: Record, name: str) -> Record:
        """Make the record of a forward operator's autograd node; the actions on it are the operator's."""
        if forward.node is None:
            op_id = "backward/" + forward.context["op_id"].partition("/")[2]
            facts = dict(forward.context) | {
                "op": name,
                "op_id": op_id,
                "type": name,
                "namespace": "autograd",
                "phase": BACKWARD,
                "composite": False,
                "backward_type": name,
                "forward_id": forward.context["op_id"],
            }
            context = OpContext(facts, forward.actions, kind="node")
            node = Record(context, context.actions, None, forward)
            forward.node = self.all.setdefault(op_id, node)
        return forward.node

    def offer(
        self,
        local: Local,
        record: Record,
        *,
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...] | None = None,
        grad_outputs: tuple[Any, ...] | None = None,
    ) -> None:
        """Call the tools' callbacks with a context, before the operator has run or, with outputs, after."""
        context = record.context
        callbacks = self._callbacks[context["phase"] == BACKWARD, outputs is not None]
        if not callbacks:
            return
        import torch

        with (
            local.silent(),
            torch.no_grad(),
            context.holding(inputs, outputs, grad_outputs),
        ):
            for callback in callbacks:
                callback(context)

    def kinds_with_actions(self) -> set[Kind]:
        """Return the kinds of operators that must be overridden for the actions on them to run."""
        found: set[Kind] = set()
        for record in list(self.all.values()):
            if record.kind is None:
                continue
            if record.actions.on_operator or record.actions.on_node:
                found.add(record.kind)
                forward = record.entry_record
                if forward is not None and forward.kind is not None:
                    found.add(forward.kind)
        return found

    def forward_of_inner(self) -> set[str]:
        """Return the ids of forward operators within whose backward nodes operators have actions."""
        return {
            record.entry_record.context["op_id"]
            for record in list(self.all.values())
            if record.kind is not None
            and record.entry_record is not None
            and record.actions.on_operator
        }

    def at_mode(self) -> bool:
        """Return whether an operator that only a dispatch mode sees has actions."""
        return any(
            record.at_mode and record.actions.on_operator for record in list(self.all.values())
        )


@dataclass(eq=False)
class Kind:
    """One operator of torch, with what of its schema is needed."""

    op: Any
    composite: bool

    @cached_property
    def name(self) -> str:
        """The full name: `aten::add.Tensor`."""
        schema = torch_private.schema_of(self.op)
        return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)

    @cached_property
    def type(self) -> str:
        """The name without namespace and overload: `add`."""
        return str(torch_private.schema_of(self.op).name.partition("::")[2])

    @cached_property
    def writes(self) -> bool:
        """Whether it writes to an argument."""
        return bool(torch_private.schema_of(self.op).is_mutable)

    @cached_property
    def written(self) -> frozenset[int]:
        """The places of the arguments that it writes to."""
        arguments = torch_private.schema_of(self.op).arguments
        return frozenset(
            place
            for place, one in enumerate(arguments)
            if one.alias_info is not None and one.alias_info.is_write
        )

    @cached_property
    def is_view(self) -> bool:
        """Whether an output shares memory with an input that it does not write to."""
        returns = torch_private.schema_of(self.op).returns
        return not self.writes and any(one.alias_info is not None for one in returns)

    @cached_property
    def _arguments(self) -> tuple[list[tuple[str, Any]], int]:
        arguments = torch_private.schema_of(self.op).arguments
        default = [
            (one.name, one.default_value if one.has_default_value() else None) for one in arguments
        ]
        return default, sum(not one.kwarg_only for one in arguments)

    def at_places(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return all arguments in the order of the schema, defaults included."""
        rest = self._arguments[0][len(args) :]
        return [*args, *(kwargs.get(name, default) for name, default in rest)]

    def split(self, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in the order of the schema as positional ones and keywords."""
        names, positional = self._arguments
        return tuple(values[:positional]), {
            name: value
            for (name, _), value in zip(names[positional:], values[positional:], strict=True)
        }


_KNOWN: dict[str, Kind] = {}


def all_kinds() -> list[Kind]:
    """Return all kinds that pass the autograd layer; those of a custom operator once it is defined."""
    return [kind_of(op, composite=composite) for op, composite in torch_private.registered()]


def kind_of(op: Any, *, composite: bool = False) -> Kind:
    """Return the kind of one operator."""
    name = str(op)
    if name not in _KNOWN or _KNOWN[name].op is not op:
        _KNOWN[name] = Kind(op, composite)
    return _KNOWN[name]
