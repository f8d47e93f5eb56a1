"""Peak memory of a what-if: the allocations of a trace, before and after optimizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from daydream.graph.graph import Graph
from daydream.memory.allocations import Allocations
from daydream.memory.lifetimes import allocations
from daydream.memory.prediction import MemoryPrediction, memory_after
from daydream.trace.trace import Trace
from daydream.transforms.compose import memory_changes, parse
from daydream.transforms.registry import Optimization

_held: WeakKeyDictionary[Trace, Allocations] = WeakKeyDictionary()


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
    held = source if isinstance(source, Allocations) else held_now(source)
    if graph is not None and held.recorded_graph is None:
        held.recorded_graph = graph
    return memory_after(held, memory_changes(parse(optimizations), options or {}), capacity)


def held_now(trace: Trace) -> Allocations:
    """Return the allocations of a trace, worked out once. Raises `TraceError` if it has no memory events."""
    if trace not in _held:
        _held[trace] = allocations(trace)
    return _held[trace]
