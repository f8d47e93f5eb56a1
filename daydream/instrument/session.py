"""Tools applied: analysis of each operator once, then only what they ordered.

While operators are analysed, all of them are overridden at torch's autograd layer; afterwards those of the
kinds that have actions. Above that layer an inserted function can decide what autograd sees. What does not
pass it (operators that make tensors, `out=` variants, inference mode) is seen by a dispatch mode meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from daydream.instrument import torch_private
from daydream.instrument.actions import COMPILED, Entry, Nodes, run_operator, tensors_in
from daydream.instrument.compiled import CompiledFunctions
from daydream.instrument.places import (
    BACKWARD,
    SWITCH,
    Kind,
    Places,
    Record,
    Records,
    all_kinds,
    kind_of,
)
from daydream.instrument.tool import Actions, InstrumentError, Tool, in_order, listed

Call = Callable[..., Any]
OTHERS = {name.rstrip(":") for name in torch_private.NOT_OPERATORS}


class Session:
    """Tools while they are applied: `contexts` by id, and whether operators are being analysed."""

    def __init__(self, tools: tuple[Tool, ...], *, cache: bool = True) -> None:
        self.tools = in_order(tools)
        self.cache = cache
        self.records = Records(self.tools)
        self.places = Places(self._begin, self._iteration)
        self.nodes = Nodes(self.records, self.places)
        self.analysing = False
        self.iterations = 0  # that have ended
        self._overrides: dict[Kind, list[torch_private.Override]] = {}
        self._known: set[Any] = set()  # layers, models and optimizers that were analysed
        self._unfinished: set[int] = (
            set()
        )  # threads that have met something new and not ended the iteration
        self._owner = threading.get_ident()
        self._mode: Any = None
        self.compiled = CompiledFunctions(self.places)
        self._lock = threading.RLock()

    @property
    def contexts(self) -> dict[str, Any]:
        """The contexts of all operators and nodes met so far, by id, in the order they were met."""
        return {each.context["op_id"]: each.context for each in self.records.all.values()}

    def changed_operators(self) -> list[str]:
        """Return the forward operators that tools act on, or within whose backward pass: `aten::gelu`."""
        found = set()
        for context in self.contexts.values():
            if context.actions.on_operator or context.actions.on_node:
                forward = self.contexts.get(context.get("forward_id") or "", context)
                found.add(f"{forward['namespace']}::{forward['type']}")
        return sorted(found)

    # On and off ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin: hooks on modules and optimizers, and analysis."""
        try:
            self.compiled.install()
            self.places.install(torch_private.current_node())
            self.nodes.active = True
            self._analyse()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """End: put back all that was there."""
        self.nodes.active = False
        self._override([])
        self._leave_mode()
        self.compiled.remove()
        self.places.remove()
        self.analysing = False

    def _analyse(self) -> None:
        """Override all operators."""
        with self._lock:
            if self.analysing:
                return
            self.analysing = self.nodes.analysing = self.compiled.eager = True
            self._override(all_kinds())
            if self._mode is None and threading.get_ident() == self._owner:
                self._mode = torch_private.dispatch_mode(self._at_mode)
                self._mode.__enter__()

    def _override(self, kinds: list[Kind]) -> None:
        """Override some kinds and no others; those that stay are overridden throughout, for other threads."""
        wanted = set(kinds)
        for kind in [each for each in self._overrides if each not in wanted]:
            for override in self._overrides.pop(kind):
                override.remove()
        keys = torch_private.dispatch_keys()
        for kind in kinds:
            if kind in self._overrides:
                continue
            found = [(key, torch_private.kernel_of(kind.op, key)) for key in keys]
            self._overrides[kind] = [
                torch_private.Override(kind.op, key, self._override_of(kind, kernel))
                for key, kernel in found
                if kernel is not None
            ]

    def _leave_mode(self) -> None:
        """Leave the dispatch mode; if another was entered since, it stays until that one has ended."""
        if threading.get_ident() != self._owner:
            return  # a mode belongs to a thread; that one leaves it when its next iteration begins
        if self._mode is not None and torch_private.mode_on_top() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    # Iterations ------------------------------------------------------------------------------------

    def _begin(self, key: Any) -> None:
        if key not in self._known:
            with self._lock:
                self._known.add(key)
                self._unfinished.add(threading.get_ident())
                self._analyse()

    def _iteration(self) -> None:
        self.iterations += 1
        if not self.cache:
            self.records.clear()
            return
        with self._lock:
            self._unfinished.discard(threading.get_ident())
            others = self._unfinished & {each.ident for each in threading.enumerate()}
            if self.analysing and not others:
                # from now on only the kinds that have actions are overridden
                with self._lock:
                    self.analysing = self.nodes.analysing = False
                    self.nodes.settle()
                    needed = self.records.kinds_with_actions()
                    self._override([kind for kind in self._overrides if kind in needed])
                    if not self.records.at_mode():
                        self._leave_mode()
                    self.compiled.eager = self._mode is not None
            elif not self.analysing and not self.records.at_mode():
                self._leave_mode()

    # Operators -------------------------------------------------------------------------------------

    def _override_of(self, kind: Kind, kernel: Call) -> Call:
        local = self.places.local
        switch = SWITCH
        run = self._run

        def override(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if local.quiet or switch.off:
                return kernel(keys, *args, **kwargs)
            return run(kind, lambda *a, **k: kernel(keys, *a, **k), args, kwargs)

        return override

    def _at_mode(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        local = self.places.local
        if (
            local.quiet
            or SWITCH.off
            or local.running is op
            or not self.nodes.active
            or op.namespace in OTHERS
        ):
            return op(*args, **kwargs)
        return self._run(kind_of(op), op, args, kwargs, at_mode=True)

    def _run(
        self,
        kind: Kind,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        at_mode: bool = False,
    ) -> Any:
        places = self.places
        phase, frame, node = places.phase()
        entry = None
        if phase is BACKWARD:
            entry = self.nodes.entry_of(node)
            if entry.name == COMPILED:
                return call(*args, **kwargs)
            op_id = entry.next(kind.name)
        else:
            op_id = f"{phase}/{frame.layer}/{kind.name}/{frame.next(kind.name)}"
        record = self.records.all.get(op_id)
        if record is None:
            if torch_private.is_tracing(tensors_in(args)):
                return call(*args, **kwargs)
            record = self.records.add(op_id, kind, phase, frame.layer, entry, at_mode=at_mode)
        if not (record.open or record.actions.on_operator or self.nodes.watches(record)):
            return self._running(kind, call)(*args, **kwargs)
        return self._instrumented(kind, record, call, args, kwargs, entry)

    def _instrumented(
        self,
        kind: Kind,
        record: Record,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        entry: Entry | None,
    ) -> Any:
        local = self.places.local
        context = record.context
        values = kind.at_places(args, kwargs)
        grads = None if entry is None else entry.grad_outputs
        first = record.claim()
        if first:
            self.nodes.discover(values, context["layer"])
            self.records.offer(local, record, inputs=tuple(values), grad_outputs=grads)
        own = self._watched(kind, record, self._running(kind, call))
        if record.actions.on_operator or record.actions.replace_backward:
            out = run_operator(local, kind, record.actions, own, values)
        else:
            out = own(*args, **kwargs)
        if first:
            outputs = tuple(listed(out))
            count = len(record.actions.after)
            self.records.offer(
                local, record, inputs=tuple(values), outputs=outputs, grad_outputs=grads
            )
            late = Actions(after=record.actions.after[count:])  # inserted while it was offered
            if late.after:
                out = run_operator(local, kind, late, lambda *_, **__: out, values)
        return out

    def _watched(self, kind: Kind, record: Record, call: Call) -> Call:
        """Return a call of the operator after which its backward node is known."""
        if record.context["phase"] == BACKWARD or not self.nodes.watches(record):
            return call

        def watched(*args: Any, **kwargs: Any) -> Any:
            out = call(*args, **kwargs)
            self.nodes.mark(kind, record, out)
            return out

        return watched

    def _running(self, kind: Kind, call: Call) -> Call:
        """Return a call of an operator's own kernel, which the dispatch mode then leaves alone."""
        if kind.composite or self._mode is None:
            return call
        local = self.places.local

        def running(*args: Any, **kwargs: Any) -> Any:
            before = local.running
            local.running = kind.op
            try:
                return call(*args, **kwargs)
            finally:
                local.running = before

        return running


_APPLYING = threading.Lock()


@contextlib.contextmanager
def apply(*tools: Tool, cache: bool = True) -> Iterator[Session]:
    """Apply tools to every operator that runs in this process, until the block is left.

    Args:
        *tools: and those that they depend on. What is depended on runs first.
        cache: analyse each operator once. Without it each is analysed in every iteration anew.

    Yields:
        The session; its `contexts` are those of all operators met, by id.

    Raises:
        InstrumentError: tools depend on each other in a circle, others are applied already, or this torch is
            too old. Nothing is installed then.
    """
    torch_private.check_version()
    session = Session(tools, cache=cache)
    if not _APPLYING.acquire(blocking=False):
        raise InstrumentError("tools are applied already; give all of them to one apply(...)")
    try:
        session.install()
        try:
            yield session
        finally:
            session.remove()
    finally:
        _APPLYING.release()
