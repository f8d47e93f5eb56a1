"""What an instrumentation tool is: callbacks for operators, and the tools that it depends on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError

if TYPE_CHECKING:
    from daydream.instrument.context import OpContext

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
