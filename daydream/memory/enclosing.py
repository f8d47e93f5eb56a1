"""In which row of the trace an instant lies: the innermost host row of its thread at that time."""

from __future__ import annotations

import numpy as np

from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace


def enclosing_rows(trace: Trace, events: MemoryEvents) -> np.ndarray:
    """Return the innermost host row around each event, -1 if none: int64, shape (rows,)."""
    host = np.flatnonzero(trace.is_kind("operator", "annotation", "runtime"))
    found = np.full(len(events), UNKNOWN, np.int64)
    if not len(host) or not len(events):
        return found
    lane_of_row, lane_of_event = _lanes(trace, host, events)
    start = trace["start_ns"]
    end = start + trace["duration_ns"]
    # Rows of a lane in order of start, outer ones first; the last that has begun is the innermost or done.
    order = np.lexsort((host, start[host], lane_of_row))
    rows, lanes = host[order], lane_of_row[order]
    time = events["time_ns"]
    for lane in np.unique(lane_of_event[lane_of_event >= 0]).tolist():
        low, high = np.searchsorted(lanes, [lane, lane + 1])
        mine = np.flatnonzero(lane_of_event == lane)
        at = np.searchsorted(start[rows[low:high]], time[mine], side="right") - 1
        row = np.where(at >= 0, rows[low:high][np.maximum(at, 0)], UNKNOWN)
        while (late := (row >= 0) & (end[row] < time[mine])).any():
            row[late] = trace["parent"][row[late]]
        found[mine] = row
    return found


def _lanes(trace: Trace, host: np.ndarray, events: MemoryEvents) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for the thread of each row and of each event, -1 for a thread without rows."""
    keys = [np.maximum(trace["rank"][host], 0), trace["pid"][host], trace["tid"][host]]
    threads, lane = np.unique(np.stack(keys, axis=1).astype(np.int64), axis=0, return_inverse=True)
    number = {tuple(thread): place for place, thread in enumerate(threads.tolist())}
    of_events = zip(events["rank"].tolist(), events["pid"].tolist(), events["tid"].tolist(), strict=True)
    return lane.reshape(-1), np.array([number.get(each, UNKNOWN) for each in of_events], np.int64)
