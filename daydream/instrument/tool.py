"""What an instrumentation tool is: callbacks for operators; what it is shown of them, the actions it orders."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daydream.errors import DaydreamError

Callback = Callable[["OpContext"], Any]


class InstrumentError(DaydreamError):
    """A tool, an action or a place of an operator makes no sense."""


@dataclass(frozen=True)
class Registration:
    """A callback, and when it is called."""

    callback: Callback
    backward: bool
    require_outputs: bool


class Tool:
    """Callbacks that look at the operators of a running model, each operator once, and order actions on them.

    Use it as it is, or derive a class that keeps its state in attributes; `super().__init__()` is not needed.
    Concept: Amanda (ASPLOS 2024), section 4.

        tool = daydream.instrument.Tool()
        tool.add_inst_for_op(lambda context: print(context["op_id"], context["type"]))
        with daydream.instrument.apply(tool):
            train_step()
    """

    def add_inst_for_op(
        self,
        callback: Callback,
        *,
        backward: bool = False,
        require_outputs: bool = False,
    ) -> None:
        """Have a function called once for each operator, with the operator's context.

        Args:
            callback: takes one argument, an `OpContext`.
            backward: for the autograd nodes of the backward pass (type `AddmmBackward0`) and the operators
                that they run (type `mm`), instead of operators of the forward pass and the optimizer.
            require_outputs: after the operator has run, when its outputs are there, instead of before.

        Raises:
            InstrumentError: what is given cannot be called.
        """
        if not callable(callback):
            raise InstrumentError(
                f"add_inst_for_op was given {callback!r}; it needs a function of one argument, the context"
            )
        self.registrations.append(Registration(callback, bool(backward), bool(require_outputs)))

    def depends_on(self, *tools: Tool) -> None:
        """Have the callbacks and the inserted functions of other tools run before those of this tool.

        They are applied with this tool, and need not be given to `apply`.
        """
        for each in tools:
            if not isinstance(each, Tool):
                raise InstrumentError(
                    f"depends_on was given {each!r}; it needs tools, made as MyTool()"
                )
        self.dependencies.extend(tools)

    @property
    def registrations(self) -> list[Registration]:
        """The callbacks, in the order they were added."""
        return self.__dict__.setdefault("_registrations", [])

    @property
    def dependencies(self) -> list[Tool]:
        """The tools that this one depends on."""
        return self.__dict__.setdefault("_dependencies", [])


def in_order(tools: Iterable[Tool]) -> list[Tool]:
    """Return tools and all that they depend on, each once, what is depended on first.

    Raises:
        InstrumentError: something is not a tool, or tools depend on each other in a circle.
    """
    ordered: list[Tool] = []
    done: set[int] = set()
    path: list[Tool] = []

    def visit(tool: Tool) -> None:
        if id(tool) in done:
            return
        if any(tool is each for each in path):
            first = next(number for number, each in enumerate(path) if each is tool)
            names = [type(each).__name__ for each in (*path[first:], tool)]
            raise InstrumentError(
                f"tools depend on each other in a circle: {' -> '.join(names)}; nothing was installed. "
                "Take one depends_on away."
            )
        path.append(tool)
        for each in tool.dependencies:
            visit(each)
        path.pop()
        done.add(id(tool))
        ordered.append(tool)

    for tool in tools:
        if not isinstance(tool, Tool):
            hint = ", made as MyTool()" if isinstance(tool, type) else ""
            raise InstrumentError(f"apply was given {tool!r}; it needs tools{hint}")
        visit(tool)
    return ordered


def tools_of(made: Any, name: str, options: Mapping[str, Any]) -> list[Tool]:
    """Return the tools that an optimization's file has as `tool`: a tool, or what makes one or several.

    What makes them is called with those options that it takes.

    Raises:
        InstrumentError: it is not a tool, and does not return one.
    """
    if callable(made) and not isinstance(made, Tool):
        parameters = inspect.signature(made).parameters
        every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        made = made(
            **{name: value for name, value in options.items() if every or name in parameters}
        )
    tools = list(made) if isinstance(made, (list, tuple)) else [made]
    if not tools or not all(isinstance(each, Tool) for each in tools):
        raise InstrumentError(
            f"`tool` of {name} gives {made!r}; it must be a daydream.instrument.Tool, "
            "or a class or function that returns one or several"
        )
    return tools


Func = Callable[..., Any]


@dataclass(frozen=True)
class Action:
    """A function to run at an operator, the places that it is given, and whether autograd sees it."""

    func: Func
    places: tuple[int, ...] | None  # None: all
    grad: bool
    kwargs: dict[str, Any]


@dataclass
class Actions:
    """The actions on one operator, in the order in which they run."""

    before: list[Action] = field(default_factory=list)
    after: list[Action] = field(default_factory=list)
    replace: Action | None = None
    before_backward: list[Action] = field(default_factory=list)
    after_backward: list[Action] = field(default_factory=list)
    replace_backward: Action | None = None

    @property
    def on_operator(self) -> bool:
        """Whether the operator itself is changed."""
        return bool(self.before or self.after or self.replace)

    @property
    def on_node(self) -> bool:
        """Whether the operator's backward node is changed."""
        return bool(self.before_backward or self.after_backward or self.replace_backward)


