"""How much memory a recording itself says was held: what needs no pairing and no replay."""

from __future__ import annotations

import numpy as np

from daydream.memory.allocations import on_device
from daydream.results import Record
from daydream.trace.memory_events import HOST, MemoryEvents


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
