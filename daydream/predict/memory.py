"""Peak memory of a what-if: the allocations of a trace, before and after optimizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from daydream.errors import DaydreamError
from daydream.graph.graph import Graph
from daydream.memory.allocations import Allocations
from daydream.memory.prediction import MemoryChange, MemoryPrediction, cannot_say, memory_after
from daydream.text import listed
from daydream.trace.trace import Trace
from daydream.transforms.compose import memory_changes, parse
from daydream.transforms.registry import Optimization

NOTHING_RECORDED = (
    "peak memory is not known: the trace has no memory events; record it with `daydream collect`, or with "
    "torch.profiler's profile_memory=True"
)
OF_A_RANGE = "peak memory is not known of a range of steps; ask about the whole trace, without --steps"
_held: WeakKeyDictionary[Trace, Allocations] = WeakKeyDictionary()


class MemoryAnswer(NamedTuple):
    """What a change does to peak memory; or, in a clause, why that is not known.

    Both are None for a trace without memory events, unless somebody asked whether it fits.
    """

    memory: MemoryPrediction | None = None
    unsaid: str | None = None


def predict_memory(
    source: Trace | Allocations,
    optimizations: str | Optimization | Callable[..., None] | Sequence[Any],
    options: Mapping[str, Any] | None = None,
    capacity: int | None = None,
    *,
    graph: Graph | None = None,
) -> MemoryPrediction:
    """Return the peak of what is allocated before and after a change.

    Args:
        source: a trace with memory events, or the allocations of one, which stay as they are.
        optimizations: a name, `"a+b"`, a function with a `memory` of its own, or a list of them.
        options: theirs by name.
        capacity: what the device has, in bytes; by default what the trace says of it.
        graph: the trace's graph as it was recorded, where there is one already.

    Returns:
        `MemoryPrediction`, figures in bytes.

    Raises:
        TraceError: the trace has no memory events.
        GraphError: an optimization cannot say what it does to memory, or an option's value makes no sense.
        NotApplicableError: the change does not apply to this trace.
    """
    held = source if isinstance(source, Allocations) else held_now(source, graph)
    return memory_after(held, memory_changes(parse(optimizations), options or {}), capacity)


def answer_of(graph: Graph, changes: Sequence[MemoryChange], capacity: int | None) -> MemoryAnswer:
    """Return what changes of a graph do to the memory of its trace.

    Args:
        graph: the graph of the trace before any change.
        changes: what each does, in the order of the graph's edits.
        capacity: what the device has, in bytes; by default what the trace says of it.
    """
    trace = graph.trace
    if trace is None or trace.memory is None or not len(trace.memory):
        why = OF_A_RANGE if trace is not None and trace.metadata.get("steps_read") else NOTHING_RECORDED
        return MemoryAnswer(unsaid=None if capacity is None else why)
    if unsaid := cannot_say(changes):
        return MemoryAnswer(unsaid=f"{listed(unsaid)} cannot say what that does to memory")
    try:
        return MemoryAnswer(memory_after(held_now(trace, graph), changes, capacity))
    except DaydreamError as error:
        return MemoryAnswer(unsaid=f"peak memory is not known: {' '.join(str(error).split())}")


def held_now(trace: Trace, graph: Graph | None = None) -> Allocations:
    """Return the allocations of a trace, worked out once. Raises `TraceError` if it has no memory events."""
    if trace not in _held:
        from daydream.memory.lifetimes import allocations

        _held[trace] = allocations(trace)
    held = _held[trace]
    if graph is None or held.recorded_graph is not None:
        return held
    return held.of_graph(graph)
