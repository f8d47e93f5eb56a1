"""What memory is for, told from its lifetime: parameter, gradient, optimizer state, activation, ...

No recording names it. But what a backward pass makes and leaves is a gradient, what forward makes and
backward still holds was saved for it, and what goes before the next backward pass was temporary. A lifetime
that an end of the recording cuts is taken for that of its like in another step.

Lifetimes come from recorded events: which free ends which allocation, and what was held before. An allocation and a
free at one address of one device belong together. A free of what was never seen
allocated ends something that was held before the recording. Where the allocator's totals are recorded,
what they hold beyond that was there before and stays. Events that contradict each other are counted: no total
may be wrong in silence.

How much a recording itself says was held needs no pairing.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from daydream.arrays import distinct_rows, places, take, unique
from daydream.costs.operators import operators_that
from daydream.costs.workload.calls import innermost_makers, nodes
from daydream.errors import TraceError
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    EVENT,
    KINDS,
    STEP,
    Allocations,
    on_device,
)
from daydream.memory.before import add_held_before
from daydream.memory.enclosing import Moments, moments, rows_that
from daydream.results import Record
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace

DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
SHARDING = regex(r"^(FSDP::|fsdp::|FullyShardedDataParallel\._(pre|post))")  # torch's own ranges
REDUCER = regex(r"reducer::")
COLLECTIVE = regex(r"^(c10d::|FSDP::all_gather)")
NONE_RECORDED = (
    "this trace has no memory events. Record it with `daydream collect`, or with "
    "torch.profiler's profile_memory=True."
)
OF_ALL_STEPS = (
    "of a range of steps memory is not known, as what was held when they began is not. "
    "Ask about the whole trace, without --steps."
)


def allocations(trace: Trace) -> Allocations:
    """Return what the trace holds in memory, each allocation with its kind.

    What was there before the recording is added from the metadata where events and totals do not show it.

    Raises:
        TraceError: the trace has no memory events.
    """
    events = trace.memory
    if events is None:
        raise none_recorded(trace)
    when = moments(trace, events)
    held = paired(trace, events, when)
    _free_after_collectives(held, events)
    held["kind"][:] = _kinds(held, events, when)
    add_held_before(held, events)
    return held


def none_recorded(trace: Trace) -> TraceError:
    """Return the error that a trace without memory events is for questions about memory."""
    return TraceError(OF_ALL_STEPS if trace.metadata.get("steps_read") else NONE_RECORDED)


def _free_after_collectives(held: Allocations, events: MemoryEvents) -> None:
    """End what collectives on the CPU ask for and nobody is seen to free, with the call that asked.

    Threads of the communication library free it, and the profiler does not listen to them.
    """
    trace = held.trace
    lost = np.flatnonzero(
        (held["device"] == HOST) & (held["end"] == AFTER) & under(held, COLLECTIVE)
    )
    if not len(lost):
        return
    row = held["begin_row"][lost]
    outer = enclosing(trace["parent"], trace.is_kind("operator"), row, inner=False)
    end = (trace["start_ns"] + trace["duration_ns"])[np.where(outer >= 0, outer, row)]
    for rank in unique(held["rank"][lost]).tolist():
        own = np.flatnonzero(events["rank"] == rank)
        mine = held["rank"][lost] == rank
        after = np.searchsorted(events["time_ns"][own], end[mine], side="right")
        held["end"][lost[mine]] = np.append(own, own[-1] + 1)[after] * EVENT - STEP
    for name in ("end_step", "end_phase"):
        held[name][lost] = held[name.removeprefix("end_")][lost]
    held.note(
        f"{counted(len(lost), 'buffer')} of collectives on the CPU: threads that the profiler does not hear "
        "free them; each is assumed to end with the call that asked for them."
    )


def _kinds(held: Allocations, events: MemoryEvents, when: Moments) -> np.ndarray:
    """Return the kind of each allocation: codes into `KINDS`, int64, shape (rows,)."""
    trace = held.trace
    begin, end, row = held["begin"], held["end"], held["begin_row"]
    phase, end_phase = held["phase"], held["end_phase"]
    begun, freed = begin > BEFORE, end < AFTER
    ranks, rank = places(held["rank"])
    last = np.full(len(ranks), UNKNOWN, np.int64)
    np.maximum.at(last, rank, held["step"])
    kept = ~freed & (held["step"] < last[rank])  # a whole step and more
    passes = take(when.passes, np.where(begun, begin // EVENT, UNKNOWN), 0)
    most = when.passes.max(initial=0)
    crosses = take(when.passes, np.where(freed, end // EVENT, UNKNOWN), most + 1) > passes
    by_library = (
        freed & (row >= 0) & (row == held["end_row"]) & _by_family(held, "convolution")
    ) | (kept & _by_family(held, "matmul"))
    # Made outside of every layer before the first layer of a pass, and held into that
    layer = take(trace["layer"], row)
    in_layer = begun & (layer >= 0) & (phase == FORWARD)
    _, of_pass = distinct_rows([held["rank"], passes])
    first = np.full(len(held), AFTER)
    np.minimum.at(first, of_pass[in_layer], begin[in_layer])
    first = first[of_pass]
    outside = (layer < 0) & np.isin(phase, (FORWARD, OTHER, DATA)) & (begin < first) & (end > first)
    # What the first rule finds, those below do not see; all are of what began in the recording.
    rules = {
        # made by a backward pass, and held when that is over
        "gradient": (phase == BACKWARD) & ((end_phase != BACKWARD) | crosses),
        # made by an optimizer, and held through a backward pass: moments, made once or anew in each step
        "optimizer_state": (phase == OPTIMIZER) & (crosses if freed.any() else kept),
        "shard": under(held, SHARDING),  # gathered parameters, gradients on their way to the shards
        "bucket": under(held, REDUCER),
        # a library's own on a GPU: cuDNN's goes with its call, cuBLAS keeps it for good
        "workspace": (held["device"] >= 0) & by_library,
        "input": ~kept & (((phase == DATA) & (end_phase != DATA)) | outside),
        # made by forward or the loss and still held when backward begins; or made again for it within it
        "activation": (np.isin(phase, (FORWARD, LOSS)) & crosses & ~kept)
        | _recomputed(held, events),
        "temporary": freed & ~crosses,
    }
    codes = [KINDS.index(kind) for kind in rules]
    unknown = KINDS.index("unknown")
    kinds = np.select([begun & found for found in rules.values()], codes, unknown)
    return _as_their_like(held, kinds)


def _by_family(held: Allocations, family: str) -> np.ndarray:
    """Return what operators of a family asked for."""
    return held.where(op=operators_that(lambda op: op.family == family))


def under(held: Allocations, pattern: re.Pattern[str]) -> np.ndarray:
    """Return what was asked for within a row whose name matches: bool, shape (rows,)."""
    hits = rows_that(held.trace, pattern.search)
    return enclosing(held.trace["parent"], hits, held["begin_row"], inner=True) >= 0


def _recomputed(held: Allocations, events: MemoryEvents) -> np.ndarray:
    """Return what a forward call within the backward pass asked for, and is held for its own node."""
    trace = held.trace
    mine = np.flatnonzero((held["phase"] == BACKWARD) & (held["begin_row"] >= 0))
    maker = innermost_makers(trace, held["begin_row"][mine])
    again = (maker >= 0) & ~take(nodes(trace), maker, False)
    freed = np.minimum(held["end"][mine] // EVENT, len(events) - 1)
    found = np.zeros(len(held), bool)
    found[mine] = again & (
        events["time_ns"][freed] > take(trace["start_ns"] + trace["duration_ns"], maker)
    )
    return found


def _as_their_like(held: Allocations, kinds: np.ndarray) -> np.ndarray:
    """Give lifetimes that the recording cuts the kind of whole ones that began, or ended, in the same way.

    That is: of as many bytes, by the same operator of the same layer and phase, the nth of these in a step;
    of the step before where the recording ends too early, of the next where it began too late.
    """
    whole = (held["begin"] > BEFORE) & (held["end"] < AFTER)
    found = kinds.copy()
    for at, prefix, neighbor in (("begin", "", -1), ("end", "end_", 1)):
        order = held[at]
        rows = np.flatnonzero((order > BEFORE) & (order < AFTER) & (held[f"{prefix}step"] >= 0))
        rows = rows[np.argsort(order[rows], kind="stable")]
        by = held[f"{at}_row"][rows]
        keys = [held[name][rows] for name in ("rank", "device", "bytes", f"{prefix}phase")]
        keys += [take(held.trace[name], by) for name in ("op", "layer")]
        alike: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        steps = held[f"{prefix}step"][rows].tolist()
        of_kind = list(zip(*(key.tolist() for key in keys), strict=True))
        for row, step, key in zip(rows.tolist(), steps, of_kind, strict=True):
            alike[step, key].append(row)
        for (step, key), mine in alike.items():
            for row, other in zip(mine, alike.get((step + neighbor, key), []), strict=False):
                if whole[other] and not whole[row]:
                    found[row] = kinds[other]
    return found


FROM_DRIVER = (
    "Memory events are what the program took from the driver: with PyTorch's allocator what it reserved, in "
    "segments, not what tensors held."
)


def paired(trace: Trace, events: MemoryEvents, when: Moments | None = None) -> Allocations:
    """Return the allocations of a trace's memory events, all of kind `unknown`; `when` they happen, if known.

    What contradicts itself (an address allocated twice, a free of another size) is counted in the notes.
    Events without addresses are paired by size, the latest first.
    """
    begin, end, lost, notes = _pairs(events)
    if trace.metadata.get("memory_from") == "driver":
        notes.append(FROM_DRIVER)
    of = np.where(begin >= 0, begin, end)  # the event that tells whose and how much
    when = moments(trace, events) if when is None else when
    columns = {
        "rank": events["rank"][of],
        "device": events["device"][of],
        "bytes": np.abs(events["bytes"][of]),
        "begin": np.where(begin >= 0, begin * EVENT, BEFORE),
        "end": np.where(end >= 0, end * EVENT - lost * STEP, AFTER),
        "kind": np.full(len(of), KINDS.index("unknown")),
        "parameter": np.full(len(of), UNKNOWN),
    }
    for prefix, event in (("begin_", begin), ("end_", end)):
        columns[f"{prefix}row"] = take(when.row, event)
        for name, values in (("step", when.step), ("phase", when.phase)):
            columns[name if prefix == "begin_" else f"end_{name}"] = take(values, event)
    held = Allocations(trace, columns, notes)
    for rank, device in held.devices():
        _add_held_throughout(held, events, rank, device)
    return held


def _pairs(events: MemoryEvents) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Return the events that begin and end each allocation, whether its free is lost, and what is odd about them.

    An event is -1 where there is none. Of a lost free it is the one that shows it: the next allocation at the
    address. Without addresses a free ends what was allocated last of its size.
    """
    pairs: list[list[int]] = []
    held: dict[tuple[int, int, int], list[list[int]]] = defaultdict(list)
    resized = again = stale = 0
    columns = [events[name].tolist() for name in ("rank", "device", "address", "bytes")]
    for event, (rank, device, address, nbytes) in enumerate(zip(*columns, strict=True)):
        there = held[rank, device, address if address >= 0 else -2 - abs(nbytes)]
        if nbytes > 0:
            if there and address >= 0:
                there.pop()[1:] = event, 1
                again += 1
            there.append([event, UNKNOWN, 0])
            pairs.append(there[-1])
        elif nbytes and there:
            pair = there.pop()
            pair[1] = event
            resized += columns[-1][pair[0]] + nbytes != 0
        elif nbytes and device == HOST:
            stale += 1
        elif nbytes:  # of what nobody was seen to allocate
            pairs.append([UNKNOWN, event, 0])
    notes = []
    if resized:
        found = counted(resized, "free", "frees")
        notes.append(f"{found} of memory gave back another size than was allocated there.")
    if again:
        found = counted(again, "allocation", "allocations")
        notes.append(
            f"{found} at addresses in use: the frees between are missing and were assumed."
        )
    # torch records such a free on the CPU only of what an earlier recording of the process saw, and does not notice
    # what goes and comes between the two (`ProfiledCPUMemoryReporter`, c10/core/CPUAllocator.cpp).
    if stale:
        found = counted(stale, "free", "frees")
        was = "was" if stale == 1 else "were"
        notes.append(
            f"{found} on the CPU {was} of memory from an earlier recording of the "
            f"same process, whose size is not known for sure, and {was} left out."
        )
    begin, end, lost = np.array(pairs, np.int64).reshape(-1, 3).T
    return begin, end, lost, notes


