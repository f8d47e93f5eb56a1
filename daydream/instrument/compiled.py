"""Compiled functions: compiled anew with the actions of tools, and as they were after that.

While operators are analysed, compiled functions run their Python code. Then each is compiled once more by
its own backend, from the same graph, in which marks say which layer the operators that follow are of. As the
backend traces the graph, operators pass the dispatcher, where those with actions are changed as in eager
mode, forward and backward; what comes out is compiled. A backend that does not trace runs the marked graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daydream.instrument import torch_private
from daydream.instrument.places import Frame, Places

Call = Callable[..., Any]


class CompiledFunctions:
    """What becomes of compiled functions while tools are applied.

    Attributes:
        eager: they run their Python code.
        notes: a sentence for each graph that was not compiled with the actions, and why.
    """

    def __init__(self, places: Places) -> None:
        self.eager = True
        self.notes: list[str] = []
        self._places = places
        self._known: dict[int, tuple[Any, Any]] = {}  # callbacks of the compiler, theirs and ours
        self._restore: Callable[[], None] | None = None

    def install(self) -> None:
        """Begin to see what is compiled."""
        self._restore = torch_private.on_compiled_call(self._callback)

    def remove(self) -> None:
        """Have compiled functions run what they were compiled to before."""
        if self._restore is not None:
            self._restore()
            self._restore = None
            self._known.clear()

    def _callback(self, theirs: Any) -> Any:
        """Return what compiles a function in the place of what does now; None has it run uncompiled."""
        if self.eager:
            return None
        if id(theirs) not in self._known:
            ours = torch_private.with_backend(theirs, self._backend, self._compiling)
            self._known[id(theirs)] = theirs, ours
        return self._known[id(theirs)][1]

    def _compiling(self, compile_: Call, *args: Any, **kwargs: Any) -> Any:
        """Compile a function; what the compiler runs on the way is none of the model's operators."""
        with self._places.local.silent():
            return compile_(*args, **kwargs)

    def _backend(self, theirs: Call, graph: Any, inputs: Any) -> Call:
        """Return what a backend makes of a graph with the actions, or the graph, run operator by operator."""
        local = self._places.local
        marks = Marks(self._places)
        marks.put(graph)
        quiet = local.quiet
        local.quiet = 0
        local.tracing = True
        frames = local.frames
        base = frames[-1]
        try:
            made = theirs(graph, inputs)
        except Exception as error:  # noqa: BLE001 - anything may be in a backend's way, or in a function's
            self.notes.append(
                "A compiled graph runs operator by operator while tools are applied: "
                f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            )
            made = None
        finally:
            frames[-1] = base
            local.quiet = quiet
            local.tracing = False
        if made is None or not marks.traced:
            return graph.forward if made is None else made

        def run(*args: Any, **kwargs: Any) -> Any:
            with local.silent():
                return made(*args, **kwargs)

        return torch_private.called_as(made, run)


class Marks:
    """Calls in a graph that say which call of which module the operators behind them are of."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._base: Frame = places.local.frames[-1]
        self._start = dict(self._base.counts)
        self._frames: dict[tuple[str, ...], Frame] = {}
        self.traced = False

    def put(self, graph: Any) -> None:
        """Put the marks in."""
        import torch

        def begin() -> None:
            self._begin()

        def enter(*stack: str) -> None:
            self._enter(stack)

        for each in (begin, enter):
            torch.fx.node.has_side_effect(each)
        before: tuple[str, ...] | None = None
        for node in list(graph.graph.nodes):
            if node.op in ("placeholder", "get_attr"):
                continue
            stack = () if node.op == "output" else torch_private.module_stack(node)
            with graph.graph.inserting_before(node):
                if before is None:
                    graph.graph.call_function(begin, ())
                if stack != (before or ()):
                    graph.graph.call_function(enter, stack)
            before = stack
        graph.recompile()

    def _begin(self) -> None:
        local = self._places.local
        self._frames.clear()
        if local.tracing:  # a compiler may trace a graph several times in one call
            self.traced = True
            self._base.counts = dict(self._start)
        else:
            self._base = local.frames[-1]

    def _enter(self, stack: tuple[str, ...]) -> None:
        frames = self._places.local.frames
        layer = self._layer(stack)
        if layer is None or (layer == self._base.layer and len(stack) == 1):
            frames[-1] = self._base
            return
        if stack not in self._frames:
            self._frames[stack] = Frame(
                layer,
                self._base.module,
                self._base.phase,
                within_backward=self._base.within_backward,
            )
        frames[-1] = self._frames[stack]

    def _layer(self, stack: tuple[str, ...]) -> str | None:
        """Return the path of the innermost module of a stack, whose entries begin with its `id`."""
        if not stack:
            return None
        return self._places.paths.get(int(stack[-1].partition("@")[0]), self._base.layer)
