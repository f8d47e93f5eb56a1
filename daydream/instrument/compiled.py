"""Compiled functions: compiled anew with the actions of tools, and as they were after that.

While operators are analysed, compiled functions run their Python code. Then each is compiled once more by
its own backend, from the same graph, in which marks say which layer the operators that follow are of. As the
backend traces the graph, operators pass the dispatcher, where those with actions are changed as in eager
mode, forward and backward; what comes out is compiled. A backend that does not trace runs the marked graph.

Inserted functions in compiled code: one call each, which the compiler does not look into.

So they may do what they do in eager mode: keep what they see, decide by values, write to files. Those that
autograd differentiates (`grad=True`) are traced instead, and what else they do is done once, in compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

from daydream.instrument import torch_private
from daydream.instrument.places import Frame, Places
from daydream.instrument.tool import Action, InstrumentError, listed

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
            local = self._places.local
            self._frames.clear()
            if local.tracing:  # a compiler may trace a graph several times in one call
                self.traced = True
                self._base.counts = dict(self._start)
            else:
                self._base = local.frames[-1]

        def enter(*stack: str) -> None:
            frames = self._places.local.frames
            base = self._base
            layer = None  # the path of the innermost module; entries begin with its `id`
            if stack:
                layer = self._places.paths.get(int(stack[-1].partition("@")[0]), base.layer)
            if layer is None or (layer == base.layer and len(stack) == 1):
                frames[-1] = base
                return
            if stack not in self._frames:
                within = base.within_backward
                self._frames[stack] = Frame(layer, base.module, base.phase, within)
            frames[-1] = self._frames[stack]

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


_NUMBERS = count()


@dataclass(frozen=True)
class Inserted:
    """An inserted function, what it is given besides tensors, and which tensors its results are like."""

    action: Action
    given: tuple[
        Any, ...
    ]  # a place among the tensors, a list of places, or what is no tensor as (value,)
    like: tuple[int, ...]
    observes: bool  # None means that all stays


_CALLS: dict[
    int, Inserted
] = {}  # by number; kept, as compiled code may run its backward pass any time later


def opaque(action: Action, given: Sequence[Any], like: Sequence[Any] | None) -> list[Any]:
    """Have compiled code call an inserted function, outside autograd.

    Args:
        action: the function.
        given: what it is given.
        like: tensors that its results are like, in shape, type and layout; `given` itself if None, and then
            a function that returns None leaves them as they are.

    Returns:
        as many tensors as `like` has.

    Raises:
        InstrumentError: something of it cannot be handed to compiled code.
    """
    import torch

    tensors: list[Any] = []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return len(tensors) - 1
        if isinstance(value, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in value):
            return [place(one) for one in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise InstrumentError(
                "an inserted function is given a size that compiled code leaves open"
            )
        return (value,)

    places = tuple(place(value) for value in given)
    if like is None:
        if not all(isinstance(one, int) for one in places):
            raise InstrumentError("an inserted function changes what is no tensor")
        likes = places
    else:
        likes = tuple(range(len(tensors), len(tensors) + len(like)))
        tensors += like
    number = next(_NUMBERS)
    _CALLS[number] = Inserted(action, places, likes, observes=like is None)
    return _operator()(tensors, number)


@lru_cache(maxsize=1)
def _operator() -> Any:
    import torch

    def call(values: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return _run(_CALLS[number], values)

    def fake(values: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return [torch.empty_like(values[place]) for place in _CALLS[number].like]

    schema = "(Tensor[] values, int number) -> Tensor[]"
    operator: Any = torch.library.custom_op(
        "daydream_instrument::call", call, mutates_args=(), schema=schema
    )
    operator.register_fake(fake)
    return operator


def _run(call: Inserted, values: list[Any]) -> list[Any]:
    import torch

    def value(place: Any) -> Any:
        if isinstance(place, int):
            return values[place]
        return place[0] if isinstance(place, tuple) else [value(one) for one in place]

    with torch.no_grad():
        result = call.action.func(*(value(place) for place in call.given), **call.action.kwargs)
        like = [values[place] for place in call.like]
        if result is None and call.observes:
            return [one.clone() for one in like]
        found = listed(result)
        if len(found) != len(like):
            raise InstrumentError(
                f"an inserted function returned {len(found)} values; {len(like)} are needed"
            )
        return [_as(made, one, values) for made, one in zip(found, like, strict=True)]


def _as(made: Any, like: Any, values: list[Any]) -> Any:
    """Return a tensor as compiled code expects it: of its own memory, in the layout that was foreseen."""
    import torch

    if made is None:
        return torch.zeros_like(like)
    if made.shape != like.shape:
        raise InstrumentError(
            f"an inserted function made {tuple(made.shape)} of {tuple(like.shape)}; outside autograd the "
            "shape must stay. Insert it with grad=True."
        )
    fresh = all(
        made.untyped_storage().data_ptr() != one.untyped_storage().data_ptr() for one in values
    )
    if fresh and made.dtype == like.dtype and made.stride() == torch.empty_like(like).stride():
        return made
    return torch.empty_like(like).copy_(made)