def _add_held_throughout(held: Allocations, events: MemoryEvents, rank: int, device: int) -> None:
    """Add what a GPU's recorded totals hold at the start and no event names; note what contradicts them.

    The CPU's total is none: PyTorch counts there what it saw while it recorded, so that what came while it
    did and went later stays in it (`ProfiledCPUMemoryReporter`, c10/core/CPUAllocator.cpp).
    """
    own = on_device(events, rank, device)
    total = events["allocated_bytes"][own]
    start = (total - np.cumsum(events["bytes"][own]))[total >= 0]  # as each total has it
    if not len(start):
        return
    where = "the CPU" if device == HOST else f"device {device}"
    where += f" of rank {rank}" if rank else ""
    apart = np.abs(start - start[0])
    if odd := int((apart > 0).sum()):
        held.note(
            f"{counted(odd, 'recorded total', 'recorded totals')} of {where} "
            f"{'differs' if odd == 1 else 'differ'} from what the events add up to, by up to "
            f"{int(apart.max()):,} bytes."
        )
    before = on_device(held, rank, device) & (held["begin"] == BEFORE)
    rest = int(start[0] - held["bytes"][before].sum())
    if device == HOST:
        return
    if rest < 0:
        held.note(
            f"{where} freed {-rest:,} bytes more than its recorded totals say it held at the start: "
            "what is held here is more than was recorded."
        )
    if rest > 0:
        held.add_before(rank, device, [("unknown", rest, UNKNOWN)])


