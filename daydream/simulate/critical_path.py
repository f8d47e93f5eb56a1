"""Why the step takes its time: the chain of causes behind a task's end, and the slack of every task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from daydream import compiled
from daydream.graph.plan import Cause
from daydream.simulate import policy, scan
from daydream.simulate.runs import runs_of

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt

    from daydream.graph.plan import Plan

#: Slack of a task that no sink depends on.
UNBOUNDED = int(np.iinfo(np.int64).max)

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The chain of tasks that decided when a sink ended, first to last.

    `delay_ns[k]` is what passed before task `k` started, counted from the end (or the
    start) of task `k - 1`: a gap, an edge's latency, or, for the first task, its start.
    `task_ns[k]` is the task's duration, or 0 if the next one counts from its start. All
    of both add up to the sink's end exactly.
    """

    task: np.ndarray  #: int64, task ids
    cause: np.ndarray  #: int8, the `Cause` that bound each start; `RELEASE` for the first task
    delay_ns: np.ndarray  #: int64, negative only where a latency is
    task_ns: np.ndarray  #: int64

    def __len__(self) -> int:
        """Return the number of tasks on the path."""
        return len(self.task)


def critical_path(
    plan: Plan, start: np.ndarray, end: np.ndarray, sink: int | None = None, *, since: int | None = None
) -> CriticalPath:
    """Return the chain of causes behind the end of `sink` (default: the first of the tasks that end last).

    With `since` the chain goes back no further than to the task that runs at that time.

    Where several causes bind equally, an edge goes before the order on the lane, and that
    before the release; among edges the least cause, then the one whose source ran first.
    """
    if len(plan) == 0:
        empty = np.empty(0, np.int64)
        return CriticalPath(empty, empty.astype(np.int8), empty, empty)
    if sink is None:
        sink = int(np.argmax(end))
    if plan.scheduled:
        fixed, ran = policy.fix_order(plan)
        path = critical_path(fixed, start[ran], end[ran], int(np.flatnonzero(ran == sink)[0]), since=since)
        return replace(path, task=ran[path.task])

    engine = compiled.engine()
    if engine is None:
        task, edge = _in_numpy(plan, start, end, sink, since)
    else:
        task, edge = _walked(engine, plan, start, end, sink, since)
    by_edge = edge >= 0
    cause = np.full(len(task), Cause.LANE, np.int8)
    cause[0] = Cause.RELEASE
    cause[by_edge] = plan.edge_cause[edge[by_edge]]
    task_ns = plan.duration_ns[task]
    task_ns[np.flatnonzero(by_edge)[plan.edge_from_start[edge[by_edge]]] - 1] = 0
    delay = start[task]
    delay[1:] -= start[task[:-1]] + task_ns[:-1]
    return CriticalPath(task, cause, delay, task_ns)


