"""The memory events of a recording, as they go into its trace: of one rank, and judged by its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.text import counted
from daydream.trace.lost_frees import with_lost_frees
from daydream.trace.memory_events import MemoryEvents


def memory_of(recording: Recording) -> MemoryEvents | None:
    """Return the recording's memory events with their rank and lost frees, None if there are none.

    A note of the recording counts those that lie outside the time of its rows: nothing tells their cause.
    """
    memory = recording.memory
    if memory is None:
        return None
    if "rank" not in recording.columns:
        memory = memory.changed(rank=np.full(len(memory), int(recording.metadata.get("rank", 0))))
    memory = with_lost_frees(memory, _held_before(recording.metadata.get("held_before", {})))
    start = np.asarray(recording["start_ns"], np.int64)
    first, last = int(start.min(initial=0)), int((start + recording["duration_ns"]).max(initial=0))
    outside = int(((memory["time_ns"] < first) | (memory["time_ns"] > last)).sum())
    if outside:
        lie = "lies" if outside == 1 else "lie"
        recording.note(
            f"{counted(outside, 'memory event', 'memory events')} {lie} outside the time of all other rows."
        )
    return memory


def _held_before(told: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[int, int]]:
    """Return the bytes by address that each device held, from the allocator's segments in the metadata."""
    held: dict[int, dict[int, int]] = {}
    for device, pool in told.items():
        blocks = held.setdefault(int(device), {})
        for segment in pool.get("segments", ()):
            address = int(segment["address"])
            for size, asked in segment["blocks"]:
                if asked is not None:
                    blocks[address] = int(size)
                address += int(size)
    return held