class RecordedMemory(Record):
    """The events of one device of a rank, and the most that it held.

    Attributes:
        rank: whose memory.
        device: `cpu`, or `cuda:` and the GPU's number.
        events: how many allocations and frees.
        peak_allocated_bytes: the largest recorded total; without totals, and on the CPU, whose total counts
            what the profiler saw alone, the most that the events add up to.
        peak_reserved_bytes: the largest recorded total of what the allocator had, None if not recorded.
        since_start: whether the peak counts from what was held when the recording began.

    """

    rank: int
    device: str
    events: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    since_start: bool


def recorded_memory(events: MemoryEvents) -> list[RecordedMemory]:
    """Return what was recorded of each device of each rank, GPUs first."""
    owners = set(zip(events["rank"].tolist(), (events["device"] == HOST).tolist(),
                     events["device"].tolist(), strict=True))  # fmt: skip
    found = []
    for rank, on_host, device in sorted(owners):
        own = on_device(events, rank, device)
        total = events["allocated_bytes"][own]
        reserved = events["reserved_bytes"][own]
        since_start = on_host or bool((total < 0).all())
        held = np.cumsum(events["bytes"][own])
        peak = int(held.max()) - min(int(held.min()), 0) if since_start else int(total.max())
        found.append(RecordedMemory(
            rank=rank, device="cpu" if on_host else f"cuda:{device}", events=int(own.sum()),
            peak_allocated_bytes=peak, since_start=since_start,
            peak_reserved_bytes=None if on_host or (reserved < 0).all() else int(reserved.max()),
        ))  # fmt: skip
    return found
