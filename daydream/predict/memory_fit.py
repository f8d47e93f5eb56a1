"""The largest batch, or the longest sequence, whose step fits into a device's memory."""

from __future__ import annotations

from typing import Any, Literal, get_args

from daydream.costs.device.input_sizes import need_size, recorded_batch, recorded_length
from daydream.errors import GraphError
from daydream.memory.prediction import MemoryPrediction
from daydream.predict.memory import held_now, predict_memory
from daydream.results import Record
from daydream.trace.trace import Trace

Size = Literal["batch", "sequence"]
SIZES: tuple[Size, ...] = get_args(Size)
MOST = 1 << 24  # samples, or tokens; more is no answer that anyone needs


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
    held = held_now(trace)
    if what == "batch":
        recorded = need_size(recorded_batch(trace), "batch size")
    else:
        recorded = need_size(recorded_length(trace), "sequence length")

    def at(size: int) -> MemoryPrediction:
        if what == "batch":
            return predict_memory(
                held, "batch-size", {"factor": size / recorded, "recorded": recorded}, capacity
            )
        return predict_memory(held, "sequence-length", {"length": size, "recorded": recorded}, capacity)

    known: dict[int, MemoryPrediction] = {}

    def fits(size: int) -> bool | None:
        if size not in known:
            known[size] = at(size)
        return known[size].fits

    fits(1)
    if known[1].capacity_bytes is None:
        raise GraphError("how much memory the device has is not known; give --capacity, such as 24GB")
    largest_fitting = _last(lambda size: fits(size) is True, recorded)
    last_possible = _last(lambda size: fits(size) is not False, max(recorded, largest_fitting))
    shown = max(largest_fitting, 1)
    fits(shown)
    found = known[shown]
    return Largest(
        what=what,
        recorded=recorded,
        fits=largest_fitting,
        too_large=None if last_possible >= MOST else last_possible + 1,
        memory=found,
        notes=[*found.recording_notes, *found.notes],
    )


def _last(holds: Any, start: int) -> int:
    """Return the largest size up to `MOST` for which a condition holds that ends once; 0 if none."""
    low, high = 0, max(start, 1)
    while high < MOST and holds(high):
        low, high = high, min(2 * high, MOST)
    if high == MOST and holds(MOST):
        return MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
