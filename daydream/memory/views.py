"""Other looks at a trace's memory: what operators touch, what layers need, what is held and not used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daydream.display import as_json
from daydream.memory.footprints import LayerNeed, OperatorFootprint, layer_needs, operator_footprints
from daydream.memory.idle import Idle, idle
from daydream.memory.lifetimes import allocations
from daydream.trace.trace import Trace

VIEWS = ("operators", "layers", "idle")
UPPER_BOUND = (
    "A footprint is an upper bound: every tensor that an operator is given counts whole, once for each "
    "argument, and all that it asks for."
)
CAN_READ = (
    "Idle: around the peak no operator is given a tensor of that size. Traces tell sizes, not tensors, so "
    "views of another size are not seen; times are those of the CPU."
)
NO_SHAPES = "The trace has no shapes of operators (record_shapes=True): what is told rests on allocations."


@dataclass(frozen=True)
class MemoryView:
    """One look at a trace's memory.

    Attributes:
        by: one of `VIEWS`.
        device: what it is of: that with the largest peak.
        peak_bytes: that peak.
        rows: the largest first.
        notes: what it rests on.

    """

    by: str
    device: str
    peak_bytes: int
    rows: tuple[OperatorFootprint | LayerNeed | Idle, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `daydream memory --by ... --json` prints, but for its schema."""
        return as_json(self, f"by device peak_allocated_bytes=peak_bytes {self.by}=rows notes")


def view_of(trace: Trace, by: str) -> MemoryView:
    """Return one of the views of a trace's memory, of the device that has the largest peak.

    Raises:
        TraceError: the trace has no memory events.
    """
    held = allocations(trace)
    events = trace.memory
    peaks = {pair: held.peak(*pair)[0] for pair in held.devices()}
    rank, device = max(peaks, key=lambda pair: (peaks[pair], pair))
    notes = [] if trace.text("shapes") else [NO_SHAPES]
    rows: tuple[OperatorFootprint | LayerNeed | Idle, ...]
    if by == "operators":
        rows, said = tuple(operator_footprints(held)), UPPER_BOUND
    elif by == "layers":
        rows, said = tuple(layer_needs(held)), UPPER_BOUND
    else:
        rows, said = tuple(idle(held, events, rank, device) if events is not None else ()), CAN_READ
    name = "cpu" if device < 0 else f"cuda:{device}"
    return MemoryView(by, name, peaks[rank, device], rows, (said, *notes))
