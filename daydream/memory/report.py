"""What a trace's memory comes to: the peak of each device, when it is, and who holds it."""

from __future__ import annotations

import os
from collections import defaultdict

import numpy as np

from daydream.collect.load import load
from daydream.costs.operators import Operator, operator
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.memory.allocations import AFTER, BEFORE, EVENT, KINDS, Allocations, on_device
from daydream.memory.enclosing import rows_that, take
from daydream.memory.lifetimes import allocations
from daydream.memory.reserved import contradictory, recorded_reserved, reserved_for
from daydream.memory.result import DeviceMemory, Holder, MemoryReport
from daydream.memory.settings import Settings
from daydream.memory.weights import description_of
from daydream.text import bytes_text, counted
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import PHASES, UNKNOWN
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
    devices, notes = [], list(held.notes)
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


def device_bytes(trace: Trace, rank: int, device: int) -> int | None:
    """Return how much memory a device has, None if the trace does not tell."""
    return description_of(trace, rank, device).get("memory_bytes") or None


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
    step, phase, layer = _moment(held, place)
    layers = _texts(held, "layer", NOWHERE)
    return DeviceMemory(
        rank=rank,
        device="cpu" if device == HOST else f"cuda:{device}",
        peak_allocated_bytes=peak,
        peak_step=None if step < 0 else str(held.trace.metadata["steps"][step].get("name", step)),
        peak_phase=phase,
        peak_layer=layer,
        by_kind=_sums(held, then, [KINDS[kind] for kind in held["kind"].tolist()]),
        by_phase=_sums(held, then, _texts(held, "phase", NO_PHASE)),
        by_layer=_sums(held, then, layers),
    ).having(holders=_holders(held, then, layers))


def _moment(held: Allocations, place: int) -> tuple[int, str | None, str | None]:
    """Return step, phase and layer of the request at a place."""
    rows = np.flatnonzero(held["begin"] == place)
    if place == BEFORE or not len(rows):
        return UNKNOWN, None, None
    row = rows[:1]
    code = int(held["phase"][row[0]])
    layer = int(take(held.trace["layer"], held["begin_row"][row[0]]))
    return (
        int(held["step"][row[0]]),
        PHASES[code] if code >= 0 else None,
        held.trace.text("layer")[layer] if layer >= 0 else None,
    )


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
    ops, lines = operators(held), held.texts("stack")
    total: dict[tuple[str, str, str, str | None], list[int]] = {}
    advice: dict[tuple[str, str, str, str | None], str | None] = {}
    trained = bool((held["phase"] == PHASES.index("backward")).any())
    for row in rows:
        kind, op = KINDS[held["kind"][row]], ops[row] or ""
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


def _of_scores(op: Operator) -> bool:
    return op.is_batched or op.is_softmax or op.name == "masked_fill"


def _of_logits(op: Operator) -> bool:
    return op.family == "softmax" or op.name.startswith(("nll_loss", "cross_entropy"))


def _smaller(held: Allocations, row: int, kind: str, op: str, *, trained: bool) -> str | None:
    """Return the optimization that would make an allocation smaller, None where none is known."""
    phase = int(held["phase"][row])
    if kind in ("activation", "temporary") and _of_scores(operator(op)):
        return "flash-attention"
    if kind in ("activation", "temporary") and (
        _of_logits(operator(op)) or phase == PHASES.index("loss")
    ):
        return "fused-cross-entropy"
    if kind == "temporary":
        return "fused-optimizer" if phase == PHASES.index("optimizer") else "batch-size"
    if kind == "gradient" and held.lasting[row]:
        return "zero-grad-none"
    return SMALLER.get(kind) if trained or kind == "activation" else None
