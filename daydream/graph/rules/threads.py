"""Threads: CPU time cut into tasks, every nanosecond owned by the innermost range.

Operators nest, so a thread's time is cut wherever a range begins or ends, and
each piece belongs to the innermost one: removing an operator removes its CPU
time and no other. Time in no range is the gap of the task before it. Runtime
calls are pieces like the others. Tasks, gaps and waits of a thread add up to
its span exactly.

Hand-off: a thread that wakes another and is blocked until it is done.

`loss.backward()` hands the backward pass to the autograd thread: that thread
starts after the call that woke it, and the caller goes on when it ends. The
caller's idle time meanwhile is a wait, and so is the worker's idle time between
two calls; kept as gaps they would hide every change of the backward pass.

A thread is a worker of another when it carries the other's autograd nodes
(forward-thread ids, `evaluate_function`), or when all over the recording it
works only while the other one idles, and fills that idle time from end to end.

Threads that run side by side wake each other too: see `wakes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from daydream.arrays import combinations, percentile, run_starts, take, turns, unique
from daydream.collect.derive.collectives import inside_collectives
from daydream.graph.draft import NEVER, Draft
from daydream.graph.plan import Cause, stable_order
from daydream.graph.rules import (
    FILLED_SHARE,
    FORWARD_SHARE,
    INSIDE_SHARE,
    LEAST_PAUSES,
    PAUSE_NS,
    SHORT_SHARE,
    STARTS_NS,
    STARTS_SHARE,
    STEADY_SHARE,
    SWITCH_NS,
    THREAD_CLOCK_NS,
    WAKE_NS,
)
from daydream.graph.tables import ORDER_STEP, Lane
from daydream.trace.schema import HOST_KINDS, PHASES

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
    draft.thread_ids = threads
    several = len(unique(rank)) > 1
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
    draft: Draft, rows: ndarray, thread: ndarray
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return (owning row or -1, thread, start, end) of every piece of some rows, by thread and time."""
    trace = draft.trace
    start = trace["start_ns"][rows]
    duration = trace["duration_ns"][rows]
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


def runs_operators(draft: Draft, tasks: ndarray) -> bool:
    """Tell whether any of some tasks is an operator's."""
    return draft.of_rows("operator")[tasks].any()


# Hand-off ---------------------------------------------------------------------------------------

NODE = "autograd::engine::evaluate_function"
RESUME_PLACE = 7  # program-order distance behind a task and its device work


@dataclass
class Pauses:
    """Idle stretches of a thread: a gap after a task, or time in a named range but in no operator.

    `row` tells that it was blocked, or is the task's own.
    """

    task: ndarray
    begin: ndarray
    end: ndarray
    in_range: ndarray
    row: ndarray

    @property
    def length(self) -> ndarray:
        """How long each lasts, in ns."""
        return self.end - self.begin

    def only(self, chosen: ndarray) -> Pauses:
        """Return those that a mask or places choose."""
        return Pauses(*(values[chosen] for values in vars(self).values()))


def pauses_of(draft: Draft, lane: int) -> Pauses:
    """Return the stretches in which a thread was in no operator, in order."""
    tasks = draft.on(lane)
    start = draft.start_ns[tasks]
    end = draft.end_ns[tasks]
    gap = draft.gap_ns[tasks]
    behind = np.flatnonzero(gap > 0)
    ranges = np.flatnonzero(draft.of_rows("annotation")[tasks] & (end > start))
    begins = np.append(end[behind], start[ranges])
    order = np.argsort(begins, kind="stable")
    task = tasks[np.append(behind, ranges)][order]
    return Pauses(
        task,
        begins[order],
        np.append((end + gap)[behind], end[ranges])[order],
        order >= len(behind),
        draft.row[task],
    )


def steadier(distance_ns: ndarray, length_ns: ndarray) -> bool:
    """Tell whether the distance to a cause varies far less than the length of the time that it ends."""
    return spread(distance_ns) < STEADY_SHARE * spread(length_ns)


def spread(values: ndarray) -> float:
    """Return the range that most of the values lie in: from the 20th to the 80th percentile."""
    return np.ptp(percentile(values, [20, 80]))


def others_of(draft: Draft, lane: int) -> list[int]:
    """Return the other threads of a thread's process."""
    process = draft.thread_ids[lane][:2]
    return [
        other
        for other in draft.threads()
        if other != lane and draft.thread_ids[other][:2] == process
    ]


def hand_over(draft: Draft) -> None:
    """Link every worker thread to the thread that waits for it, and take its waits out of the gaps."""
    works = {lane: draft.on(lane) for lane in draft.threads()}
    total = {
        lane: (draft.end_ns[work] - draft.start_ns[work]).sum() for lane, work in works.items()
    }
    idle = {}  # of threads that nothing was changed of since
    for worker in sorted(works, key=lambda lane: -total[lane]):
        work = works[worker]
        callers = others_of(draft, worker)
        if (
            len(callers) > 1
        ):  # one that only polls idles around everybody's work; who hands over operates
            callers = [lane for lane in callers if runs_operators(draft, works[lane])] or callers
        idle.update({lane: pauses_of(draft, lane) for lane in callers if lane not in idle})
        found = [(lane, *_bursts(draft, idle[lane], work)) for lane in callers]
        found = [each for each in found if len(each[2])]
        if not found:
            continue
        caller, inside, bursts = max(found, key=lambda each: each[1])
        called = inside >= INSIDE_SHARE * total[worker] and len(bursts) >= LEAST_PAUSES
        if (called and _calls(idle[caller], bursts)) or _runs_autograd(draft, work):
            _link(draft, idle[caller], bursts, work)
            idle[caller] = pauses_of(draft, caller)
            _wake_rest(draft, idle[caller], work)
            idle.pop(worker, None)


