"""Other looks at a trace's memory: what operators touch, what layers need, what is held and not used.

- *operators*, *layers*: from shapes and allocations. A footprint counts every tensor an operator is given as a
  whole, once for each argument, and all that it asks for: an upper bound, as it may read a part of it, and two
  arguments may be one tensor.
- *idle*: what is held at the peak and not used then, for a while or never again. Traces do not tell which tensor
  an operator reads, but how large its tensors are. An operator that is given a tensor of as many bytes *can* read
  an allocation; between two of these nothing does, unless it reads a view of another size. Time is that of the
  CPU, which asks for the work. This follows tensors, not segments of the allocator: each can be moved out and
  back by itself.
- *over time*: how much each device holds, from moment to moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET, UnsetType, field

from daydream.graph.calls import enclosing
from daydream.memory.allocations import AFTER, BEFORE, EVENT, GRANULE, KINDS, Allocations, on_device
from daydream.memory.enclosing import argument_bytes, rows_that
from daydream.memory.lifetimes import allocations
from daydream.memory.report import INSTANCE, NOWHERE, operators
from daydream.results import Record
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace


class OperatorFootprint(Record):
    """What an operator touches.

    Attributes:
        name: the operator.
        calls: how often it was called, not counting calls within itself.
        footprint_bytes: the most that one call can touch: an upper bound.
        asked_bytes: the most that one call asks for.
        layer: the layer of that call, None if unknown.

    """

    name: str
    calls: int
    footprint_bytes: int
    asked_bytes: int
    layer: str | None


class LayerNeed(Record):
    """What a layer needs in its forward pass.

    Attributes:
        name: the layer.
        working_set_bytes: the largest footprint of its operators: what must be there at once for it to run.
        parameter_bytes: its own parameters, 0 where none are known.
        kept_bytes: what it asks for and leaves behind for the backward pass, the most of the passes.
        temporary_bytes: what it asks for and gives back before that, summed up over a pass.

    """

    name: str
    working_set_bytes: int
    parameter_bytes: int
    kept_bytes: int
    temporary_bytes: int


def operator_footprints(held: Allocations) -> list[OperatorFootprint]:
    """Return the footprint of each operator, the largest first."""
    trace = held.trace
    rows, total, asked = _footprints(held)
    names, layers = trace.text("name"), [*trace.text("layer"), None]
    largest: dict[int, int] = {}  # name -> the row of its largest call
    calls: dict[int, int] = {}
    for row, code in zip(rows.tolist(), trace["name"][rows].tolist(), strict=True):
        calls[code] = calls.get(code, 0) + 1
        if code not in largest or total[row] > total[largest[code]]:
            largest[code] = row
    found = [
        OperatorFootprint(
            names[code],
            calls[code],
            int(total[row]),
            int(asked[row]),
            layers[int(trace["layer"][row])],
        )
        for code, row in largest.items()
    ]
    return sorted(found, key=lambda each: (-each.footprint_bytes, each.name))


def layer_needs(held: Allocations) -> list[LayerNeed]:
    """Return what each layer needs in its forward pass, the largest working set first."""
    trace = held.trace
    rows, total, _ = _footprints(held)
    forward = rows[trace["phase"][rows] == trace.code("phase", "forward")]
    working: dict[str, int] = {}
    layers = trace.text("layer")
    for row, code in zip(forward.tolist(), trace["layer"][forward].tolist(), strict=True):
        if code >= 0:
            working[layers[code]] = max(working.get(layers[code], 0), int(total[row]))
    own = held.texts("layer")
    sums: dict[str, dict[str, dict[int, int]]] = {}
    for number in np.flatnonzero(
        (held["phase"] == PHASES.index("forward")) | (held["kind"] == KINDS.index("parameter"))
    ).tolist():
        layer, kind = own[number], KINDS[held["kind"][number]]
        if layer is None:
            continue
        by_step = sums.setdefault(layer, {}).setdefault(kind, {})
        step = int(held["step"][number])
        by_step[step] = by_step.get(step, 0) + int(held["bytes"][number])
    found = []
    for layer in {*working, *sums}:
        kinds = {kind: max(steps.values()) for kind, steps in sums.get(layer, {}).items()}
        found.append(
            LayerNeed(
                layer,
                working.get(layer, 0),
                kinds.get("parameter", 0),
                kinds.get("activation", 0),
                kinds.get("temporary", 0),
            )
        )
    return sorted(found, key=lambda each: (-each.working_set_bytes, -each.kept_bytes, each.name))


def _footprints(held: Allocations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the outermost operators, and for every row its footprint and what it asks for, in bytes."""
    trace = held.trace
    ranges = "autograd::", "torch::"  # such as autograd's nodes, around operators
    operators = rows_that(trace, lambda text: "::" in text and not text.startswith(ranges))
    operators &= trace.is_kind("operator")
    parent = trace["parent"]
    rows = np.flatnonzero(operators & (enclosing(parent, operators, parent, inner=True) < 0))
    asked = np.zeros(len(trace), np.int64)
    begun = np.flatnonzero((held["begin"] > BEFORE) & (held["begin_row"] >= 0))
    outer = np.zeros(len(trace), bool)
    outer[rows] = True
    row = enclosing(parent, outer, held["begin_row"][begun], inner=True)
    inside = row >= 0
    np.add.at(asked, row[inside], held["bytes"][begun[inside]])
    total = asked.copy()
    total[rows] += np.array(
        [sum(sizes) for sizes in argument_bytes(trace, rows)], np.int64
    ).reshape(-1)
    return rows, total, asked


