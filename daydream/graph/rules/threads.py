"""Threads: CPU time cut into tasks, every nanosecond owned by the innermost range.

Operators nest, so a thread's time is cut wherever a range begins or ends, and
each piece belongs to the innermost one: removing an operator removes its CPU
time and no other. Time in no range is the gap of the task before it. Runtime
calls are pieces like the others. Tasks, gaps and waits of a thread add up to
its span exactly.
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import combinations, run_starts, turns, unique
from daydream.collect.derive.collectives import inside_collectives
from daydream.graph.draft import Draft
from daydream.graph.plan import Cause, stable_order
from daydream.graph.tables import ORDER_STEP, Lane
from daydream.trace.schema import HOST_KINDS

ORDER_PLACES = 8  # program-order keys per CPU task: its device work and its return come in between


def order_threads(draft: Draft) -> None:
    """Add the CPU tasks: lanes, durations, gaps, and program order by recorded start."""
    trace = draft.trace
    markers = [
        code for code, name in enumerate(trace.text("name")) if name.startswith("ProfilerStep")
    ]
    work = trace.is_kind(*HOST_KINDS[:3]) & ~(
        np.isin(trace["name"], markers) & trace.is_kind("annotation")
    )
    work[inside_collectives(trace)] = False  # what a pool thread does in a collective is part of it
    rows = np.flatnonzero(work)
    if not len(rows):
        return
    rank = np.maximum(trace["rank"][rows], 0)
    thread, threads = combinations([rank, trace["pid"][rows], trace["tid"][rows]])
    draft.thread_ids = [(rank, pid, tid) for rank, pid, tid in threads]
    several = len({rank for rank, _, _ in threads}) > 1
    for number, _, tid in threads:
        draft.add_lane(Lane(f"{f'rank {number} ' if several else ''}thread {tid}", number))
    owner, lane, start, end = pieces(draft, rows, thread)
    # Time in no range is the gap of the piece before it.
    owned = np.flatnonzero(owner >= 0)
    gap = np.add.reduceat(np.where(owner < 0, end - start, 0), owned)
    owner = owner[owned]
    lane = lane[owned]
    start = start[owned]
    end = end[owned]
    # Two pieces of a thread can start together, the first lasting no time: the turn counts them from 0.
    first = run_starts(lane)
    turn = turns(np.cumsum(first | run_starts(start)))
    tasks = draft.add(
        len(owner),
        lane=lane,
        row=owner,
        duration_ns=end - start,
        gap_ns=gap,
        order=start * ORDER_STEP + np.minimum(turn * ORDER_PLACES, ORDER_STEP - ORDER_PLACES),
        start_ns=start,
        **draft.texts_of(owner),
    )
    draft.release_ns[tasks[first]] = start[first]
    draft.task_of_row[owner[::-1]] = tasks[::-1]  # the first piece of a call is the call


def pieces(
    draft: Draft, rows: np.ndarray, thread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (owning row or -1, thread, start, end) of every piece of some rows, by thread and time."""
    trace = draft.trace
    start = trace["start_ns"][rows].astype(np.int64)
    duration = trace["duration_ns"][rows].astype(np.int64)
    parent = trace["parent"][rows]
    point = np.flatnonzero(duration == 0)
    long = np.flatnonzero(duration)
    back = long[
        ::-1
    ]  # of ranges that end together the inner ones, which are the later rows, end first

    # One event where a range begins, one where it ends; at one time they stay in this order.
    begun = np.append(point, long)
    ranges = np.append(back, begun)
    time = np.append((start + duration)[back], start[begun])
    instant = np.repeat([False, True, False], [len(long), len(point), len(long)])
    lane = thread[ranges]
    inner = np.append(parent[back], rows[begun])
    order = np.argsort(time, kind="stable")
    order = order[stable_order(lane[order], int(lane.max()) + 1)]
    time = time[order]
    instant = instant[order]
    lane = lane[order]
    inner = inner[order]

    # The innermost range after each event; an instant changes nothing.
    new_thread = run_starts(lane)
    last_change = np.maximum.accumulate(np.where(~instant | new_thread, np.arange(len(time)), 0))
    inside = np.where(instant[last_change], -1, inner[last_change])
    ends = np.append(time[1:], 0)
    lasts = (ends > time) & np.append(~new_thread[1:], False)

    # An instant comes before the piece behind it.
    at, behind = np.nonzero(np.stack([instant, lasts], axis=1))
    owner = np.where(behind, inside[at], inner[at])
    return owner, lane[at], time[at], np.where(behind, ends[at], time[at])


def tell_background(draft: Draft) -> None:
    """Mark the threads that nothing waits for: they launch no device work and hand nothing over.

    What they do at the time completes no step. Where none launches, the busiest is not one of them, nor is a
    thread of XLA's pool: the operators that it runs are the compiled program's, never a loader's.
    """
    launching = set(unique(draft.lane[draft.launch[draft.launched()]]).tolist())
    handed_over = draft.links["cause"] == Cause.HANDOFF
    front = {
        lane
        for side in ("src", "dst")
        for lane in draft.lane[draft.links[side][handed_over]].tolist()
    }
    threads = draft.threads()
    if draft.trace.metadata.get("profiler") == "jax":
        front |= {lane for lane in threads if runs_operators(draft, draft.on(lane))}
    # Work of the steps counts first: gloo's own threads spend the longest waiting for other ranks.
    in_steps = np.bincount(draft.lane, np.where(draft.step >= 0, draft.duration_ns, 0))
    in_all = np.bincount(draft.lane, draft.duration_ns)
    for rank in {draft.lanes[lane].rank for lane in threads}:
        of_rank = [lane for lane in threads if draft.lanes[lane].rank == rank]
        if launching.isdisjoint(
            of_rank
        ):  # two threads of a collective may be linked to each other only
            front.add(max(of_rank, key=lambda lane: (in_steps[lane], in_all[lane])))
        for lane in set(of_rank) - launching - front:
            draft.lanes[lane] = draft.lanes[lane]._replace(background=True)


def runs_operators(draft: Draft, tasks: np.ndarray) -> bool:
    """Tell whether any of some tasks is an operator's."""
    return bool(draft.of_rows("operator")[tasks].any())
