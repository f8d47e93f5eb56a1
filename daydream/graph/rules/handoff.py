"""Rule 7, hand-off: a thread that wakes another and stands until it is done.

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

from daydream.arrays import percentile
from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import ORDER_STEP
from daydream.graph.plan import Cause
from daydream.trace.schema import PHASES

ROUNDING_NS = 2_000  # recordings in whole microseconds overlap by this much
INSIDE_SHARE = 0.95  # of a worker's time that must lie in the caller's idle time
SHORT = 0.05  # of that idle time: how much before and behind the worker's work is no sign of another cause
# Between a caller's last recorded call and the first of the thread it called lie the entry of `backward()`
# and nodes that launch nothing, and likewise at the end. Neither grows with the work: of 27 recordings whose
# operators tell the autograd thread the 80th percentiles are 0.02 to 1.45 ms, of 25 at most 7 % of the
# stretch. Threads that do not call each other leave 44 % of it and more, or 120 ms (DALI's, 10 %).
STARTS_NS, STARTS_SHARE = 1_500_000, 0.15
FILLED_SHARE = 0.5  # of that idle time that the worker must fill, in the median
LEAST_BURSTS = 2
FIRST = 256  # tasks of a thread that are looked at before all are
FEW = 4  # times as many moments are looked up among a few, or the few among them: which is quicker
WAKE_NS = 50_000  # from the end of what a thread waited for until it goes on
STEADY = 0.2  # of the spread of what a thread waits, that its distance from the cause may vary
LONG_NS = 50_000  # shorter pauses are a thread's own
SWITCH_NS = 5_000_000  # a thread woken in Python may wait so long for its turn (sys.getswitchinterval)
NODE = "autograd::engine::evaluate_function"
NO_EARLIER = 7  # program-order distance behind a task and its device work


@dataclass
class IdleTime:
    """Idle stretches of a thread: a gap after a task, or time in a named range but in no operator."""

    task: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    in_range: np.ndarray

    def only(self, chosen: np.ndarray) -> IdleTime:
        """Return those that a mask chooses."""
        return IdleTime(self.task[chosen], self.begin[chosen], self.end[chosen], self.in_range[chosen])


@dataclass
class Work:
    """The tasks of a thread in program order, and what reads their columns quickest."""

    tasks: np.ndarray
    at: slice | np.ndarray


def hand_over(builder: GraphBuilder) -> None:
    """Link every worker thread to the thread that waits for it, and take its waits out of the gaps."""
    lanes = builder.tasks.threads()
    if len(lanes) < 2:
        return
    busy = {lane: Work(builder.tasks.on(lane), builder.tasks.at(lane)) for lane in lanes}
    idle: dict[int, IdleTime] = {}  # of threads that nothing was changed of since
    builder.idle = idle
    total = {lane: int((builder.end_ns[w.at] - builder.start_ns[w.at]).sum()) for lane, w in busy.items()}
    for worker in sorted(lanes, key=lambda lane: -total[lane]):
        callers = [
            lane
            for lane in lanes
            if lane != worker and builder.thread_ids[lane][:2] == builder.thread_ids[worker][:2]
        ]
        if len(callers) > 1:  # one that only polls idles around everybody's work; who hands over operates
            callers = [lane for lane in callers if _operates(builder, busy[lane].tasks)] or callers
        idle.update({lane: idle_time(builder, lane) for lane in callers if lane not in idle})
        found = [(lane, *_bursts(builder, idle[lane], busy[worker])) for lane in callers]
        found = [f for f in found if len(f[2])]
        if not found:
            continue
        caller, inside, bursts = max(found, key=lambda f: f[1])
        told = inside >= INSIDE_SHARE * total[worker] and len(bursts) >= LEAST_BURSTS
        told = told and _fills(idle[caller], bursts) and _calls(idle[caller], bursts)
        if told or _runs_autograd(builder, busy[worker].tasks):
            _link(builder, idle[caller], bursts, busy[worker])
            idle[caller] = idle_time(builder, caller)
            _wake_rest(builder, idle[caller], busy[worker].tasks)
            idle.pop(worker, None)
            builder.linked_threads |= {caller, worker}


def _operates(builder: GraphBuilder, tasks: np.ndarray) -> bool:
    """Tell whether any of some tasks is an operator's."""
    is_operator, rows = builder.trace.is_kind("operator"), builder.graph.columns["row"]
    return any(bool(is_operator[rows[some]].any()) for some in (tasks[:FIRST], tasks))