STAYS = ("parameter", "gradient", "optimizer_state", "bucket", "shard", "workspace", "buffer")


class Idle(Record):
    """Allocations that are alike, held at the peak, that nothing can read around it.

    Attributes:
        name: operator and layer (of all blocks) that asked for them.
        kind: what they are, such as `activation`.
        bytes: of all of them.
        count: how many they are.
        idle_ns: the time around the peak without a possible use, of the one that waits shortest.
        never_again: how many wait until they are freed.
        gigabytes_per_second: what moves each out and back in that time, 1e9 bytes a second.

    """

    name: str
    kind: str
    bytes: int
    count: int
    idle_ns: int
    never_again: int
    gigabytes_per_second: float


def idle(held: Allocations, events: MemoryEvents, rank: int, device: int) -> list[Idle]:
    """Return what waits on a device at its peak, the most bytes first.

    Parameters, gradients and what else stays through a step are left out. The list is empty where no shapes
    are recorded.
    """
    place = held.peak(rank, device)[1]
    if place == BEFORE:
        return []
    stays = np.isin(held["kind"], [KINDS.index(kind) for kind in STAYS])
    mine = held.held_at(place) & on_device(held, rank, device) & ~stays
    rows = np.flatnonzero(
        mine & (held["begin"] > BEFORE) & (held["end"] < AFTER) & (held["bytes"] > 0)
    )
    users = _users(held, rank, device)
    if not users:
        return []
    time = events["time_ns"]
    peak = int(time[place // EVENT])
    begin, end = (time[held[at][rows] // EVENT] for at in ("begin", "end"))
    asked, layers = operators(held), held.texts("layer")
    groups: dict[tuple[str, str, int], list[tuple[int, bool]]] = defaultdict(list)
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True):
        nbytes = int(held["bytes"][row])
        layer = layers[row]
        name = f"{asked[row] or NOWHERE} {INSTANCE.sub('*', layer) if layer else ''}".strip()
        wait = _around(users.get(nbytes), first, last, peak)
        if wait[0] > 0:
            groups[name, KINDS[held["kind"][row]], nbytes].append(wait)
    found = []
    for (name, kind, nbytes), waits in groups.items():
        shortest, never = min(wait for wait, _ in waits), sum(last for _, last in waits)
        found.append(
            Idle(
                name, kind, nbytes * len(waits), len(waits), shortest, never, 2 * nbytes / shortest
            )
        )
    return sorted(found, key=lambda each: (-each.bytes, -each.idle_ns, each.name))


def _users(held: Allocations, rank: int, device: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return the starts and the ends of the operators that are given a tensor of so many bytes, by bytes."""
    trace = held.trace
    rows = np.flatnonzero(trace.is_kind("operator") & (np.maximum(trace["rank"], 0) == rank))
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, sizes in zip(rows.tolist(), argument_bytes(trace, rows), strict=True):
        for nbytes in set(sizes):
            by_size[nbytes if device < 0 else -(-nbytes // GRANULE) * GRANULE].append(row)
    start = np.asarray(trace["start_ns"], np.int64)
    end = start + trace["duration_ns"]
    found = {}
    for nbytes, mine in by_size.items():
        order = np.array(mine)[np.argsort(start[mine], kind="stable")]
        found[nbytes] = (start[order], np.maximum.accumulate(end[order]))
    return found


def _around(
    users: tuple[np.ndarray, np.ndarray] | None, begin: int, end: int, peak: int
) -> tuple[int, bool]:
    """Return how long no user runs around the peak, within a lifetime, and whether the free ends that."""
    if users is None:
        return end - begin, True
    starts, ends = users
    after = int(np.searchsorted(starts, peak, side="right"))
    since = max(begin, int(ends[after - 1])) if after else begin
    until = min(end, int(starts[after])) if after < len(starts) else end
    return (max(until - since, 0), until == end) if since <= peak else (0, False)


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


@dataclass(frozen=True, eq=False)
class HeldOverTime:
    """What a device holds.

    Attributes:
        rank: of the process.
        device: `cuda:0`, `cpu`.
        time_ns: when it changes, from the trace's origin, int64, in order.
        held_bytes: what is held from then on, int64, of the same shape.

    """

    rank: int
    device: str
    time_ns: np.ndarray
    held_bytes: np.ndarray


def held_over_time(trace: Trace) -> list[HeldOverTime]:
    """Return what each device holds at each recorded event, none for a trace without memory events.

    What was there before the recording counts where it is known; so the highest value is the peak.
    """
    if trace.memory is None:
        return []
    held, time = allocations(trace), trace.memory["time_ns"]
    found = []
    for rank, device in held.devices():
        places, totals = held.held(rank, device)
        # What was added ends between two events: at the time of the later one.
        event = np.minimum(-(-places[1:] // EVENT), len(time) - 1)
        first = int(time[event[0]]) if len(event) else 0
        name = "cpu" if device == HOST else f"cuda:{device}"
        found.append(HeldOverTime(rank, name, np.append(first, time[event]), totals))
    return found
