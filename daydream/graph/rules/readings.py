"""Readings: pauses of threads of which no row tells whether the thread worked or waited.

A pause that no rule explains is the thread's own work: a floor under the step that no faster device lowers.
That is right of Python between two operators, and wrong of a thread that slept until the device was done:

    thread   |launch|        pause: Python, or asleep?         |launch|
    device      |one long kernel .................................|another

Both replay alike where others work all through the pause, and predict differently. So such a pause has two
readings, kept as work and released, and answers cover both. A pause through which nothing recorded works has
no cause in the recording: it keeps its length.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.draft import Draft
from daydream.graph.plan import Cause
from daydream.graph.rules.synchronization import is_sync
from daydream.graph.rules.thresholds import (
    COVERED_SHARE,
    IDLE_SHARE,
    LONG_CALL_TIMES,
    PAUSE_NS,
    THREAD_CLOCK_NS,
    UNKNOWN_LAUNCH_NS,
)
from daydream.graph.tables import CPU


def read_pauses(draft: Draft) -> None:
    """Note the pauses that have two readings, and release those of threads that paused most of their time.

    A thread that calls CUDA for 10 ms of 34 s has not been computing for the rest. What goes on behind a
    released pause follows the last that others ended before.
    """
    trace, recorded = draft.trace, (draft.kind == CPU) & (draft.row >= 0) & ~draft.waited
    calls = recorded & trace.is_kind("runtime")[draft.row] & ~draft.named(is_sync)
    ranges = recorded & trace.is_kind("annotation")[draft.row]
    cost = np.minimum(draft.usual_costs(np.flatnonzero(calls))[draft.name], UNKNOWN_LAUNCH_NS)
    inside = np.where(calls, np.maximum(draft.duration_ns - cost, 0), draft.duration_ns * ranges)  # at most
    rank = np.array([lane.rank for lane in draft.lanes])[draft.lane]
    whole = np.where(draft.row >= 0, trace["duration_ns"][draft.row], 0)  # of calls, with what they wait
    for lane in draft.threads():
        tasks = draft.on(lane)[:-1]  # nothing follows the last one
        pause = draft.gap_ns[tasks] + inside[tasks]
        end = draft.start_ns[tasks] + draft.duration_ns[tasks] + draft.gap_ns[tasks]
        paused = np.flatnonzero(
            pause >= max(PAUSE_NS, LONG_CALL_TIMES * np.median(np.append(pause[pause > 0], 0)))
        )
        others = np.flatnonzero((rank == draft.lanes[lane].rank) & (draft.lane != lane))
        if not len(paused) or not len(others):
            continue
        working = _Working(draft.start_ns[others], draft.duration_ns[others])
        # Only another thread's call can hold the driver.
        holding = others[trace.is_kind("runtime")[draft.row[others]] & (draft.row[others] >= 0)]
        holders = _Working(draft.start_ns[holding], whole[holding])
        begin, done = end[paused] - pause[paused], end[paused]
        by = np.where(calls[tasks[paused]], holders.between(begin, done), working.between(begin, done))
        paused = paused[by >= COVERED_SHARE * pause[paused]]
        asleep = pause[paused].sum() > IDLE_SHARE * (end[-1] - draft.start_ns[tasks[0]])
        at, length = tasks[paused], pause[paused]
        draft.doubts.add(task=at, ns=length if asleep else -length)
        if asleep:
            draft.duration_ns[at] -= inside[at]
            draft.gap_ns[at] = 0
            cause, following = others[working.ended_last(end[paused])], draft.on(lane)[paused + 1]
            orderly = draft.order[cause] < draft.order[following]
            draft.link(cause[orderly], following[orderly], cause=Cause.HANDOFF)


class _Working:
    """When some of several things worked, as recorded: their starts and durations in ns."""

    def __init__(self, start: np.ndarray, duration: np.ndarray) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], (start + duration)[order]
        until = np.maximum.accumulate(end)
        new = until - np.maximum(start, np.append(start[:1], until[:-1]))
        self.start, self.until, self.so_far = start, until, np.cumsum(np.maximum(new, 0))
        by_end = np.argsort(end, kind="stable")
        self.end, self.by_end = end[by_end], order[by_end]

    def between(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return how long any of them worked between two times, in ns."""
        return self._until(end) - self._until(begin)

    def ended_last(self, time: np.ndarray) -> np.ndarray:
        """Return which ended last before each time, or first of all."""
        return self.by_end[np.maximum(np.searchsorted(self.end, time + THREAD_CLOCK_NS, side="right") - 1, 0)]

    def _until(self, time: np.ndarray) -> np.ndarray:
        place = np.searchsorted(self.start, time, side="right") - 1
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        return np.where(place >= 0, self.so_far[place] - np.maximum(self.until[place] - time, 0), 0)
