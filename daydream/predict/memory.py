"""Peak memory of a what-if, from the allocations of a trace; the largest batch or sequence that fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple
from weakref import WeakKeyDictionary

from daydream.errors import DaydreamError, GraphError
from daydream.graph.graph import Graph
from daydream.memory.prediction import MemoryChange, MemoryPrediction, cannot_say, memory_after
from daydream.results import Record
from daydream.text import listed
from daydream.trace.trace import Trace
from daydream.transforms.compose import memory_changes, parse

if TYPE_CHECKING:
    from daydream.memory.allocations import Allocations

NOTHING_RECORDED = (
    "peak memory is not known: the trace has no memory events; record it with `daydream collect`, or with "
    "torch.profiler's profile_memory=True"
)
OF_A_RANGE = (
    "peak memory is not known of a range of steps; ask about the whole trace, without --steps"
)
MOST = 1 << 24  # samples, or tokens; more is no answer that anyone needs
Size = Literal["batch", "sequence"]
_held: WeakKeyDictionary[Trace, Allocations] = WeakKeyDictionary()


class MemoryAnswer(NamedTuple):
    """What a change does to peak memory; or, in a clause, why that is not known.

    Both are None for a trace without memory events, unless somebody asked whether it fits.
    """

    memory: MemoryPrediction | None = None
    unsaid: str | None = None


def answer_of(graph: Graph, changes: Sequence[MemoryChange], capacity: int | None) -> MemoryAnswer:
    """Return what changes of a graph do to the memory of its trace.

    Args:
        graph: the graph of the trace before any change.
        changes: what each does, in the order of the graph's edits.
        capacity: what the device has, in bytes; by default what the trace says of it.
    """
    trace = graph.recorded
    if trace.memory is None or not len(trace.memory):
        why = OF_A_RANGE if trace.metadata.get("steps_read") else NOTHING_RECORDED
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


class Largest(Record):
    """How large a batch may be, or how long a sequence.

    Attributes:
        what: `batch` or `sequence`.
        recorded: the size in the trace.
        fits: the largest that certainly fits; 0 if not even 1 does.
        too_large: the smallest that certainly does not fit; None if none up to 2^24 is.
        memory: the prediction at `fits`; at 1 if that is 0.
        notes: what a reader should know of it before trusting the figures.
    """

    what: Size
    recorded: int
    fits: int
    too_large: int | None
    memory: MemoryPrediction
    notes: list[str]


def largest(trace: Trace, what: Size = "batch", *, capacity: int | None = None) -> Largest:
    """Return the largest batch, or longest sequence, that fits; between two sizes it is too close to tell.

    Args:
        trace: a trace with memory events and shapes.
        what: `batch` or `sequence`.
        capacity: what the device has, in bytes; by default what the trace says of it.

    Returns:
        `Largest`.

    Raises:
        TraceError: the trace has no memory events.
        NotApplicableError: no shapes show the recorded size.
        GraphError: the capacity is not known.
    """
    from daydream.costs.device.input_sizes import need_size, recorded_batch, recorded_length

    held = held_now(trace)
    if what == "batch":
        name = "batch-size"
        recorded = need_size(recorded_batch(trace), "batch size")
    else:
        name = "sequence-length"
        recorded = need_size(recorded_length(trace), "sequence length")

    @cache
    def at(size: int) -> MemoryPrediction:
        change: dict[str, float] = (
            {"factor": size / recorded} if what == "batch" else {"length": size}
        )
        changes = memory_changes(parse(name), {**change, "recorded": recorded})
        return memory_after(held, changes, capacity)

    if at(1).capacity_bytes is None:
        raise GraphError(
            "how much memory the device has is not known; give --capacity, such as 24GB"
        )
    fits = _last(lambda size: at(size).fits is True, recorded)
    possible = _last(lambda size: at(size).fits is not False, max(recorded, fits))
    found = at(max(fits, 1))
    return Largest(
        what=what,
        recorded=recorded,
        fits=fits,
        too_large=None if possible >= MOST else possible + 1,
        memory=found,
        notes=[*found.recording_notes, *found.notes],
    )


def _last(holds: Callable[[int], bool], start: int) -> int:
    """Return the largest size up to `MOST` for which a condition holds that ends once; 0 if none."""
    low, high = 0, max(start, 1)
    while high <= MOST and holds(high):
        low, high = high, 2 * high
    beyond = range(low + 1, min(high, MOST + 1))
    return low + bisect_left(beyond, True, key=lambda size: not holds(size))
