"""Readings: pauses of threads of which no row tells whether the thread worked or waited.

A pause that no rule explains is kept as the thread's own work: a floor under the step that no faster device
lowers. That is right of Python between two operators, and wrong of a thread that slept until the device was
done:

    thread   |launch|        pause: Python, or asleep?         |launch|
    device      |one long kernel .................................|another

Both replay alike where others work all through the pause, and predict differently. So such a pause has two
readings, kept as work and released, and intervals cover both. A pause through which nothing recorded works
has no cause in the recording: it keeps its length.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.calls import Coverage
from daydream.graph.draft import Draft
from daydream.graph.rules import (
    COVERED_SHARE,
    IDLE_SHARE,
    LONG_CALL_TIMES,
    PAUSE_NS,
    THREAD_CLOCK_NS,
    UNKNOWN_LAUNCH_NS,
    WOKEN_NS,
)
from daydream.graph.rules.recurrent_waits import off_cpu
from daydream.graph.rules.synchronization import is_sync
from daydream.graph.tables import CPU
from daydream.lazy import regex

COPY_CALL = regex(r"(?i)memcpy")
NATIVE = regex(r"^(aten|autograd|torch)::|Backward\d*$")


def read_pauses(draft: Draft) -> None:
    """Note the pauses that have two readings: those that are long for their thread, while others work.

    A thread that calls CUDA for 10 ms of 34 s has not been computing for the rest: all its pauses count.
    Where it was recorded who ran, a pause of a thread that ran has one reading.
    """
    trace = draft.trace
    recorded = (draft.kind == CPU) & (draft.row >= 0) & ~draft.waited
    calls = draft.of_rows("runtime")
    inner = recorded & calls & ~draft.named(is_sync)
    lost = draft.named(COPY_CALL.search) & ~np.isin(
        np.arange(draft.size), draft.launch
    )  # what it copied
    # What waits for a device by a call does so by one that was not recorded.
    waits = trace["parent"][draft.row[draft.waited & calls]]
    lacks = np.isin(draft.name, trace["name"][waits[waits >= 0]])
    # PyTorch's own operators: those that wait for a device call its runtime.
    native = np.array([NATIVE.search(text) is not None for text in trace.text("name")] + [False])
    ranges = recorded & ~calls & (lacks | ~native[trace["name"][draft.row]])
    cost = np.minimum(draft.usual_costs(np.flatnonzero(inner))[draft.name], UNKNOWN_LAUNCH_NS)
    inside = np.where(
        inner, np.maximum(draft.duration_ns - cost, 0), draft.duration_ns * ranges
    )  # at most
    gap = np.where(draft.gap_doubt, 0, draft.gap_ns)  # what has both readings already
    inside = np.where(draft.doubt, 0, inside)
    ranks = draft.rank
    off = off_cpu(draft)
    for lane in draft.threads():
        tasks = draft.on(lane)[:-1]  # nothing follows the last one
        pause = gap[tasks] + inside[tasks]
        end = draft.start_ns[tasks] + draft.duration_ns[tasks] + draft.gap_ns[tasks]
        paused = np.flatnonzero(pause >= PAUSE_NS)
        others = np.flatnonzero((ranks == draft.lanes[lane].rank) & (draft.lane != lane))
        if not len(paused) or not len(others):
            continue
        length = pause[paused]
        end = end[paused]
        worked = Coverage(
            draft.start_ns[others], draft.start_ns[others] + draft.duration_ns[others]
        )
        # Only another thread's call can hold the driver, also while it waits. A copy waits for the device.
        rows = draft.row[others[calls[others]]]
        held = Coverage(
            trace["start_ns"][rows], trace["start_ns"][rows] + trace["duration_ns"][rows]
        )
        in_call = (inner & (inside > gap))[tasks[paused]]
        times = end - length, end
        by = np.where(in_call & ~lost[tasks[paused]], held.within(*times), worked.within(*times))
        doubtful = by >= COVERED_SHARE * length
        if lane in off:  # a call may wait on the CPU
            doubtful &= in_call | (2 * off[lane](*times) >= length)
        if length[doubtful].sum() <= IDLE_SHARE * (end[-1] - draft.start_ns[tasks[0]]):
            doubtful &= length >= LONG_CALL_TIMES * np.median(pause[pause > 0])  # else its own time
        at = tasks[paused[doubtful]]
        draft.gap_doubt[at] = gap[at] > 0
        draft.doubt[at] = inside[at] / np.maximum(draft.duration_ns[at], 1)
        _order(draft, lane, others)


def _order(draft: Draft, lane: int, others: np.ndarray) -> None:
    """Let a thread that may have waited go on behind the thread that may have woken it, else the last."""
    tasks = draft.on(lane)
    pause = (
        draft.doubt[tasks] * draft.duration_ns[tasks] + draft.gap_doubt[tasks] * draft.gap_ns[tasks]
    )
    paused = np.flatnonzero(pause[:-1] >= PAUSE_NS)
    for work, reach in ((others[draft.kind[others] == CPU], WOKEN_NS), (others, np.inf)):
        end = draft.start_ns[tasks[paused + 1]]
        source = np.append(-1, work[np.argsort(draft.end_ns[work], kind="stable")])
        source = source[
            np.searchsorted(draft.end_ns[source[1:]], end - THREAD_CLOCK_NS, side="right")
        ]
        delay = end - draft.end_ns[source]
        known = (source >= 0) & (delay < np.minimum(pause[paused], reach))
        draft.doubtful.add(src=source[known], dst=tasks[paused + 1][known], latency_ns=delay[known])
        paused = paused[~known]