def _bursts(draft: Draft, idle: Pauses, work: ndarray) -> tuple[int, ndarray]:
    """Return the worker's time in the caller's idle stretches, and (stretch, first start, last end) rows."""
    start = draft.start_ns[work]
    end = draft.end_ns[work]
    stretch = np.searchsorted(idle.begin, start + THREAD_CLOCK_NS, side="right") - 1
    until = take(idle.end, stretch, NEVER)
    there = start < until
    inside = there & (end <= until + THREAD_CLOCK_NS)
    # A stretch that the worker's work crosses into or out of is no hand-off.
    chosen = inside & ~np.isin(stretch, stretch[there & ~inside])
    stretch = stretch[chosen]
    start = start[chosen]
    end = end[chosen]
    first = np.flatnonzero(run_starts(stretch))
    rows = [stretch[first], np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)]
    return (end - start).sum(), np.stack(rows, axis=1)


def _calls(idle: Pauses, bursts: ndarray) -> bool:
    """Tell whether bursts of work fill idle stretches from end to end, as those of a called thread do.

    They fill most of them in the median. What lies between the ends is short: else the two only take turns.
    """
    stretch, first, last = bursts.T
    begin = idle.begin[stretch]
    end = idle.end[stretch]
    if np.median((last - first) / np.maximum(end - begin, 1)) < FILLED_SHARE:
        return False
    length = np.median(end - begin)
    short = max(WAKE_NS, SHORT_SHARE * length, min(STARTS_NS, STARTS_SHARE * length))
    return max(percentile(first - begin, 80), percentile(end - last, 80)) <= short


def _runs_autograd(draft: Draft, work: ndarray) -> bool:
    """Tell whether a thread runs autograd nodes on behalf of another thread, and no forward pass.

    A thread that runs its own backward pass, as on a CPU, runs a forward pass, too.
    """
    rows = draft.row[work]
    carried = take(draft.trace["forward_thread"], rows) > 0
    if not carried.any() and not draft.named(lambda name: name.startswith(NODE), work).any():
        return False
    time = draft.end_ns[work] - draft.start_ns[work]
    forward = draft.phase[work] == PHASES.index("forward")
    return time[forward].sum() <= FORWARD_SHARE * time.sum()


def _link(draft: Draft, idle: Pauses, bursts: ndarray, work: ndarray) -> None:
    """Cut each idle stretch where the worker's burst begins and ends, and tie the threads there."""
    idle = idle.only(bursts[:, 0])
    place = np.searchsorted(draft.start_ns[work], bursts[:, 1])
    first = work[place]
    last = work[np.searchsorted(draft.end_ns[work], bursts[:, 2])]
    begin = np.maximum(bursts[:, 1], idle.begin)
    finish = np.maximum(np.minimum(bursts[:, 2], idle.end), begin)
    draft.release_ns[first] = 0
    draft.gap_ns[work[place[place > 0] - 1]] = 0
    wakes = draft.add_cpu_tasks(idle.task, begin, draft.order[first] - 1, "wake thread")
    order = draft.order[last] + RESUME_PLACE
    resumes = draft.turn_into_wait(
        idle.task,
        begin,
        finish,
        idle.end,
        order=order,
        inside=idle.in_range,
        name="wait for thread",
    )
    # What is left of a range goes on after the wait.
    ranges = np.flatnonzero(idle.in_range)
    rest = (idle.end - finish)[ranges]
    draft.add_cpu_tasks(
        idle.task[ranges],
        finish[ranges],
        np.maximum(order + 1, finish * ORDER_STEP)[ranges],
        duration_ns=rest,
        gap_ns=draft.gap_ns[resumes[ranges]] - rest,
        row=draft.row[idle.task[ranges]],
    )
    draft.gap_ns[resumes[ranges]] = 0
    draft.link(wakes, first, cause=Cause.HANDOFF)
    draft.link(last, resumes, cause=Cause.HANDOFF)


def _wake_rest(draft: Draft, idle: Pauses, work: ndarray) -> None:
    """Let a worker begin behind its caller also where this one goes on before the worker is done."""
    if not len(idle.begin):
        return
    idled = np.flatnonzero(draft.gap_ns[work[:-1]] >= PAUSE_NS)
    before = work[idled]
    first = work[idled + 1]
    ended = draft.end_ns[before]
    if draft.release_ns[work[0]]:  # its first work: nothing of the worker was recorded before
        before = np.append(before, work[0])
        first = np.append(first, work[0])
        ended = np.append(ended, 0)
    start = draft.start_ns[first]
    at = np.searchsorted(idle.begin, start, side="right") - 1
    late = start - idle.begin[at]
    woken = (late >= 0) & (start < idle.end[at]) & (late <= SWITCH_NS)
    woken &= idle.begin[at] >= ended  # the caller came there while the worker idled
    before = before[woken]
    first = first[woken]
    at = at[woken]
    late = late[woken]
    draft.gap_ns[before[before != first]] = 0
    draft.release_ns[first] = 0
    from_start = idle.in_range[at]
    draft.link(idle.task[at], first, latency_ns=late, from_start=from_start, cause=Cause.HANDOFF)
