"""The memory events of a recording, as they go into its trace: of one rank, and judged by its rows."""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.text import counted
from daydream.trace.lost_frees import with_lost_frees
from daydream.trace.memory_events import MemoryEvents, blocks_in_use


def memory_of(recording: Recording) -> MemoryEvents | None:
    """Return the recording's memory events with their rank and lost frees, None if there are none.

    A note of the recording counts those that lie outside the time of its rows: nothing tells their cause.
    """
    memory = recording.memory
    if memory is None:
        return None
    if "rank" not in recording.columns:
        memory = memory.changed(rank=np.full(len(memory), int(recording.metadata.get("rank", 0))))
    told = recording.metadata.get("held_before", {})
    held = {int(device): blocks_in_use(pool.get("segments", ())) for device, pool in told.items()}
    memory = with_lost_frees(memory, held)
    start = np.asarray(recording["start_ns"], np.int64)
    first, last = int(start.min(initial=0)), int((start + recording["duration_ns"]).max(initial=0))
    outside = int(((memory["time_ns"] < first) | (memory["time_ns"] > last)).sum())
    if outside:
        lie = "lies" if outside == 1 else "lie"
        recording.note(
            f"{counted(outside, 'memory event', 'memory events')} {lie} outside the time of all other rows."
        )
    return memory
