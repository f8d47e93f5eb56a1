"""Runs: tasks that follow each other on a lane, where nothing comes in but at the first.

Within a run each task begins when the one before it and its gap are over: the start of the
first, its *head*, says it all. Only one task in four or five of a recording is a head, so engines
work out heads and spread what they found. `before` are the costs of all tasks before one, in the order
(lane, id); within a run, starts differ by it.

    lane   |a  |b |c  |      |d |e |      edges into a and d: two runs, a b c and d e
           ^ head            ^ head       start of c = start of a + (before of c - before of a)

A lane with a policy has no fixed order: there each task is a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.graph.plan import stable_order

if TYPE_CHECKING:
    from daydream.graph.plan import Plan


class Runs(NamedTuple):
    """The runs of a plan in the order (lane, id), and the edges that lead from one to another."""

    order: np.ndarray  #: tasks by (lane, id): an entry a place
    place: np.ndarray  #: of each task
    head: np.ndarray  #: the place where each run begins
    length: np.ndarray  #: how many tasks it has
    lane: np.ndarray  #: its lane
    folded: np.ndarray  #: edges of the plan to the very next task on a lane: they only lengthen the gap
    waits: np.ndarray  #: all other edges of the plan that say more than the order does, by target
    src: np.ndarray  #: the run that each of these comes from
    dst: np.ndarray  #: the run that it leads to
    begin: np.ndarray  #: the place of its source
    late: np.ndarray  #: those of `waits` that count from the end of their source
    late_task: np.ndarray  #: the tasks they come from

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.head)

    def before(self, plan: Plan) -> np.ndarray:
        """Return the costs of all tasks before each place, and of all tasks."""
        before = np.zeros(len(self.order) + 1, np.int64)
        np.cumsum((plan.duration_ns + _gap(plan, self.folded)).take(self.order), out=before[1:])
        return before

    def delay_ns(self, plan: Plan, before: np.ndarray) -> np.ndarray:
        """Return, of each wait, how much later than `before` of its source it lets its target begin."""
        delay: np.ndarray = before.take(self.begin) + plan.edge_latency_ns.take(self.waits)
        delay[self.late] += plan.duration_ns.take(self.late_task)
        return delay

    def spread(self, shift: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the start of each task; `shift` is what that of a run's tasks is beyond `before`."""
        at = np.repeat(shift, self.length)
        at += before[:-1]
        start: np.ndarray = at.take(self.place)  # quicker than to write where each belongs
        return start


def runs_of(plan: Plan) -> Runs:
    """Return the runs of a plan. They depend on its lanes, edges and releases only, and are kept."""
    if "runs" not in plan.cache:
        plan.cache["runs"] = _runs(plan)
    runs: Runs = plan.cache["runs"]
    return runs


def _runs(plan: Plan) -> Runs:
    order, place = plan.by_lane(), plan.place()
    lane = plan.lane[order]
    begins = np.ones(len(plan), bool)
    np.not_equal(lane[1:], lane[:-1], out=begins[1:])
    # On its own lane an edge without latency says nothing that the order does not say.
    src, dst = plan.edge_src, plan.edge_dst
    target_lane = plan.lane[dst]
    counts = plan.lane[src] != target_lane
    if plan.scheduled:
        by_policy = np.isin(np.arange(plan.lanes), plan.scheduled)
        counts |= by_policy[target_lane]
        begins |= by_policy[lane]
    inner = np.flatnonzero(~counts & (plan.edge_latency_ns > 0))
    next_one = place[src[inner]] + 1 == place[dst[inner]]
    folded = inner[next_one]
    counts[inner[~next_one]] = True
    waits = np.flatnonzero(counts)
    waits = waits[stable_order(target_lane[waits], plan.lanes)]

    begin = place[src[waits]]
    into = place[dst[waits]]
    begins[into] = True
    if plan.release_ns.any():
        begins[place[np.flatnonzero(plan.release_ns)]] = True
    head = np.flatnonzero(begins)
    run = np.cumsum(begins, dtype=np.int32)
    late = np.flatnonzero(~plan.edge_from_start[waits])
    return Runs(
        order=order,
        place=place,
        head=head,
        length=np.diff(head, append=len(plan)),
        lane=lane[head],
        folded=folded,
        waits=waits,
        src=run[begin] - 1,
        dst=run[into] - 1,
        begin=begin,
        late=late,
        late_task=src[waits[late]],
    )


def _gap(plan: Plan, folded: np.ndarray) -> np.ndarray:
    """Return the gaps, lengthened by the edges from a task to the very next one on its lane."""
    gap: np.ndarray = plan.gap_ns
    if len(folded):
        gap = gap.copy()
        task = plan.edge_src[folded]
        np.maximum.at(gap, task, plan.edge_delay_ns[folded] - plan.duration_ns[task])
    return gap
