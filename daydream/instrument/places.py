"""Where an operator runs (layer, phase, iteration), and what is known of it by id: context and actions.

Hooks on modules and optimizers, the switch of a thread, and the kinds of operators that can be instrumented, with
their arguments at the places of the schema.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from daydream.collect.live.layer_hooks import named_modules, unwrap
from daydream.collect.live.torch_compiler import leave_uncompiled
from daydream.instrument import torch_private
from daydream.instrument.tool import Actions, OpContext, Tool

if TYPE_CHECKING:
    from daydream.instrument.actions import Entry


class Switch(threading.local):
    """Whether tools are switched off in this thread."""

    off = False


SWITCH = Switch()


def disabled() -> AbstractContextManager[None]:
    """Run operators of this thread as if no tool were applied; they are not counted either."""
    return _switched(off=True)


def enabled() -> AbstractContextManager[None]:
    """Have tools see the operators of this thread again, within `disabled()`."""
    return _switched(off=False)


@contextmanager
def _switched(*, off: bool) -> Iterator[None]:
    before = SWITCH.off
    SWITCH.off = off
    try:
        yield
    finally:
        SWITCH.off = before


_LEFT: list[Any] = []  # handles of hooks that went within a step: off, and taken away later


class OptimizerHooks:
    """A hook before and one behind each step. Within a step they are put on later, by `catch_up`."""

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._on = False
        self._pending = False
        self._handles: list[Any] = []

        def before_step(*args: Any) -> None:
            if self._on:
                before(*args)

        def after_step(*args: Any) -> None:
            if self._on:
                after(*args)

        self.functions = before_step, after_step

    def install(self) -> None:
        """Put the hooks on, or within a step wait for `catch_up`."""
        self._on = self._pending = True
        self.catch_up()

    def catch_up(self) -> None:
        """Put the hooks on if that had to wait; costs nothing otherwise."""
        if not self._pending or _in_step():
            return
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        _take_away()
        before, after = self.functions
        self._handles = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]
        self._pending = False

    def remove(self) -> None:
        """Put the hooks off; within a step they stay, idle, until others are put on or off."""
        self._on = self._pending = False
        _LEFT.extend(self._handles)
        self._handles = []
        if not _in_step():
            _take_away()


def _take_away() -> None:
    while _LEFT:
        _LEFT.pop().remove()


def _in_step() -> bool:
    """Return whether this thread runs a step of an optimizer, in which torch walks through the hooks."""
    import torch.optim.optimizer as home

    frame: Any = sys._getframe(1)  # noqa: SLF001 - the only way to look at who called
    while frame is not None:
        if frame.f_code.co_filename == home.__file__:
            return True
        frame = frame.f_back
    return False


FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"


@dataclass(slots=True, eq=False)
class Frame:
    """One call of a module: its path, and how often each kind of operator ran in it so far."""

    layer: str
    module: Any
    phase: str = FORWARD
    within_backward: bool = False  # a backward node was running when it was entered
    counts: dict[str, int] = field(default_factory=dict)

    def next(self, name: str) -> int:
        """Return the ordinal of a kind's call, and count it."""
        ordinal = self.counts.get(name, 0)
        self.counts[name] = ordinal + 1
        return ordinal


class Local(threading.local):
    """What belongs to a thread: the calls of modules that it is in, and what is switched off in it."""

    def __init__(self) -> None:
        self.frames = [Frame("", None)]
        self.modules = 0  # frames of modules among them
        self.quiet = 0  # inserted code runs, or compiled code, or a compiler
        self.tracing = False  # a compiler traces a graph
        self.running: Any = None  # the operator whose own kernel runs
        self.entered: set[Any] = set()  # models and optimizers, in this iteration
        self.roots = 0  # models among them
        self.of_nodes: dict[str, dict[str, int]] = {}  # counts in nodes that belong to no operator

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Run what is none of the model's operators: tools are not offered it."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1


