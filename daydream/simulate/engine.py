"""The engines: when each task of a plan starts and ends.

`run` takes the compiled loop where it was built (`compiled/_engine.c`), but for a plan with scheduled lanes.
Else `algorithm_1`, the definition that every engine must equal, runs over those tasks that may wait for
another one. All are exact: times are whole ns.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy import ndarray

from daydream import compiled
from daydream.errors import GraphError
from daydream.graph.plan import Plan

LONG_NS = 2.0**60
TOO_LONG = "the times of this graph add up to more than 2**63 ns (292 years)"


def run(plan: Plan) -> tuple[ndarray, ndarray]:
    """Return when each task starts and ends, in ns: int64, shape (tasks,).

    Raises `GraphError` for times beyond what int64 holds.
    """
    engine = None if plan.scheduled else compiled.engine()
    if engine is not None:
        start, end = np.empty((2, len(plan)), np.int64)
        if engine.pull(
            plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns, plan.edge_ptr, plan.edge_src,
            plan.edge_latency_ns, plan.edge_from_start, np.empty(plan.lanes, np.int64), start, end,
        ):  # fmt: skip
            return start, end
    in_floats = plan.duration_ns.sum(dtype=np.float64) + plan.gap_ns.sum(dtype=np.float64)
    start = (
        in_python(plan) if in_floats < LONG_NS else algorithm_1(plan)[0]
    )  # sums of int64 could wrap
    end = start + plan.duration_ns
    if end.min(initial=0) < 0:
        raise GraphError(TOO_LONG)
    return start, end


def in_python(plan: Plan) -> ndarray:
    """Return the start of each task, in ns, without the compiled loop.

    Most tasks wait for the task before them on their lane only. A task that may wait for another one is the
    head of a run; the other tasks of the run start a fixed time after it. So only heads are simulated.
    """
    by_priority = np.isin(np.arange(plan.lanes), plan.scheduled)
    source = plan.lane[plan.edge_src]
    target = plan.lane[plan.edge_dst]
    # On its own lane an edge without latency adds nothing to the order.
    counts = np.flatnonzero((source != target) | (plan.edge_latency_ns > 0) | by_priority[target])
    is_head = (plan.before_on_lane() < 0) | (plan.release_ns > 0) | by_priority[plan.lane]
    is_head[plan.edge_dst[counts]] = True
    order = plan.by_lane()
    cost = (plan.duration_ns + plan.gap_ns)[order]
    elapsed = np.cumsum(cost) - cost
    first = np.flatnonzero(is_head[order])
    length = np.diff(first, append=len(order))
    by_id = np.argsort(order[first])  # heads in the order of their ids: every edge goes upwards
    offset, run = np.empty((2, len(order)), np.int64)
    offset[order] = elapsed - np.repeat(elapsed[first], length)
    run[order] = np.repeat(np.argsort(by_id), length)
    head = order[first[by_id]]
    src = plan.edge_src[counts]
    heads = Plan.from_edges(
        plan.lane[head],
        np.add.reduceat(cost, first)[by_id],
        np.zeros(len(head), np.int64),
        plan.release_ns[head],
        run[src],
        run[plan.edge_dst[counts]],
        offset[src] + plan.edge_delay_ns[counts],
        np.ones(len(counts), bool),
        plan.edge_cause[counts],
        scheduled=plan.scheduled,
        priority=plan.priority[head],
    )
    return algorithm_1(heads)[0][run] + offset


def algorithm_1(plan: Plan) -> tuple[ndarray, ndarray]:
    """Return the start of each task, in ns, and the tasks in an order in which they can run: int64.

    This is Algorithm 1 of the Daydream paper, with two additions. A gap holds its own lane only: other lanes
    see the end of the task. An edge may count from the start of its cause, since device work can begin before
    the call that launched it returns.

    Which task runs next matters on scheduled lanes only: on any other lane a task becomes movable after the
    task before it. A scheduled lane decides when nothing else can move. It decides at time

        d = max(lane free, least ready time of the tasks that it can choose from)

    and takes, of the tasks ready at `d` or before, the least by (priority, ready, id). Of several scheduled
    lanes the one with the least (d, lane) decides first. In the order that is returned, every cause of a task
    and every task before it on its lane comes first.
    """
    lane = plan.lane.tolist()
    duration = plan.duration_ns.tolist()
    gap = plan.gap_ns.tolist()
    priority = plan.priority.tolist()
    causes = np.diff(plan.edge_ptr).tolist()  # how many each task still waits for
    children: list[list[tuple[int, int]]] = [
        [] for _ in lane
    ]  # task, from the start of its cause to its own
    edges = (plan.edge_src, plan.edge_dst, plan.edge_latency_ns, plan.edge_from_start)
    for src, dst, latency, from_start in zip(*(column.tolist() for column in edges), strict=True):
        children[src].append((dst, latency if from_start else duration[src] + latency))
    for task, ahead in enumerate(plan.before_on_lane().tolist()):
        if ahead >= 0 and lane[task] not in plan.scheduled:
            children[ahead].append((task, duration[ahead] + gap[ahead]))
            causes[task] += 1

    start = [0] * len(plan)
    ready = plan.release_ns.tolist()
    progress = [0] * plan.lanes
    movable = []
    later: dict[int, list[tuple[int, int]]] = {
        number: [] for number in plan.scheduled
    }  # (ready, task)
    able: dict[int, list[tuple[int, int, int]]] = {number: [] for number in plan.scheduled}

    def add(task: int) -> None:
        if lane[task] in later:
            heappush(later[lane[task]], (ready[task], task))
        else:
            movable.append(task)

    def decide() -> int:
        """Return the task that a scheduled lane takes, -1 if none is left."""
        decisions = [
            (
                progress[number] if able[number] else max(progress[number], later[number][0][0]),
                number,
            )
            for number in plan.scheduled
            if able[number] or later[number]
        ]
        if not decisions:
            return -1
        now, number = min(decisions)
        while later[number] and later[number][0][0] <= now:
            at, task = heappop(later[number])
            heappush(able[number], (priority[task], at, task))
        return heappop(able[number])[2]

    for task, count in enumerate(causes):
        if not count:
            add(task)
    ran = []
    while (task := movable.pop() if movable else decide()) >= 0:
        ran.append(task)
        at = start[task] = max(progress[lane[task]], ready[task])
        progress[lane[task]] = at + duration[task] + gap[task]
        for child, delay in children[task]:
            ready[child] = max(ready[child], at + delay)
            causes[child] -= 1
            if not causes[child]:
                add(child)
    try:
        return np.array(start, np.int64), np.array(ran, np.int64)
    except OverflowError:
        raise GraphError(TOO_LONG) from None


def fix_order(plan: Plan) -> tuple[Plan, ndarray]:
    """Return the same work with every lane in the order that it ran, and the task behind each new id.

    The new plan has no scheduled lane and the same timeline.
    """
    _, ran = algorithm_1(plan)
    new = np.empty_like(ran)
    new[ran] = np.arange(len(ran))
    fixed = Plan.from_edges(
        plan.lane[ran],
        plan.duration_ns[ran],
        plan.gap_ns[ran],
        plan.release_ns[ran],
        new[plan.edge_src],
        new[plan.edge_dst],
        plan.edge_latency_ns,
        plan.edge_from_start,
        plan.edge_cause,
    )
    return fixed, ran
