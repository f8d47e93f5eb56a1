"""Rows of the trace: those whose text fits, those around others, those that an instant lies in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace


def rows_that(trace: Trace, fits: Callable[[str], object], column: str = "name") -> np.ndarray:
    """Return which rows have a text that fits: bool, shape (rows of the trace,)."""
    hits = np.array([*(bool(fits(text)) for text in trace.text(column)), False])
    return np.asarray(hits[trace[column]])


def innermost(trace: Trace, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the first of some rows (bool) from each place outwards, -1 for none: int64, shape (places,)."""
    parent, up = np.asarray(trace["parent"], np.int64), places.copy()
    while (climbing := np.flatnonzero((up >= 0) & ~np.append(rows, False)[up])).size:
        up[climbing] = parent[up[climbing]]
    return up


def outermost(trace: Trace, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the last of some rows (bool) from each place outwards, -1 for none: int64, shape (places,)."""
    parent, up = np.asarray(trace["parent"], np.int64), places
    found = np.full(len(places), UNKNOWN, np.int64)
    while ((up := innermost(trace, up, rows)) >= 0).any():
        found = np.where(up >= 0, up, found)
        up = np.append(parent, UNKNOWN)[up]
    return found


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


def _threads(
    trace: Trace, events: MemoryEvents, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each thread with both its events and its rows, these in order of start, outer ones first."""
    if not len(rows) or not len(events):
        return
    rank = np.maximum(trace["rank"], 0)
    pairs = (
        (rank[rows], events["rank"]),
        (trace["pid"][rows], events["pid"]),
        (trace["tid"][rows], events["tid"]),
    )
    lane, lane_of_event = np.zeros(len(rows), np.int64), np.zeros(len(events), np.int64)
    for of_rows, of_events in pairs:  # a number for each thread, the same on both sides
        values = np.unique(of_rows)
        lane = lane * len(values) + np.searchsorted(values, of_rows)
        place = np.minimum(np.searchsorted(values, of_events), len(values) - 1)
        here = (values[place] == of_events) & (lane_of_event >= 0)
        lane_of_event = np.where(here, lane_of_event * len(values) + place, UNKNOWN)
    order = np.lexsort((rows, trace["start_ns"][rows], lane))
    for one in np.unique(lane_of_event[lane_of_event >= 0]).tolist():
        low, high = np.searchsorted(lane[order], [one, one + 1])
        if low < high:  # each of rank, pid and tid may be known, and the three never together
            yield np.flatnonzero(lane_of_event == one), rows[order[low:high]]