class Places:
    """Hooks on all modules and optimizers; they know the layer and the phase, and where iterations end.

    `on_begin(key)` is called for each layer, outermost module or optimizer that is entered, `on_iteration()`
    before an iteration begins that is not the first.
    """

    def __init__(
        self, on_begin: Callable[[Any], object], on_iteration: Callable[[], object]
    ) -> None:
        self.local = Local()
        self.paths: dict[int, str] = {}
        self.parameters: dict[int, str] = {}
        self._held: list[Any] = []  # so that an id stays one module's
        self._on_begin = on_begin
        self._on_iteration = on_iteration
        self._met: set[int] = set()  # modules that were called
        self._handles: list[Any] = []
        self._optimizers: OptimizerHooks | None = None
        self._adding = threading.Lock()
        self._node: Callable[[], Any] = lambda: None

    def install(self, current_node: Callable[[], Any]) -> None:
        """Put the hooks on."""
        import torch
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
        )

        self._node = current_node
        compiling = torch.compiler.is_compiling
        grads = torch.is_grad_enabled
        local = self.local
        paths = self.paths
        met = self._met
        enter = self._enter

        def before(module: Any, _args: Any) -> None:
            if compiling() or local.quiet or local.tracing:
                return
            within = current_node() is not None
            if not local.modules and self._optimizers is not None:
                self._optimizers.catch_up()
            layer = paths.get(id(module))
            if layer is None or not local.modules or id(module) not in met:
                layer = enter(module, outermost=not local.modules, again=within, grads=grads())
            local.frames.append(Frame(layer, module, within_backward=within))
            local.modules += 1

        def after(module: Any, _args: Any, _output: Any) -> None:
            if compiling():
                return
            frames = local.frames
            if not any(frame.module is module for frame in frames):
                return  # it was entered before the hooks were on
            while frames[-1].module is not module:  # an exception left inner ones
                self._pop()
            self._pop()

        leave_uncompiled(before, after)
        self._handles = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        ]

        def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not compiling():
                self._begin(("optimizer", id(optimizer)), optimizer)
                local.frames.append(Frame("", optimizer, OPTIMIZER))

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not compiling() and local.frames[-1].module is optimizer:
                local.frames.pop()
                if not local.roots:
                    self._forget_counts()

        hooks = OptimizerHooks(before_step, after_step)
        leave_uncompiled(before_step, after_step, *hooks.functions)
        hooks.install()
        self._optimizers = hooks

    def remove(self) -> None:
        """Take the hooks off, and let go of the modules."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._held = []
        if self._optimizers is not None:
            self._optimizers.remove()

    def phase(self) -> tuple[str, Frame, Any]:
        """Return the phase, the call of a module that is running, and the backward node if it is one's."""
        frame = self.local.frames[-1]
        node = self._node()
        if node is not None and not frame.within_backward:
            return BACKWARD, frame, node
        return frame.phase, frame, None

    def counts_of(self, node: str) -> dict[str, int]:
        """Return the counts of operators in nodes of a name that belong to no operator, in this iteration."""
        return self.local.of_nodes.setdefault(node, {})

    def _pop(self) -> None:
        if self.local.frames.pop().phase != OPTIMIZER:
            self.local.modules -= 1

    def _enter(self, module: Any, *, outermost: bool, again: bool, grads: bool) -> str:
        """Return a module's path, worked out when it is first met; note where an iteration begins."""
        with self._adding:
            if id(module) not in self.paths:
                self._name(module)
            self._met.add(id(module))
        self._on_begin(("layer", id(module)))
        if outermost and not again:
            self._begin(("root", id(module)), module, grads=grads)
        return self.paths[id(module)]

    def _begin(self, key: Any, held: Any, *, grads: bool = True) -> None:
        local = self.local
        if key in local.entered:
            local.entered.clear()
            self._forget_counts()
            local.roots = 0
            self._on_iteration()
        local.entered.add(key)
        local.roots += key[0] == "root"
        self._held.append(held) if not any(held is each for each in self._held) else None
        self._on_begin((*key, grads))

    def _forget_counts(self) -> None:
        """Count from 0 again outside all modules."""
        self.local.frames[0].counts.clear()
        self.local.of_nodes.clear()

    def _name(self, module: Any) -> None:
        """Give paths to a module and all below it; those of a second model begin with its class."""
        from torch.nn.modules.loss import _Loss

        inner = unwrap(module)
        model = type(inner).__name__
        is_loss = isinstance(inner, _Loss)
        taken = set(self.paths.values())
        several = any(path for path in taken if path != "loss")
        prefix = f"{model}." if several else ""
        number = 1
        while not is_loss and (prefix + model in taken or f"{prefix}".rstrip(".") in taken - {""}):
            number += 1
            prefix = f"{model}_{number}."
        for path, part in named_modules(module):
            name = "loss" if is_loss else prefix + path if path else (prefix.rstrip(".") or model)
            self.paths.setdefault(id(part), name)
            self._held.append(part)
            for key, parameter in part.named_parameters(recurse=False):
                full = f"{prefix}{path}.{key}" if path else prefix + key
                self.parameters.setdefault(id(parameter), full)


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
    """Return what the schema of one operator says of its arguments, made once."""
    name = str(op)
    if name not in _KNOWN or _KNOWN[name].op is not op:
        _KNOWN[name] = Kind(op, composite)
    return _KNOWN[name]
