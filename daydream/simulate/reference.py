"""Algorithm 1 of the Daydream paper in plain Python: the definition every other engine must equal.

It differs from the printed form in two points. A gap holds its own lane only: other
lanes see the task's end. An edge may count from the start of its cause, since device
work can begin before the call that launched it returns.

Which task the frontier yields next matters on scheduled lanes only. On every other lane
a task enters the frontier after the task before it, so its start is the same whatever
is picked first. A scheduled lane decides when nothing else can move. It decides at time

    d = max(lane free, least ready time of its tasks in the frontier)

and takes, of the tasks ready at `d` or before, the least by (priority, ready, id). Of
several scheduled lanes the one with the least (d, lane) decides first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.plan import Plan


def run(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return when each task starts and ends, in ns. Slow: for reading and for tests."""
    lane = plan.lane.tolist()
    duration, gap = plan.duration_ns.tolist(), plan.gap_ns.tolist()
    priority = [0] * len(plan) if plan.priority is None else plan.priority.tolist()
    start, end = [0] * len(plan), [0] * len(plan)
    ready = plan.release_ns.tolist()
    progress = [0] * plan.lanes

    # children[i]: (task, latency, from start) of each edge out of i; causes[i]: how many i still waits for
    children: list[list[tuple[int, int, bool]]] = [[] for _ in lane]
    causes = np.diff(plan.edge_ptr).tolist()
    latencies, from_starts = plan.edge_latency_ns.tolist(), plan.edge_from_start.tolist()
    for src, dst, latency, from_start in zip(
        plan.edge_src.tolist(), plan.edge_dst.tolist(), latencies, from_starts, strict=True
    ):
        children[src].append((dst, latency, from_start))
    following = _order_lanes(plan, causes)

    def pick(frontier: set[int]) -> int:
        ordered = [task for task in frontier if lane[task] not in plan.scheduled]
        if ordered:
            return min(ordered)
        least_ready: dict[int, int] = {}
        for task in frontier:
            least_ready[lane[task]] = min(ready[task], least_ready.get(lane[task], ready[task]))
        d, where = min((max(progress[number], least), number) for number, least in least_ready.items())
        able = (task for task in frontier if lane[task] == where and ready[task] <= d)
        return min(able, key=lambda task: (priority[task], ready[task], task))

    frontier = {task for task in range(len(plan)) if causes[task] == 0}
    while frontier:
        task = pick(frontier)
        frontier.remove(task)
        start[task] = max(progress[lane[task]], ready[task])
        end[task] = start[task] + duration[task]
        progress[lane[task]] = end[task] + gap[task]
        for child, latency, from_start in children[task]:
            ready[child] = max(ready[child], (start if from_start else end)[task] + latency)
        for child in [child for child, _, _ in children[task]] + following[task]:
            causes[child] -= 1
            if causes[child] == 0:
                frontier.add(child)
    return np.array(start, np.int64), np.array(end, np.int64)


def _order_lanes(plan: Plan, causes: list[int]) -> list[list[int]]:
    """Make each task of an ordered lane wait for the one before it; return the next task of each."""
    following: list[list[int]] = [[] for _ in causes]
    last: dict[int, int] = {}
    for task, number in enumerate(plan.lane.tolist()):
        if number in plan.scheduled:
            continue
        if number in last:
            following[last[number]].append(task)
            causes[task] += 1
        last[number] = task
    return following
