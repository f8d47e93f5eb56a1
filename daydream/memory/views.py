"""Other looks at a trace's memory: what operators touch, what layers need, what is held and not used."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType, field

from daydream.memory.footprints import (
    LayerNeed,
    OperatorFootprint,
    layer_needs,
    operator_footprints,
)
from daydream.memory.idle import Idle, idle
from daydream.memory.lifetimes import allocations
from daydream.results import Record
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
NO_SHAPES = (
    "The trace has no shapes of operators (record_shapes=True): what is told rests on allocations."
)


class MemoryView(Record):
    """One look at a trace's memory; of the lists only the one that was asked for, the largest first.

    Attributes:
        by: one of `operators`, `layers`, `idle`.
        device: what it is of: that with the largest peak.
        peak_bytes: that peak.
        operators: what each operator touches.
        layers: what each layer needs in its forward pass.
        idle: what is held at the peak and not used around it.
        notes: what it rests on.

    """

    by: str
    device: str
    peak_bytes: int = field(name="peak_allocated_bytes")
    operators: list[OperatorFootprint] | UnsetType = UNSET
    layers: list[LayerNeed] | UnsetType = UNSET
    idle: list[Idle] | UnsetType = UNSET
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> Sequence[OperatorFootprint | LayerNeed | Idle]:
        """The list that was asked for."""
        rows: Sequence[OperatorFootprint | LayerNeed | Idle] = getattr(self, self.by)
        return rows


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
    name = "cpu" if device < 0 else f"cuda:{device}"
    view = MemoryView(
        by, name, peaks[rank, device], notes=[CAN_READ if by == "idle" else UPPER_BOUND, *notes]
    )
    if by == "operators":
        view.operators = operator_footprints(held)
    elif by == "layers":
        view.layers = layer_needs(held)
    else:
        view.idle = [] if events is None else idle(held, events, rank, device)
    return view