def tell_background(builder: GraphBuilder) -> None:
    """Mark the threads that nothing waits for: they launch no device work and hand nothing over.

    What they do at the time completes no step. Where none launches, the busiest is not one of them, nor is a
    thread of XLA's pool: the operators that it runs are the compiled program's, never a loader's.
    """
    graph = builder.graph
    columns = graph.columns
    calls = columns["launch"][builder.tasks.launched()]
    launching = set(np.flatnonzero(np.bincount(columns["lane"][calls])).tolist())
    lanes = builder.tasks.threads()
    for rank in {graph.lanes[lane].rank for lane in lanes}:
        mine = [lane for lane in lanes if graph.lanes[lane].rank == rank]
        front = {lane for lane in mine if lane in launching or lane in builder.linked_threads}
        if builder.trace.metadata.get("profiler") == "jax":
            front |= set(mine) & _with_operators(builder)
        if not front & launching:  # two threads of a collective may be linked to each other only
            front.add(max(mine, key=lambda lane: _busy_ns(builder, lane)))
        for lane in mine:
            if lane not in front:
                graph.lanes[lane] = graph.lanes[lane]._replace(background=True)


def _busy_ns(builder: GraphBuilder, lane: int) -> tuple[int, int]:
    """Return what a thread works in the steps, and outside of them.

    Work of the steps counts first: gloo's own threads spend the longest waiting for other ranks.
    """
    columns, tasks = builder.graph.columns, builder.tasks.on(lane)
    duration, inside = columns["duration_ns"][tasks], columns["step"][tasks] >= 0
    return int(duration[inside].sum()), int(duration[~inside].sum())


def _with_operators(builder: GraphBuilder) -> set[int]:
    """Return the threads that run operators."""
    is_operator = np.append(builder.trace.is_kind("operator"), False)  # the last: of no row
    rows, tasks = builder.graph.columns["row"], builder.tasks
    return {lane for lane in tasks.threads() if is_operator[rows[tasks.on(lane)]].any()}


def _fills(idle: IdleTime, bursts: np.ndarray) -> bool:
    """Tell whether bursts of work fill most of their idle stretches, in the median."""
    length = np.maximum(idle.end[bursts[:, 0]] - idle.begin[bursts[:, 0]], 1)
    return bool(np.median((bursts[:, 2] - bursts[:, 1]) / length) >= FILLED_SHARE)


def _calls(idle: IdleTime, bursts: np.ndarray) -> bool:
    """Tell whether bursts of work begin with idle stretches and end them, as those of a called thread do.

    What lies between is short, or varies far less than the stretches: else the two only take turns.
    """
    begin, end = idle.begin[bursts[:, 0]], idle.end[bursts[:, 0]]
    length = float(np.median(end - begin))
    short = max(WAKE_NS, SHORT * length, min(STARTS_NS, STARTS_SHARE * length))
    between = (bursts[:, 1] - begin, end - bursts[:, 2])
    return all(bool(percentile(each, 80) <= short) or steadier(each, end - begin) for each in between)


def steadier(distance_ns: np.ndarray, length_ns: np.ndarray) -> bool:
    """Tell whether the distance to a cause varies far less than the length of the time that it ends."""
    return spread(distance_ns) < STEADY * spread(length_ns)


def spread(values: np.ndarray) -> float:
    """Return the range that most of the values lie in: from the 20th to the 80th percentile."""
    low, high = percentile(values, [20, 80])
    return float(high - low)


def _wake_rest(builder: GraphBuilder, idle: IdleTime, work: np.ndarray) -> None:
    """Let a worker begin behind its caller also where this one goes on before the worker is done."""
    graph = builder.graph
    columns = graph.columns
    if not len(idle.begin):
        return
    idled = np.flatnonzero(columns["gap_ns"][work[:-1]] >= LONG_NS)
    before, first = work[idled], work[idled + 1]
    ended = builder.end_ns[before]
    if columns["release_ns"][work[0]]:  # its first work: nothing of the worker was recorded before
        before, first, ended = np.append(before, work[0]), np.append(first, work[0]), np.append(ended, 0)
    start = builder.start_ns[first]
    stretch = np.searchsorted(idle.begin, start, side="right") - 1
    at = np.maximum(stretch, 0)
    late = start - idle.begin[at]
    woken = (stretch >= 0) & (start < idle.end[at]) & (late <= SWITCH_NS)
    woken &= idle.begin[at] >= ended  # the caller came there while the worker idled
    before, first, at, late = before[woken], first[woken], at[woken], late[woken]
    columns["gap_ns"][before[before != first]] = 0
    columns["release_ns"][first] = 0
    from_start = idle.in_range[at]
    graph.link(idle.task[at], first, latency_ns=late, from_start=from_start, cause=Cause.HANDOFF)


def _runs_autograd(builder: GraphBuilder, tasks: np.ndarray) -> bool:
    """Tell whether a thread runs autograd nodes on behalf of another thread, and no forward pass."""
    rows = builder.graph.columns["row"][tasks]
    carried = (np.asarray(builder.trace["forward_thread"])[np.maximum(rows, 0)] > 0) & (rows >= 0)
    nodes = carried.any() or builder.named(lambda name: name.startswith(NODE), tasks).any()
    return bool(nodes) and _does_backward_only(builder, tasks)


def _does_backward_only(builder: GraphBuilder, tasks: np.ndarray) -> bool:
    """Tell the autograd thread from a thread that runs its own backward pass, as on a CPU."""
    phase = builder.graph.columns["phase"][tasks]
    time = builder.end_ns[tasks] - builder.start_ns[tasks]
    return bool(time[phase == PHASES.index("forward")].sum() <= 0.1 * time.sum())


