"""The engine for plans with scheduled lanes: data flow on ordered lanes, heaps on scheduled ones.

An ordered lane needs no time order: a run of tasks (see `daydream.simulate.runs`) goes as soon as its
causes are done. Only when nothing else can move does a scheduled lane decide, the one with the earliest
decision time first. That is safe: a ready time still unknown then is no earlier than that decision time.
(Edges with negative latency can break this; a task then counts from when it is known.)
The rule of decision is that of `daydream.simulate.reference`, and so are the results.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from daydream.simulate.runs import runs_of

if TYPE_CHECKING:
    from daydream.graph.plan import Plan


def run(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return when each task starts and ends, in ns."""
    start, _ = simulate(plan)
    return start, start + plan.duration_ns


def simulate(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of each task, and the tasks in an order in which they can be run.

    In that order every cause, and every task before it on its lane, comes first. The last answer is kept.
    """
    known = plan.cache.get("policy")
    if known is None or known[0] is not plan.duration_ns or known[1] is not plan.gap_ns:
        plan.cache["policy"] = known = plan.duration_ns, plan.gap_ns, *_simulate(plan)
    return known[2], known[3]


def _simulate(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    runs = runs_of(plan)
    n = len(runs)
    before = runs.before(plan)
    head = before[runs.head]
    costs = np.diff(before[np.append(runs.head, len(plan))])
    is_scheduled = np.isin(np.arange(plan.lanes), plan.scheduled)[runs.lane]

    # The order on an ordered lane as edges beside the others.
    earlier = np.flatnonzero((runs.lane[1:] == runs.lane[:-1]) & ~is_scheduled[1:])
    src, dst = np.append(runs.src, earlier), np.append(runs.dst, earlier + 1)
    delays = np.append(runs.delay_ns(plan, before) - head[runs.src], costs[earlier])
    by_source = np.argsort(src, kind="stable")
    out = list(zip(dst[by_source].tolist(), delays[by_source].tolist(), strict=True))
    out_stop = np.cumsum(np.bincount(src, minlength=n)).tolist()
    out_begin = [0, *out_stop]
    causes = np.bincount(dst, minlength=n).tolist()

    first = runs.order[runs.head]
    lane, cost, ready = runs.lane.tolist(), costs.tolist(), plan.release_ns[first].tolist()
    start, progress = [0] * n, [0] * plan.lanes
    priority = [0] * n if plan.priority is None else plan.priority[first].tolist()
    has_policy = is_scheduled.tolist()
    scheduled = _ScheduledLanes(priority, progress)
    ran: list[int] = []
    movable: list[int] = []
    for run in range(n):
        if causes[run]:
            continue
        if has_policy[run]:
            scheduled.add(run, lane[run], ready[run])
        else:
            movable.append(run)
    while movable or scheduled.pick_into(movable):
        run = movable.pop()
        ran.append(run)
        number = lane[run]
        at = start[run] = max(ready[run], progress[number])
        progress[number] = at + cost[run]
        for child, delay in out[out_begin[run] : out_stop[run]]:
            if at + delay > ready[child]:  # noqa: PLR1730 - quicker than max()
                ready[child] = at + delay
            causes[child] -= 1
            if causes[child]:
                continue
            if has_policy[child]:
                scheduled.add(child, lane[child], ready[child])
            else:
                movable.append(child)
    order = np.array(ran, np.int64)
    length = runs.length[order]
    places = np.repeat(runs.head[order] - np.cumsum(length) + length, length) + np.arange(len(plan))
    return runs.spread(np.array(start, np.int64) - head, before), runs.order[places]


def fix_order(plan: Plan) -> tuple[Plan, np.ndarray]:
    """Return the same work with every lane in the order it ran, and the task behind each new id.

    The new plan has no scheduled lane and the same timeline.
    """
    _, ran = simulate(plan)
    new = np.empty_like(ran)
    new[ran] = np.arange(len(ran))
    fixed = type(plan).from_edges(
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


class _ScheduledLanes:
    """The tasks that scheduled lanes can choose from.

    A decision in the heap may be out of date, because its lane has got an earlier one or has
    moved on; so each is checked when it comes up.
    """

    def __init__(self, priority: list[int], progress: list[int]) -> None:
        self.priority = priority
        self.progress = progress
        self.later: list[list[tuple[int, int]]] = [[] for _ in progress]  # (ready, task), not yet considered
        self.able: list[list[tuple[int, int, int]]] = [[] for _ in progress]  # (priority, ready, task)
        self.decisions: list[tuple[int, int]] = []  # (decision time, lane)
        self.decided: int | None = None

    def add(self, task: int, lane: int, ready: int) -> None:
        """Take in a task whose causes are done."""
        heappush(self.later[lane], (ready, task))
        self._announce(lane)

    def pick_into(self, movable: list[int]) -> bool:
        """Append the task that runs next; return False when none is left."""
        if self.decided is not None:
            self._announce(self.decided)
        while self.decisions:
            now, lane = heappop(self.decisions)
            if now != self._decision_ns(lane):
                continue
            later, able = self.later[lane], self.able[lane]
            while later and later[0][0] <= now:
                ready, task = heappop(later)
                heappush(able, (self.priority[task], ready, task))
            movable.append(heappop(able)[2])
            self.decided = lane
            return True
        return False

    def _announce(self, lane: int) -> None:
        now = self._decision_ns(lane)
        if now is not None:
            heappush(self.decisions, (now, lane))

    def _decision_ns(self, lane: int) -> int | None:
        if self.able[lane]:
            return self.progress[lane]
        return max(self.progress[lane], self.later[lane][0][0]) if self.later[lane] else None