class OpContext(dict[str, Any]):
    """An operator: facts as entries, tensors and actions as methods. Tools may add entries.

    | entry | what |
    |---|---|
    | `op` | the operator, a `torch._ops.OpOverload`; the node's name for an autograd node |
    | `op_id` | the same in every iteration: phase, layer, operator, ordinal |
    | `type` | the name without namespace and overload: `addmm`; of a node as torch has it: `AddmmBackward0` |
    | `namespace` | the library that it is of: `aten`, or that of a custom operator; `autograd` for a node |
    | `layer` | the path of the module that ran it; empty outside all modules |
    | `phase` | `forward`, `backward` or `optimizer` |
    | `composite` | whether it only calls others, which are offered too: `linear` runs `t` and `addmm` |
    | `backward_type` | in the backward pass, the node that is running |
    | `forward_id` | in the backward pass, the id of the forward operator; None if unknown |

    A context in the backward pass begins with what tools added to that of the forward operator.
    """

    def __init__(self, facts: dict[str, Any], actions: Actions, *, kind: str = "operator") -> None:
        super().__init__(facts)
        self.actions = actions
        self._kind = kind  # operator, node, or inner: an operator that a node runs
        self._held: dict[str, tuple[Any, ...] | None] = {}  # tensors, while callbacks run
        self._backward: OpContext | None = None
        self._node_known = False
        self._first = True  # a node that no tool was offered before it ran

    # What is there ---------------------------------------------------------------------------------

    def get_inputs(self) -> tuple[Any, ...]:
        """Return the inputs at their places in the operator's schema, while a callback runs.

        Of an autograd node they are the gradients of the outputs.
        """
        return self._there("inputs", "while a callback runs")

    def get_outputs(self) -> tuple[Any, ...]:
        """Return the outputs, while a callback with `require_outputs=True` runs.

        Of an autograd node they are the gradients of the inputs.
        """
        return self._there("outputs", "in callbacks with require_outputs=True")

    def get_grad_outputs(self) -> tuple[Any, ...]:
        """Return the gradients that came into the node, while a callback with `backward=True` runs."""
        return self._there("gradients of outputs", "in callbacks with backward=True")

    def get_grad_inputs(self) -> tuple[Any, ...]:
        """Return the gradients that the node computed, one for each input, once it has run."""
        return self._there(
            "gradients of inputs",
            "for nodes, in callbacks with backward=True, require_outputs=True",
        )

    def get_backward_op(self) -> OpContext | None:
        """Return the context of the autograd node of a forward operator, or None if it has no gradient.

        Its `type` is the node's name. Known once the operator has run.
        """
        if self._kind != "operator":
            return self if self._kind == "node" else self._backward
        if not self._node_known:
            raise InstrumentError(
                f"{self['type']} has not run yet, so its backward operator is unknown; "
                "register the callback with require_outputs=True"
            )
        return self._backward

    @contextlib.contextmanager
    def holding(
        self,
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...] | None,
        grad_outputs: tuple[Any, ...] | None,
    ) -> Iterator[None]:
        """Give callbacks the tensors, and keep none of them afterwards."""
        self._held = {
            "inputs": inputs,
            "outputs": outputs,
            "gradients of outputs": grad_outputs,
            "gradients of inputs": outputs if self._kind == "node" else None,
        }
        try:
            yield
        finally:
            self._held = {}

    # What to do ------------------------------------------------------------------------------------

    def insert_before_op(
        self,
        func: Func,
        inputs: Sequence[int] | None = None,
        *,
        grad: bool = False,
        **kwargs: Any,
    ) -> None:
        """Run a function before each call of the operator.

        Args:
            func: is given the inputs at `inputs`, then `kwargs`. What it returns replaces them: one value,
                or as many as there are places. None changes nothing.
            inputs: places in the operator's schema, from 0; the first if left out.
            grad: run it inside autograd. Otherwise the operator computes, forward and backward, with what
                it returned, and the gradient of that goes to the original input unchanged (straight through).
            **kwargs: given to `func` each time.
        """
        self._not_after_run("insert_before_op")
        self.actions.before.append(self._action(func, inputs, "inputs", kwargs, grad=grad))

    def insert_after_op(
        self,
        func: Func,
        outputs: Sequence[int] | None = None,
        *,
        grad: bool = False,
        **kwargs: Any,
    ) -> None:
        """Run a function after each call of the operator, on its outputs; else as `insert_before_op`."""
        if self._kind == "node":
            raise InstrumentError(
                f"insert_after_op is for operators; {self['type']} is an autograd node. "
                "Use insert_after_backward_op."
            )
        self.actions.after.append(self._action(func, outputs, "outputs", kwargs, grad=grad))

    def replace_op(
        self,
        func: Func,
        inputs: Sequence[int] | None = None,
        *,
        grad: bool = False,
        **kwargs: Any,
    ) -> None:
        """Compute the outputs with a function instead. The identity, `lambda x, *_: x`, removes an operator.

        Args:
            func: is given the inputs at `inputs`, then `kwargs`; returns what the operator would.
            inputs: places in the operator's schema; all inputs of the call if left out.
            grad: differentiate the function; the operator does not run at all. Otherwise the backward pass
                stays the operator's own, which has to run too where a gradient is asked for.
            **kwargs: given to `func` each time.
        """
        self._not_after_run("replace_op")
        if self.actions.replace is not None:
            raise InstrumentError(
                f"{self['op_id']} is replaced already; two tools cannot replace one operator"
            )
        self.actions.replace = self._action(func, inputs, "inputs", kwargs, grad=grad, first=None)

    def insert_before_backward_op(
        self,
        func: Func,
        grad_outputs: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Run a function on the gradients that come into the operator's backward node."""
        node = self._for_node("insert_before_backward_op")
        node.before_backward.append(
            self._action(func, grad_outputs, "gradients of outputs", kwargs)
        )

    def insert_after_backward_op(
        self,
        func: Func,
        grad_inputs: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Run a function on the gradients that the operator's backward node computed, one for each input."""
        node = self._for_node("insert_after_backward_op", late=True)
        node.after_backward.append(self._action(func, grad_inputs, "gradients of inputs", kwargs))

    def replace_backward_op(
        self,
        func: Func,
        grad_outputs: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compute the gradients of the inputs with a function instead.

        Args:
            func: is given the gradients of the outputs (those at `grad_outputs`; all if left out), then
                `kwargs`; returns one gradient for each tensor among the inputs, None for none.
            grad_outputs: places among the gradients of the outputs.
            **kwargs: given to `func` each time.
        """
        node = self._for_node("replace_backward_op")
        if node.replace_backward is not None:
            raise InstrumentError(f"the backward operator of {self['op_id']} is replaced already")
        node.replace_backward = self._action(
            func, grad_outputs, "gradients of outputs", kwargs, first=None
        )

    # -----------------------------------------------------------------------------------------------

    def _action(
        self,
        func: Func,
        places: Sequence[int] | None,
        of: str,
        kwargs: dict[str, Any],
        *,
        grad: bool = False,
        first: tuple[int, ...] | None = (0,),
    ) -> Action:
        """Return an action; a place that the call does not have is an error here, not in the model's step."""
        if not callable(func):
            raise InstrumentError(f"an action was given {func!r}; it needs a function")
        if isinstance(places, int):
            places = (places,)
        values = self._held.get(of)
        chosen = first if places is None else tuple(places)
        for place in chosen or ():
            if isinstance(place, bool) or not isinstance(place, int) or place < 0:
                raise InstrumentError(
                    f"{place!r} is not a place; places count from 0 in the operator's schema"
                )
            if values is not None and place >= len(values):
                raise InstrumentError(
                    f"place {place} was asked for; this operator has places 0 to {len(values) - 1}"
                )
        return Action(func, chosen, grad, kwargs)

    def _there(self, what: str, when: str) -> tuple[Any, ...]:
        values = self._held.get(what)
        if values is None:
            raise InstrumentError(
                f"the {what} of {self['op_id']} are not there now; they are {when}"
            )
        return values

    def _not_after_run(self, action: str) -> None:
        if self._kind == "node":
            raise InstrumentError(
                f"{action} is for operators; {self['type']} is an autograd node. "
                f"Use {action.replace('_op', '_backward_op')}."
            )
        self._not_late(action)

    def _not_late(self, action: str) -> None:
        if self._held.get("outputs") is not None:
            raise InstrumentError(
                f"{self['op_id']} has run already; call {action} in a callback without require_outputs"
            )

    def _for_node(self, action: str, *, late: bool = False) -> Actions:
        if self._kind == "inner":
            raise InstrumentError(
                f"{self['op_id']} is an operator within {self['backward_type']}, which is running already; "
                f"call {action} when the node itself or its forward operator is offered"
            )
        if self.get("composite") and action != "insert_before_backward_op":
            raise InstrumentError(
                f"{self['type']} is made of other operators and has no backward operator of its own; "
                f"call {action} for those, or replace_op(..., grad=True)"
            )
        if self._kind == "node" and not late:
            self._not_late(action)
        return self.actions


def listed(out: Any) -> list[Any]:
    """Return what an operator or a function returned as a list."""
    return list(out) if isinstance(out, (tuple, list)) else [out]