def _walked(
    engine: ModuleType, plan: Plan, start: np.ndarray, end: np.ndarray, sink: int, since: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `_in_numpy` does, by the compiled loop: it looks at tasks of the chain only."""
    path, by = np.empty(len(plan), np.int32), np.empty(len(plan), np.int64)
    length = engine.walk(
        plan.lane, plan.gap_ns, plan.edge_ptr, plan.edge_src, plan.edge_latency_ns, plan.edge_from_start,
        plan.edge_cause, np.ascontiguousarray(start), np.ascontiguousarray(end),
        np.empty(len(plan), np.int32), np.empty(plan.lanes, np.int32), path, by,
        sink, -_NEVER if since is None else since,
    )  # fmt: skip
    return path[:length][::-1].astype(np.int64), by[:length][::-1].copy()


def _in_numpy(
    plan: Plan, start: np.ndarray, end: np.ndarray, sink: int, since: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks of the chain, first to last, and the edge that bound each; -1 for none.

    Where each start was bound by the task before it on the lane, tasks are one stretch of the chain: it
    is followed from one edge to the next. What is not known runs at `since` and is bound by nothing.
    """
    order, place = plan.by_lane(), plan.place()
    edge, by_order = _binding_causes(plan, start, end, since)
    heads = np.flatnonzero(~by_order)
    stretch = np.cumsum(~by_order, dtype=np.int32) - 1  # of each place
    into, out_of = place[plan.edge_dst[edge]], place[plan.edge_src[edge]]
    edge_into = np.full(len(heads), -1)
    edge_into[stretch[into]] = np.arange(len(edge))
    ahead = edge_into[stretch[out_of]].tolist()
    walk = [int(edge_into[stretch[place[sink]]])]
    while walk[-1] >= 0:
        walk.append(ahead[walk[-1]])
    walked = np.array(walk[-2::-1], np.int64)  # edges of the chain, first to last

    last = np.append(out_of[walked], place[sink])  # of each stretch, and the first
    first = heads[stretch[last]]
    length = last - first + 1
    ends = np.cumsum(length)
    task = order[np.repeat(last + 1 - ends, length) + np.arange(ends[-1])]
    by = np.full(len(task), -1)
    by[(ends - length)[1:]] = edge[walked]
    return task, by


def _binding_causes(
    plan: Plan, start: np.ndarray, end: np.ndarray, since: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges that bound a start, one for each task that has any, in the order of these tasks.

    And a mask of the places in the order (lane, id) whose task was bound by the one before it instead.
    """
    order, place = plan.by_lane(), plan.place()
    begins, lane = start[order], plan.lane[order]
    by_order = np.zeros(len(order), np.bool_)
    by_order[1:] = (lane[1:] == lane[:-1]) & ((end + plan.gap_ns)[order[:-1]] == begins[1:])
    if since is not None:
        by_order &= begins > since

    src, dst = plan.edge_src, plan.edge_dst
    ready = np.where(plan.edge_from_start, start[src], end[src]) + plan.edge_latency_ns
    binds = ready == start[dst]
    if since is not None:
        binds &= ready > since
    edge = np.flatnonzero(binds)  # by destination, as all edges
    of = dst[edge]
    if (of[1:] == of[:-1]).any():
        edge = edge[np.lexsort((src[edge], plan.edge_cause[edge], of))]
        of = dst[edge]
        edge = edge[np.append(True, of[1:] != of[:-1])]
    by_order[place[dst[edge]]] = False
    return edge, by_order


def slack(
    plan: Plan,
    start: np.ndarray,  # noqa: ARG001 - asked for like in `critical_path`
    end: np.ndarray,
    sinks: npt.ArrayLike | None = None,
) -> np.ndarray:
    """Return how many ns longer each task alone could take without any sink ending later.

    `sinks` are task ids; by default every task must end by the time the last one ends now.
    The order on scheduled lanes is taken as it came out. A task that no sink depends on
    has slack `UNBOUNDED`.
    """
    if len(plan) == 0:
        return np.empty(0, np.int64)
    deadline = np.full(len(plan), end.max() if sinks is None else _NEVER, np.int64)
    if sinks is not None:
        chosen = np.asarray(sinks, np.int64)
        deadline[chosen] = end[chosen]
    if not plan.scheduled:
        return _slack(plan, end, deadline)
    fixed, ran = policy.fix_order(plan)
    result = np.empty(len(plan), np.int64)
    result[ran] = _slack(fixed, end[ran], deadline[ran])
    return result


def _slack(plan: Plan, end: np.ndarray, deadline: np.ndarray) -> np.ndarray:
    levels = scan.cut(plan)
    latest_start = _pull(plan, deadline) if levels is None else _scan(plan, levels, deadline)
    latest_end = deadline.copy()
    following = plan.next_on_lane()
    earlier = np.flatnonzero(following >= 0)
    np.minimum.at(latest_end, earlier, latest_start[following[earlier]] - plan.gap_ns[earlier])
    counts = np.flatnonzero(~plan.edge_from_start)
    needed = latest_start[plan.edge_dst[counts]] - plan.edge_latency_ns[counts]
    np.minimum.at(latest_end, plan.edge_src[counts], needed)
    return np.where(latest_end >= _NEVER >> 1, UNBOUNDED, latest_end - end)


def _scan(plan: Plan, levels: scan.Levels, deadline: np.ndarray) -> np.ndarray:
    """Return the latest start of each task: the default engine run backwards, with minima."""
    runs = runs_of(plan)
    before, weight = scan.weigh(plan, runs, levels)
    own = (deadline - plan.duration_ns)[runs.order] - before[:-1]
    s = np.empty(len(runs), np.int64)
    s[levels.slot] = np.minimum.reduceat(own, runs.head)
    for level in reversed(levels.levels):
        for segment, last in level.segments:
            part = s[segment][::-1]
            np.minimum.accumulate(part, out=part)
            s[last] = min(s[last], s[segment.start])
        np.minimum.at(s, level.src, s[levels.dst[level.edges]] - weight[level.edges])
    # Within a run a task need not wait for what the tasks before it let begin.
    np.minimum.at(own, runs.begin[levels.wait], s[levels.dst] - weight)
    lane = plan.lane[runs.order]
    bounds = [0, *(np.flatnonzero(lane[1:] != lane[:-1]) + 1).tolist(), len(lane)]
    for begin, end in pairwise(bounds):
        part = own[begin:end][::-1]
        np.minimum.accumulate(part, out=part)
    own += before[:-1]
    latest: np.ndarray = np.empty_like(own)
    latest[runs.order] = own
    return latest


def _pull(plan: Plan, deadline: np.ndarray) -> np.ndarray:
    """Return the latest start of each task by one pass over the tasks, last to first."""
    latest = (deadline - plan.duration_ns).tolist()
    cost, following = (plan.duration_ns + plan.gap_ns).tolist(), plan.next_on_lane().tolist()
    src, delay, ptr = plan.edge_src.tolist(), plan.edge_delay_ns.tolist(), plan.edge_ptr.tolist()
    for task in range(len(plan) - 1, -1, -1):
        after = following[task]
        if after >= 0:
            latest[task] = min(latest[task], latest[after] - cost[task])
        for edge in range(ptr[task], ptr[task + 1]):
            latest[src[edge]] = min(latest[src[edge]], latest[task] - delay[edge])
    return np.array(latest, np.int64)
