"""What a trace's memory comes to: the peak of each device, when it is, and who holds it.

Other looks at a trace's memory: what operators touch, what layers need, what is held and not used.

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

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET, UnsetType, field

from daydream.arrays import take
from daydream.collect import load
from daydream.costs.operators import operator
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    EVENT,
    GRANULE,
    KINDS,
    Allocations,
    device_name,
    on_device,
    recorded_reserved,
)
from daydream.memory.before import device_bytes
from daydream.memory.enclosing import argument_bytes, rows_that
from daydream.memory.lifetimes import allocations
from daydream.memory.reserved import contradictory, reserved_for
from daydream.memory.result import DeviceMemory, Holder, MemoryReport
from daydream.memory.settings import Settings
from daydream.results import Record
from daydream.text import bytes_text, counted
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.recorded_steps import MADE_UP, made_up
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace

MOVED = 0.03  # a replay that is further off the record is told
EARLIER = "held before"  # a phase and a layer that no row tells
NOWHERE = "no layer"
NO_PHASE = "unknown"
INSTANCE = regex(
    r"(?<![^._])\d+(?=\.|$)"
)  # the number of a block, as reports of layers leave it out
NODE_RANGE = "autograd::engine::evaluate_function: "
OUTSIDE = (
    "The context of a device (300 to 600 MiB), NCCL and what libraries allocate by themselves are outside "
    "the allocator and not recorded."
)
SMALLER = {  # kind -> the optimization that makes such memory smaller
    "parameter": "fsdp", "gradient": "fsdp", "optimizer_state": "offload-optimizer", "bucket": "bucket-size",
    "shard": "fsdp", "input": "batch-size", "activation": "checkpointing",
}  # fmt: skip


def memory_of(
    trace: Trace | str | os.PathLike[str],
    *,
    capacity: int | None = None,
    settings: Settings | None = None,
) -> MemoryReport:
    """Return the peak of each rank's devices, who holds it, and what was recorded.

    Args:
        trace: a trace with memory events, or its file.
        capacity: bytes that each GPU (or the CPU, where the trace has no GPU) may give; by default what the
            device has, where the trace tells.
        settings: of PyTorch's allocator; by default its own.

    Returns:
        The report: a device each, GPUs before the CPU, with amounts in bytes.

    Raises:
        TraceError: the trace has no memory events, or the file is no usable trace.

    """
    trace = trace if isinstance(trace, Trace) else load(trace)
    held = allocations(trace)
    events: MemoryEvents = trace.memory  # type: ignore[assignment]  # `allocations` raises without
    on_gpu = bool((held["device"] >= 0).any())
    pairs = sorted(held.devices(), key=lambda pair: (pair[0], pair[1] < 0, pair[1]))
    devices = []
    notes = list(held.notes)
    if fake := made_up(trace):
        without = "buffers of its communication library are not in it"
        if "fake_world" not in trace.metadata:
            without = "what its kernels need beside tensors is a model's"
        notes.append(f"{MADE_UP}{fake}: {without}.")
    for rank, device in pairs:
        limit = None
        if device >= 0 or not on_gpu:
            limit = capacity if capacity is not None else device_bytes(trace, rank, device)
        found, said = _device(held, events, rank, device, limit, settings)
        devices.append(found)
        notes += said
    if on_gpu:
        notes.append(OUTSIDE)
    return MemoryReport(tuple(devices), None, tuple(dict.fromkeys(notes)))


def _device(
    held: Allocations, events: MemoryEvents, rank: int, device: int, capacity: int | None,
    settings: Settings | None,
) -> tuple[DeviceMemory, list[str]]:  # fmt: skip
    mine = on_device(events, rank, device)
    recorded = recorded_reserved(held, rank, device)
    found = at_peak(held, rank, device).but(
        capacity_bytes=capacity,
        recorded_allocated_bytes=_recorded(held, events, rank, device),
        recorded_reserved_bytes=recorded,
    )
    said: list[str] = []
    needed = reserved_for(held, rank, device, settings=settings)
    as_recorded = needed if settings is None else reserved_for(held, rank, device)
    if needed is not None and as_recorded is not None:
        replayed = as_recorded.peak_reserved_bytes
        more = 0
        if recorded and recorded >= (found.peak_allocated_bytes or 0):
            more = recorded - replayed
            said = _said_of_reserved(
                found.device, recorded, replayed, events["reserved_bytes"][mine]
            )
        found = found.but(peak_reserved_bytes=needed.peak_reserved_bytes + more)
        found.having(
            reserved_at_peak_bytes=needed.reserved_at_peak_bytes + more,
            replayed_reserved_bytes=needed.peak_reserved_bytes,
        )
    if odd := contradictory(held, rank, device):
        how = "contradicts itself or another" if odd == 1 else "contradict themselves or others"
        said.append(
            f"{counted(odd, 'segment', 'segments')} that the allocator of {found.device} held before the "
            f"recording {how}: "
            "none of its segments is used, and what was held is assumed to be asked for anew."
        )
    return found, said


def at_peak(held: Allocations, rank: int, device: int) -> DeviceMemory:
    """Return when a device holds most of what is allocated, and who holds it then; nothing of the allocator.

    Args:
        held: the allocations, as recorded or after a change.
        rank: of the process.
        device: index of the GPU, -1 for the CPU.

    Returns:
        Amounts in bytes; capacity, what was recorded and what is reserved are None.
    """
    peak, place = held.peak(rank, device)
    then = held.held_at(place) & on_device(held, rank, device)
    asked = np.flatnonzero((held["begin"] == place) & (place != BEFORE))[
        :1
    ]  # the request that makes the peak
    step = [
        held.trace.metadata["steps"][code].get("name", code)
        for code in held["step"][asked]
        if code >= 0
    ]
    row = take(held.trace["layer"], held["begin_row"][asked])
    layers = _texts(held, "layer", NOWHERE)
    return DeviceMemory(
        rank=rank,
        device=device_name(device),
        peak_allocated_bytes=peak,
        peak_step=str(step[0]) if step else None,
        peak_phase=next((PHASES[code] for code in held["phase"][asked] if code >= 0), None),
        peak_layer=next((held.trace.text("layer")[code] for code in row if code >= 0), None),
        by_kind=_sums(held, then, [KINDS[kind] for kind in held["kind"].tolist()]),
        by_phase=_sums(held, then, _texts(held, "phase", NO_PHASE)),
        by_layer=_sums(held, then, layers),
    ).having(holders=_holders(held, then, layers))


def _texts(held: Allocations, column: str, unknown: str) -> list[str]:
    """Return the phase or the layer of each allocation, as reports name it."""
    before = (held["begin"] == BEFORE).tolist()
    texts = zip(held.texts(column), before, strict=True)
    return [text or (EARLIER if early else unknown) for text, early in texts]


def _sums(held: Allocations, which: np.ndarray, names: list[str]) -> dict[str, int]:
    """Return the bytes of some allocations by name, the most first."""
    total: dict[str, int] = defaultdict(int)
    sizes = held["bytes"].tolist()
    for row in np.flatnonzero(which).tolist():
        total[names[row]] += sizes[row]
    return dict(sorted(total.items(), key=lambda each: (-each[1], each[0])))


def _recorded(held: Allocations, events: MemoryEvents, rank: int, device: int) -> int | None:
    """Return the highest recorded total, where there is none the highest running sum of the events."""
    mine = on_device(events, rank, device)
    totals = events["allocated_bytes"][mine]
    if device != HOST and (totals >= 0).any():
        return int(totals.max())
    if not mine.any():
        return None
    # What was freed and not seen to come had been there; rows that were added end between events.
    on = on_device(held, rank, device)
    seen = on & (held["begin"] == BEFORE) & (held["end"] < AFTER) & (held["end"] % EVENT == 0)
    start = int(held["bytes"][seen].sum())
    return start + max(int(np.cumsum(events["bytes"][mine]).max()), 0)


def _said_of_reserved(device: str, recorded: int, replayed: int, events: np.ndarray) -> list[str]:
    """Return where the recorded peak is from if not from the requests; `events` have each total, or -1."""
    known = events[events >= 0]
    still = " when the recording began, and that never moved" if (known == known[0]).all() else ""
    off = replayed / recorded - 1
    if abs(off) <= MOVED and not still:
        return []
    said = f"{device}: {bytes_text(recorded)} were reserved{still}: what earlier steps needed may be in it."
    if abs(off) > MOVED:
        said += (
            f" The requests replayed need {bytes_text(replayed)}, {100 * off:+.0f}%: the recorded figure "
            "counts, and a change leaves what requests do not explain."
        )
    return [said]


# Who holds it ------------------------------------------------------------------------------------


def _holders(held: Allocations, which: np.ndarray, layers: list[str]) -> tuple[Holder, ...]:
    """Return who holds some allocations, the most first: by kind, operator, layer (of all blocks), line."""
    rows = np.flatnonzero(which).tolist()
    ops = operators(held)
    lines = held.texts("stack")
    total: dict[tuple[str, str, str, str | None], list[int]] = {}
    advice: dict[tuple[str, str, str, str | None], str | None] = {}
    trained = bool((held["phase"] == PHASES.index("backward")).any())
    for row in rows:
        kind = KINDS[held["kind"][row]]
        op = ops[row] or ""
        key = (kind, INSTANCE.sub("*", layers[row]), op, lines[row])
        both = total.setdefault(key, [0, 0])
        both[0] += int(held["bytes"][row])
        both[1] += 1
        if key not in advice:
            advice[key] = _smaller(held, row, kind, op, trained=trained)
    ordered = sorted(total.items(), key=lambda each: (-each[1][0], tuple(map(str, each[0]))))
    return tuple(
        Holder(_name(layer, op), nbytes, count, kind, advice[kind, layer, op, line], line)
        for (kind, layer, op, line), (nbytes, count) in ordered
    )


def _name(layer: str, op: str) -> str:
    if layer == EARLIER or not op:
        return layer
    return op if layer == NOWHERE else f"{op} {layer}"


def operators(held: Allocations) -> list[str | None]:
    """Return the operator that asked for each allocation; the one above it where that only allocates."""
    trace = held.trace
    names = trace.text("name")
    tells = trace.is_kind("operator") & ~rows_that(
        trace, lambda name: "allocates" in operator(name).traits
    )
    row = enclosing(trace["parent"], tells, held["begin_row"], inner=True)
    own = [text and text.removeprefix(NODE_RANGE) for text in held.texts("op")]
    codes = take(trace["name"], row).tolist()
    return [
        names[code].removeprefix(NODE_RANGE) if code >= 0 else own[place]
        for place, code in enumerate(codes)
    ]


def _smaller(held: Allocations, row: int, kind: str, op: str, *, trained: bool) -> str | None:
    """Return the optimization that would make an allocation smaller, None where none is known."""
    phase = PHASES[held["phase"][row]] if held["phase"][row] >= 0 else None
    if kind in ("activation", "temporary"):
        known = operator(op)
        if known.is_batched or known.is_softmax or known.name == "masked_fill":
            return "flash-attention"
        of_loss = known.name.startswith(("nll_loss", "cross_entropy")) or phase == "loss"
        if known.family == "softmax" or of_loss:
            return "fused-cross-entropy"
    if kind == "temporary":
        return "fused-optimizer" if phase == "optimizer" else "batch-size"
    if kind == "gradient" and held.lasting[row]:
        return "zero-grad-none"
    return SMALLER.get(kind) if trained or kind == "activation" else None


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
    names = trace.text("name")
    layers = [*trace.text("layer"), None]
    calls: dict[int, list[int]] = defaultdict(list)
    for row, code in zip(rows.tolist(), trace["name"][rows].tolist(), strict=True):
        calls[code].append(row)
    found = []
    for code, mine in calls.items():
        row = max(mine, key=total.__getitem__)
        layer = layers[int(trace["layer"][row])]
        sizes = int(total[row]), int(asked[row])
        found.append(OperatorFootprint(names[code], len(mine), *sizes, layer))
    return sorted(found, key=lambda each: (-each.footprint_bytes, each.name))


def layer_needs(held: Allocations) -> list[LayerNeed]:
    """Return what each layer needs in its forward pass, the largest working set first."""
    trace = held.trace
    rows, total, _ = _footprints(held)
    layers = [*trace.text("layer"), None]
    forward = rows[trace["phase"][rows] == trace.code("phase", "forward")]
    working: dict[str | None, int] = defaultdict(int)
    for row, code in zip(forward.tolist(), trace["layer"][forward].tolist(), strict=True):
        working[layers[code]] = max(working[layers[code]], int(total[row]))
    own = held.texts("layer")
    sums: dict[tuple[str | None, int, int], int] = defaultdict(int)  # by layer, kind and step
    made = held.where(phase="forward") | held.where(kind="parameter")
    for number in np.flatnonzero(made).tolist():
        kind, step, nbytes = (int(held[name][number]) for name in ("kind", "step", "bytes"))
        sums[own[number], kind, step] += nbytes
    most: dict[tuple[str | None, int], int] = defaultdict(int)  # of any step
    for (layer, kind, _), nbytes in sums.items():
        most[layer, kind] = max(most[layer, kind], nbytes)
    kinds = [KINDS.index(kind) for kind in ("parameter", "activation", "temporary")]
    found = [
        LayerNeed(layer, working[layer], *(most[layer, kind] for kind in kinds))
        for layer in {*working, *(layer for layer, _ in most)}
        if layer is not None
    ]
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
    total[rows] += np.array([sum(sizes) for sizes in argument_bytes(trace, rows)], np.int64)
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
    asked = operators(held)
    layers = held.texts("layer")
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
        shortest = min(wait for wait, _ in waits)
        never = sum(last for _, last in waits)
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
    start = trace["start_ns"]
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
        return getattr(self, self.by)


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
    view = MemoryView(
        by,
        device_name(device),
        peaks[rank, device],
        notes=[CAN_READ if by == "idle" else UPPER_BOUND, *notes],
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
    held = allocations(trace)
    time = trace.memory["time_ns"]
    found = []
    for rank, device in held.devices():
        places, totals = held.held(rank, device)
        # What was added ends between two events: at the time of the later one.
        event = np.minimum(-(-places[1:] // EVENT), len(time) - 1)
        first = int(time[event[0]]) if len(event) else 0
        found.append(HeldOverTime(rank, device_name(device), np.append(first, time[event]), totals))
    return found
