"""What recorded memory events say against each other, counted: no total may be wrong in silence."""

from __future__ import annotations

import numpy as np

from daydream.memory.allocations import on_device
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents

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
    keys = [events[name][first] for name in ("address", "device", "rank")]
    order = np.lexsort((first, *keys))
    first, last = first[order], last[order]
    place = first_of_each([key[order] for key in keys])
    above = np.cumsum(place) * (len(events) + 1)  # keeps the places apart
    held_until = np.maximum.accumulate(above + last)
    odd = int((above[1:] + first[1:] < held_until[:-1]).sum())
    if not odd:
        return []
    were = "was at an address" if odd == 1 else "were at addresses"
    found = counted(odd, "allocation", "allocations")
    missing = "frees are missing, and less may be held than the events add up to"
    return [f"{found} {were} that had not been freed: {missing}."]


def first_of_each(keys: list[np.ndarray]) -> np.ndarray:
    """Return which elements differ from the one before in some key: bool, shape (n,)."""
    found = np.zeros(len(keys[0]), bool)
    found[:1] = True
    for key in keys:
        found[1:] |= key[1:] != key[:-1]
    return found


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
