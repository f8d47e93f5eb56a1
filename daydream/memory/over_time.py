"""How much each device holds, from moment to moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.memory.lifetimes import allocations
from daydream.trace.memory_events import HOST
from daydream.trace.trace import Trace


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
        event = np.minimum(np.ceil(places[1:]).astype(np.int64), len(time) - 1)
        first = int(time[event[0]]) if len(event) else 0
        name = "cpu" if device == HOST else f"cuda:{device}"
        found.append(HeldOverTime(rank, name, np.append(first, time[event]), totals))
    return found
