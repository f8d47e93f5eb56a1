"""Rule 1, thread order: CPU time cut into tasks, every nanosecond owned by the innermost range.

Operators nest, so a thread's time is cut wherever a range begins or ends, and
each piece belongs to the innermost one: removing an operator removes its CPU
time and no other. Time in no range is the gap of the task before it. Runtime
calls are pieces like the others. Tasks, gaps and waits of a thread add up to
its span exactly.
"""

from __future__ import annotations

import numpy as np

from daydream import compiled
from daydream.collect.derive.host_collectives import inside_collectives
from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import ORDER_STEP, Lane
from daydream.graph.plan import stable_order
from daydream.trace.schema import DEVICE_KINDS, HOST_KINDS

ADDED = 16  # rules add one task to so many, seldom more
ORDER_PLACES = 8  # program-order keys per CPU task: its device work and its return come in between


def order_threads(builder: GraphBuilder) -> None:
    """Add the CPU tasks: lanes, durations, gaps, and program order by recorded start."""
    trace, graph = builder.trace, builder.graph
    rows = trace.is_kind(*HOST_KINDS[:3]) & ~builder.step_markers()
    rows[inside_collectives(trace)] = False  # what a pool thread does in a collective is part of it
    rows = np.flatnonzero(rows)
    if not len(rows):
        return
    thread, threads = builder.threads(rows)
    cut = _cut(builder, rows, thread) or _stretches(builder, rows, thread)
    owner, lane, turn, start, end, gap = cut
    first_lane = len(graph.lanes)
    for rank, pid, tid in threads:
        several = len({r for r, _, _ in threads}) > 1
        graph.add_lane(Lane(f"{f'rank {rank} ' if several else ''}thread {tid}", rank))
        builder.thread_ids.append((rank, pid, tid))
    expected = len(owner) + int(trace.is_kind(*DEVICE_KINDS).sum())
    graph.columns.reserve(expected + expected // ADDED)
    ids = graph.add(
        len(owner),
        lane=lane + first_lane,
        kind=0,
        row=owner,
        duration_ns=end - start,
        gap_ns=gap,
        order=start * ORDER_STEP + np.minimum(turn * ORDER_PLACES, ORDER_STEP - ORDER_PLACES),
        measured_start_ns=start,
        **builder.texts_of(owner),
    )
    builder.extend(end)
    first = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
    graph.columns["release_ns"][ids[first]] = start[first]
    builder.task_of_row = np.full(len(trace), -1, np.int64)
    builder.task_of_row[owner[::-1].astype(np.intp)] = ids[::-1]  # the first piece of a call is the call


Stretches = tuple[np.ndarray, ...]  # owning row, thread, turn at its start, start, end and gap behind it


def _cut(builder: GraphBuilder, rows: np.ndarray, thread: np.ndarray) -> Stretches | None:
    """Return what `_stretches` does, from the compiled loop; None without it, or for rows it cannot cut."""
    engine, trace = compiled.engine(), builder.trace
    if engine is None:
        return None
    order = stable_order(thread, int(thread.max()) + 1)
    given = rows[order].astype(np.int32), thread[order].astype(np.int32)
    types = {"start_ns": np.int64, "duration_ns": np.int64, "parent": np.int32}
    columns = [np.require(trace[name], dtype, ("C", "A")) for name, dtype in types.items()]
    room = 2 * len(rows)
    found = [np.empty(room, np.int32) for _ in range(3)] + [np.empty(room, np.int64) for _ in range(3)]
    count = engine.cut(*given, *columns, np.empty(len(rows), np.int32), *found)
    return tuple(values[:count] for values in found) if count >= 0 else None


def _stretches(builder: GraphBuilder, rows: np.ndarray, thread: np.ndarray) -> Stretches:
    """Return the stretches of CPU time that a row owns, by thread and time: arrays of equal length.

    Two of a thread can start together, the first lasting no time: the turn counts them from 0.
    """
    owner, start, end, lane = _pieces(builder, rows, thread)
    idle = owner < 0
    previous = np.maximum.accumulate(np.where(idle, -1, np.arange(len(owner))))
    gap = np.zeros(len(owner), np.int64)
    np.add.at(gap, previous[idle], (end - start)[idle])
    owner, lane, start, end, gap = (values[~idle] for values in (owner, lane, start, end, gap))
    index = np.arange(len(start))
    same = np.append(False, (start[1:] == start[:-1]) & (lane[1:] == lane[:-1]))
    return owner, lane, index - np.maximum.accumulate(np.where(same, 0, index)), start, end, gap


def _pieces(
    builder: GraphBuilder, rows: np.ndarray, thread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (owning row or -1, start, end, thread) of every piece, by thread and time."""
    trace = builder.trace
    start = trace["start_ns"][rows].astype(np.int64)
    duration = trace["duration_ns"][rows].astype(np.int64)
    parent = trace["parent"][rows].astype(np.int32)
    depth = builder.depth(rows)
    rows, thread = rows.astype(np.int32), thread.astype(np.int32)
    point = duration == 0
    long = ~point

    # One event where a range begins, one where it ends; at one time ends come first,
    # inner before outer, then instants, then beginnings, outer before inner.
    time = np.concatenate([start[long], (start + duration)[long], start[point]])
    what = np.repeat(np.array([2, 0, 1], np.int8), [long.sum(), long.sum(), point.sum()])
    tie = np.concatenate([depth[long], -depth[long], np.zeros(point.sum(), depth.dtype)])
    lane = np.concatenate([thread[long], thread[long], thread[point]])
    inner = np.concatenate([rows[long], parent[long], np.full(point.sum(), -1, np.int32)])
    self_row = np.concatenate([rows[long], rows[long], rows[point]])
    order = _in_order(lane, time, what, tie)
    time, what, lane, inner, self_row = (a[order] for a in (time, what, lane, inner, self_row))

    # The innermost range after each event; an instant changes nothing.
    count = len(time)
    index = np.arange(count)
    new_thread = np.append(True, lane[1:] != lane[:-1])
    settled = np.maximum.accumulate(np.where((what != 1) | new_thread, index, 0))
    inside = np.where(what[settled] == 1, -1, inner[settled])
    ends = np.append(time[1:], 0)
    last = np.append(lane[1:] != lane[:-1], True)
    piece = (ends > time) & ~last

    # An instant comes before the piece behind it.
    kept = np.flatnonzero(np.stack([what == 1, piece], axis=1).reshape(-1))
    at, behind = kept >> 1, (kept & 1).astype(bool)
    owner = np.where(behind, inside[at], self_row[at])
    return owner, time[at], np.where(behind, ends[at], time[at]), lane[at]


def _in_order(lane: np.ndarray, time: np.ndarray, what: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Return the order by lane, time, what and tie, equal ones as given; what is from 0 to 2."""
    least, most = int(tie.min(initial=0)), int(tie.max(initial=0))
    width = 3 * (most - least + 1)
    first = int(time.min(initial=0))
    if (int(time.max(initial=0)) - first + 1) * width >= 1 << 63:
        return np.lexsort((tie, what, time, lane))
    # All but the lane in one number: beginnings stand in order as they are, so there is little to sort.
    key = (time - first) * width + what * (most - least + 1) + (tie - least)
    order = np.argsort(key, kind="stable")
    return order[stable_order(lane[order], int(lane.max(initial=0)) + 1)]
