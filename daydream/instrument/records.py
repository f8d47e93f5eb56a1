"""What is known of each operator, by id: its context, the actions on it, whether tools were offered it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from daydream.instrument.context import Actions, OpContext
from daydream.instrument.kinds import Kind
from daydream.instrument.places import BACKWARD, Local
from daydream.instrument.tool import Tool

if TYPE_CHECKING:
    from daydream.instrument.backward import Entry

_CLAIMING = threading.Lock()


class Record:
    """One operator, or the autograd node of one."""

    __slots__ = ("actions", "at_mode", "context", "entry_record", "kind", "node", "open")

    def __init__(
        self,
        context: OpContext,
        kind: Kind | None,
        forward: Record | None,
        *,
        at_mode: bool,
    ) -> None:
        self.context = context
        self.actions = context.actions
        self.kind = kind
        self.entry_record = forward  # in the backward pass, that of the forward operator
        self.node: Record | None = None  # of a forward operator, that of its node
        self.open = True  # no tool was offered it
        self.at_mode = at_mode

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
        return self.all.setdefault(op_id, Record(context, kind, forward, at_mode=at_mode))

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
            forward.node = self.all.setdefault(op_id, Record(context, None, forward, at_mode=False))
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
