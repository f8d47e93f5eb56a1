"""From recorded events to allocations: which free ends which allocation, and what was held before.

An allocation and a free at one address of one device belong together. A free of what was never seen
allocated ends something that was held before the recording. Where the allocator's totals are recorded,
what they hold beyond that was there before and stays. Events that contradict each other are counted: no total
may be wrong in silence.

And how much a recording itself says was held: what needs no pairing.
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import distinct_rows, run_starts
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    EVENT,
    KINDS,
    Allocations,
    on_device,
)
from daydream.memory.enclosing import Moments, moments, take
from daydream.results import Record
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

Pairs = tuple[np.ndarray, np.ndarray, list[str]]


def trusted(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> Pairs:
    """Return the pairs of an allocation and its free that can be believed, and sentences about the odd ones.

    `begin` and `end` are numbers of events, -1 where there is none: int64, shape (pairs,).
    """
    notes = [*_sizes(events, begin, end), *_twice(events, begin, end), *_totals(events, begin, end)]
    # Such a free on the CPU is recorded only of what an earlier recording of the process saw: torch does not
    # notice what goes and comes between the two (`ProfiledCPUMemoryReporter`, c10/core/CPUAllocator.cpp).
    stale = (begin < 0) & (events["device"][end] == HOST)
    if found := int(stale.sum()):
        was = "was" if found == 1 else "were"
        notes.append(
            f"{counted(found, 'free', 'frees')} on the CPU {was} of memory from an earlier recording of the "
            f"same process, whose size is not known for sure, and {was} left out."
        )
    return begin[~stale], end[~stale], notes


def _sizes(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    both = (begin >= 0) & (end >= 0)
    odd = int((events["bytes"][begin[both]] + events["bytes"][end[both]] != 0).sum())
    if not odd:
        return []
    return [
        f"{counted(odd, 'free', 'frees')} of memory gave back another size than was allocated there."
    ]


def _twice(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    """Say how many allocations are at an address that is held: the free between is missing."""
    known = (begin >= 0) & (events["address"][begin] >= 0)
    first, last = begin[known], np.where(end[known] >= 0, end[known], len(events))
    _, place = distinct_rows([events[name][first] for name in ("address", "device", "rank")])
    order = np.lexsort((first, place))
    first, last = first[order], last[order]
    above = place[order] * (len(events) + 1)  # keeps the places apart
    held_until = np.maximum.accumulate(above + last)
    odd = int((above[1:] + first[1:] < held_until[:-1]).sum())
    if not odd:
        return []
    were = "was at an address" if odd == 1 else "were at addresses"
    found = counted(odd, "allocation", "allocations")
    missing = "frees are missing, and less may be held than the events add up to"
    return [f"{found} {were} that had not been freed: {missing}."]


def _totals(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    """Say where recorded totals contradict the running sum of the events."""
    notes = []
    owners = sorted(set(zip(events["rank"].tolist(), events["device"].tolist(), strict=True)))
    freed = np.abs(events["bytes"][end[begin < 0]])
    for rank, device in owners:
        own = on_device(events, rank, device)
        total, held = events["allocated_bytes"][own], np.cumsum(events["bytes"][own])
        before = (total - held)[total >= 0]  # what each total says was held at the start
        if not len(before):
            continue
        where = ("the CPU" if device == HOST else f"device {device}") + (
            f" of rank {rank}" if rank else ""
        )
        apart = np.abs(before - before[0])
        if odd := int((apart > 0).sum()):
            notes.append(
                f"{counted(odd, 'recorded total', 'recorded totals')} of {where} "
                f"{'differs' if odd == 1 else 'differ'} from what the events add up to, by up to "
                f"{int(apart.max()):,} bytes."
            )
        lacking = int(freed[own[end[begin < 0]]].sum()) - int(before[0])
        if lacking > 0 and device != HOST:
            notes.append(
                f"{where} freed {lacking:,} bytes more than its recorded totals say it held at the start: "
                "what is held here is more than was recorded."
            )
    return notes


FROM_DRIVER = (
    "Memory events are what the program took from the driver: with PyTorch's allocator what it reserved, in "
    "segments, not what tensors held."
)


def paired(trace: Trace, events: MemoryEvents, when: Moments | None = None) -> Allocations:
    """Return the allocations of a trace's memory events, all of kind `unknown`; `when` they happen, if known.

    What contradicts itself (an address allocated twice, a free of another size) is counted in the notes.
    Events without addresses are paired by size, the latest first.
    """
    begin, end, notes = trusted(events, *_pairs(events))
    if trace.metadata.get("memory_from") == "driver":
        notes.append(FROM_DRIVER)
    of = np.where(begin >= 0, begin, end)  # the event that tells whose and how much
    when = moments(trace, events) if when is None else when
    columns = {
        "rank": events["rank"][of],
        "device": events["device"][of],
        "bytes": np.abs(events["bytes"][of]),
        "begin": np.where(begin >= 0, begin * EVENT, BEFORE),
        "end": np.where(end >= 0, end * EVENT, AFTER),
        "kind": np.full(len(of), KINDS.index("unknown")),
        "parameter": np.full(len(of), UNKNOWN),
    }
    for at, event in (("begin", begin), ("end", end)):
        columns[f"{at}_row"] = take(when.row, event)  # the last: not recorded
    for names, values in ((("step", "end_step"), when.step), (("phase", "end_phase"), when.phase)):
        for name, event in zip(names, (begin, end), strict=True):
            columns[name] = take(values, event)
    held = _held_throughout(events, columns)
    columns = {name: np.concatenate([column, held[name]]) for name, column in columns.items()}
    return Allocations(trace, columns, notes)


def _pairs(events: MemoryEvents) -> tuple[np.ndarray, np.ndarray]:
    """Return the events that begin and end each allocation, -1 where there is none.

    How many are open at an address rises and falls by one; so an allocation and the next free at the same
    height belong together, like brackets.
    """
    nbytes, address = events["bytes"], events["address"]
    change = np.sign(nbytes)
    event = np.flatnonzero(change)
    where = np.where(address >= 0, address, -2 - np.abs(nbytes))[
        event
    ]  # without an address: by size
    _, place = distinct_rows([events["rank"][event], events["device"][event], where])
    order = np.lexsort((event, place))
    event, place, step = event[order], place[order], change[event[order]]
    height = np.cumsum(step) + (step < 0)  # of a free: the height it comes from
    by_height = np.lexsort((event, height, place))
    event, step = event[by_height], step[by_height]
    first = run_starts(place[by_height]) | run_starts(height[by_height])
    opens = step > 0
    closed = opens & np.append((step < 0) & ~first, False)[1:]
    begins = np.where(opens, event, UNKNOWN)
    ends = np.where(closed, np.append(event, UNKNOWN)[1:], UNKNOWN)
    alone = ~opens & ~np.append(False, closed)[:-1]  # a free of what nobody was seen to allocate
    ends[alone] = event[alone]
    kept = opens | alone
    return begins[kept], ends[kept]


def _held_throughout(events: MemoryEvents, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the recorded totals hold at the start and no event names: a row a GPU.

    The CPU's total is none: PyTorch counts there what it saw while it recorded, so that what came while it
    did and went later stays in it (`ProfiledCPUMemoryReporter`, c10/core/CPUAllocator.cpp).
    """
    found: dict[str, list[int]] = {name: [] for name in columns}
    pairs = sorted(set(zip(events["rank"].tolist(), events["device"].tolist(), strict=True)))
    for rank, device in pairs:
        if device == HOST:
            continue
        own = np.flatnonzero(on_device(events, rank, device))
        total = events["allocated_bytes"][own]
        known = np.flatnonzero(total >= 0)
        if not len(known):
            continue
        first = known[0]
        start = int(total[first]) - int(events["bytes"][own][: first + 1].sum())
        mine = (
            (columns["rank"] == rank) & (columns["device"] == device) & (columns["begin"] == BEFORE)
        )
        rest = start - int(columns["bytes"][mine].sum())
        if rest > 0:
            row = {
                **dict.fromkeys(columns, UNKNOWN), "rank": rank, "device": device, "bytes": rest,
                "begin": BEFORE, "end": AFTER, "kind": KINDS.index("unknown"),
            }  # fmt: skip
            for name, value in row.items():
                found[name].append(value)
    return {name: np.array(values, columns[name].dtype) for name, values in found.items()}


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
        total, reserved = events["allocated_bytes"][own], events["reserved_bytes"][own]
        since_start = on_host or bool((total < 0).all())
        held = np.cumsum(events["bytes"][own])
        peak = int(held.max()) - min(int(held.min()), 0) if since_start else int(total.max())
        found.append(RecordedMemory(
            rank=rank, device="cpu" if on_host else f"cuda:{device}", events=int(own.sum()),
            peak_allocated_bytes=peak, since_start=since_start,
            peak_reserved_bytes=None if on_host or (reserved < 0).all() else int(reserved.max()),
        ))  # fmt: skip
    return found
