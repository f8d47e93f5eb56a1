"""Which row of the trace an instant lies in: the innermost host row of its thread at that time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace


def enclosing_rows(trace: Trace, events: MemoryEvents) -> np.ndarray:
    """Return the innermost host row around each event, -1 if none: int64, shape (events,)."""
    host = trace.is_kind("operator", "annotation", "runtime")
    found = rows_before(trace, events, host)
    late = np.flatnonzero(found >= 0)
    end, parent = trace["start_ns"] + trace["duration_ns"], np.asarray(trace["parent"], np.int64)
    time = events["time_ns"]
    while (late := late[end[found[late]] < time[late]]).size:  # done by then: its parent may not be
        found[late] = parent[found[late]]
        late = late[found[late] >= 0]
    return found


def rows_before(trace: Trace, events: MemoryEvents, rows: np.ndarray) -> np.ndarray:
    """Return of these rows (bool) the last of each event's thread that has begun by then, -1 if none.

    Of rows that begin at once the innermost. The answer is int64, of shape (events,).
    """
    found = np.full(len(events), UNKNOWN, np.int64)
    start, time = trace["start_ns"], events["time_ns"]
    for mine, candidates in _threads(trace, events, np.flatnonzero(rows)):
        at = np.searchsorted(start[candidates], time[mine], side="right") - 1
        found[mine] = np.where(at >= 0, candidates[np.maximum(at, 0)], UNKNOWN)
    return found


def _threads(trace: Trace, events: MemoryEvents, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each thread with both its events and its rows, these in order of start, outer ones first."""
    if not len(rows) or not len(events):
        return
    keys = [np.maximum(trace["rank"][rows], 0), trace["pid"][rows], trace["tid"][rows]]
    threads, lane = np.unique(np.stack(keys, axis=1).astype(np.int64), axis=0, return_inverse=True)
    lane = lane.reshape(-1)
    number = {tuple(thread): place for place, thread in enumerate(threads.tolist())}
    of_events = zip(events["rank"].tolist(), events["pid"].tolist(), events["tid"].tolist(), strict=True)
    lane_of_event = np.array([number.get(each, UNKNOWN) for each in of_events], np.int64)
    order = np.lexsort((rows, trace["start_ns"][rows], lane))
    for one in np.unique(lane_of_event[lane_of_event >= 0]).tolist():
        low, high = np.searchsorted(lane[order], [one, one + 1])
        yield np.flatnonzero(lane_of_event == one), rows[order[low:high]]