def idle_time(builder: GraphBuilder, lane: int) -> IdleTime:
    """Return the stretches in which a thread was in no operator, in order."""
    columns, ids, at = builder.graph.columns, builder.tasks.on(lane), builder.tasks.at(lane)
    gap = columns["gap_ns"][at]
    behind = np.flatnonzero(gap > 0)
    named = np.flatnonzero(builder.annotates.take(columns["row"][at]))
    named = named[builder.end_ns[ids[named]] > builder.start_ns[ids[named]]]
    idle, ranges = ids[behind], ids[named]
    end = builder.end_ns[idle]
    begins = np.concatenate([end, builder.start_ns[ranges]])
    order = np.argsort(begins, kind="stable")
    return IdleTime(
        np.concatenate([idle, ranges])[order],
        begins[order],
        np.concatenate([end + gap[behind], builder.end_ns[ranges]])[order],
        order >= len(idle),
    )


def _bursts(builder: GraphBuilder, idle: IdleTime, work: Work) -> tuple[int, np.ndarray]:
    """Return the worker's time in the caller's idle stretches, and (stretch, first start, last end) rows."""
    if not len(idle.task) or not len(work.tasks):
        return 0, np.empty((0, 3), np.int64)
    start, end = builder.start_ns[work.at], builder.end_ns[work.at]
    stretch = _last_before(idle.begin, start + ROUNDING_NS)
    at = np.maximum(stretch, 0)
    until, within = idle.end[at], stretch >= 0
    inside = within & (end <= until + ROUNDING_NS)
    # A stretch that the worker's work crosses into or out of is no hand-off.
    crossed = np.zeros(len(idle.task), bool)
    crossed[at[~inside & within & (start < until)]] = True
    chosen = inside & ~crossed[at]
    if not chosen.any():
        return 0, np.empty((0, 3), np.int64)
    rows = _grouped(at[chosen], start[chosen], end[chosen])
    return int((end - start)[chosen].sum()), rows


def _last_before(begins: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the place of the last of some ascending moments at or before each time, -1 for none."""
    if len(times) < FEW * len(begins) or (times[1:] < times[:-1]).any():
        return np.searchsorted(begins, times, side="right") - 1
    passed = np.bincount(np.searchsorted(times, begins), minlength=len(times))
    return np.cumsum(passed[: len(times)]) - 1


def _grouped(stretch: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    first = np.flatnonzero(np.append(True, stretch[1:] != stretch[:-1]))
    return np.stack(
        [stretch[first], np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)], axis=1
    )


def _link(builder: GraphBuilder, idle: IdleTime, bursts: np.ndarray, worker: Work) -> None:
    """Cut each idle stretch where the worker's burst begins and ends, and tie the threads there."""
    graph = builder.graph
    columns = graph.columns
    work, start, end = worker.tasks, builder.start_ns[worker.at], builder.end_ns[worker.at]
    stretch = bursts[:, 0]
    place = np.searchsorted(start, bursts[:, 1])
    first, last = work[place], work[np.searchsorted(end, bursts[:, 2])]
    task, in_range = idle.task[stretch], idle.in_range[stretch]
    begin = np.maximum(bursts[:, 1], idle.begin[stretch])
    finish = np.maximum(np.minimum(bursts[:, 2], idle.end[stretch]), begin)
    rest = idle.end[stretch] - finish
    wake_order = columns["order"][first] - 1
    resume_order = columns["order"][last] + NO_EARLIER

    after = columns["gap_ns"][task]
    columns["release_ns"][first] = 0
    columns["gap_ns"][work[place[place > 0] - 1]] = 0
    columns["gap_ns"][task] = np.where(in_range, 0, begin - builder.end_ns[task])
    columns["duration_ns"][task] = np.where(
        in_range, begin - builder.start_ns[task], columns["duration_ns"][task]
    )
    builder.end_ns[task] = np.where(in_range, begin, builder.end_ns[task])

    wakes = builder.add_cpu_tasks(task, "wake thread", begin, wake_order)
    resumes = builder.add_cpu_tasks(task, "wait for thread", finish, resume_order)
    graph.columns["gap_ns"][resumes] = np.where(in_range, 0, rest)
    inside = np.flatnonzero(in_range)
    if len(inside):  # what is left of the range goes on after the wait
        order = np.maximum(resume_order + 1, finish * ORDER_STEP)[inside]
        tails = builder.add_cpu_tasks(task[inside], None, finish[inside], order)
        columns = graph.columns
        columns["duration_ns"][tails] = rest[inside]
        columns["gap_ns"][tails] = after[inside]
        columns["row"][tails] = columns["row"][task[inside]]
        builder.end_ns[tails] = idle.end[stretch][inside]
    graph.link(wakes, first, cause=Cause.HANDOFF)
    graph.link(last, resumes, cause=Cause.HANDOFF)
