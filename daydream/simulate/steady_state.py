"""The steady state: what every further step would take.

A recorded window of a few steps may begin with an empty launch queue and end with a
full one, and a change moves that balance: made twice as fast, a GPU first works off
what was queued. So the covered steps are simulated again behind themselves, and where
the second pass does not take as long as the first, more are added until it does. Equal
passes are not enough: while what was queued is worked off, the threads take longer for
a pass than the device, which catches up with them later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from operator import itemgetter
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray

from daydream.arrays import combinations
from daydream.errors import GraphError
from daydream.graph.lower import Window, where_in
from daydream.graph.tables import ORDER_STEP, covered_steps, step_rank
from daydream.simulate import simulate

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.contention import Contention
    from daydream.simulate.critical_path import Path
    from daydream.simulate.timeline import Timeline

SETTLED = 0.001  # two passes over the window that differ by no more than this have settled
FEWEST_REPEATED = (
    8  # steps, where there are so many: a window shorter than that may miss a kind of step
)
MOST_REPEATED = (
    500_000  # tasks; of a longer recording the last steps that hold so many are repeated
)
MOST_COPIES = 64
MOST_LAGGING = (
    4_096  # copies while a queue is worked off: none holds more launches, and each copy has one
)
MOST_TASKS = 4_000_000


class SteadyState(NamedTuple):
    """A simulated window. `step_ns` is the steady step, `copy` the pass it was read from."""

    timeline: Timeline
    times: dict[tuple[int, int], int]  # (copy, step) -> ns
    copy: int
    settled: bool

    @property
    def step_ns(self) -> int:
        """Mean time of the steps of the pass that had settled: what a run pays for each."""
        return round(
            fmean(self.step_times().values() or [0])
        )  # steps that a change left no work take none

    @property
    def typical_ns(self) -> int:
        """Median time of the steps of the pass that had settled."""
        return round(median(self.step_times().values() or [0]))

    def typical(self) -> tuple[int, int]:
        """Return (step, its time) of the settled pass's median step."""
        times = self.step_times()
        middle = median_low(times.values())
        return next(step for step, ns in times.items() if ns == middle), middle

    def step_times(self, copy: int | None = None) -> dict[int, int]:
        """Return the times of the steps of a pass, by default of the one that had settled, in ns."""
        wanted = self.copy if copy is None else copy
        return {step: ns for (of, step), ns in self.times.items() if of == wanted}

    def path(self) -> Path:
        """Return the critical path of these steps; arrays are to be read only."""
        return self.timeline.path(self.copy, [*self.step_times()])

    @property
    def passes(self) -> int:
        """How often the window was simulated."""
        return self.timeline.copies

    def mean_after(self, after: SteadyState) -> int:
        """Return the mean step after a change, in ns, over the steps that both have."""
        now = self.step_times()
        then = after.step_times()
        both = now.keys() & then.keys()
        work = sum(now[step] for step in both)
        if not work:  # nothing is left of any step, or nothing was there
            return round(fmean(then.values())) if then else 0
        return round(self.step_ns * sum(then[step] for step in both) / work)


def settle(graph: Graph, *, contention: Contention | None = None) -> SteadyState:
    """Return the steady state of the covered steps: they are repeated until it is reached, or never will be.

    `contention` is as in `simulate`. Raises `GraphError` if the trace covers no step.
    """
    need_steps(graph)
    window = repeatable(graph)
    if window is None:
        timeline = simulate(graph, contention=contention)
        return SteadyState(timeline, timeline.step_times(), 0, settled=True)
    members = coupled(graph, waiting=True)
    # Transfers of the pass after the last one slow that one, too.
    beyond = int(contention is not None)
    copies = 2
    while True:
        timeline = simulate(graph, copies=copies + beyond, window=window, contention=contention)
        times = {key: ns for key, ns in timeline.step_times().items() if key[0] < copies}
        # When each lane ends with each pass: a row a pass.
        lanes = len(graph.lanes)
        ends = np.zeros(timeline.copies * lanes, np.int64)
        place = timeline.copy * np.int64(lanes) + timeline.plan.lane
        np.maximum.at(ends, place, timeline.end_ns)
        if timeline.copies == 1:  # the window holds no work
            return SteadyState(timeline, times, 0, settled=True)
        ends = ends.reshape(-1, lanes)[:copies]
        first, needed = _reached(timeline, times, ends, members)
        if needed <= copies:
            steady = needed == copies
            return SteadyState(timeline, times, first if steady else copies - 1, settled=steady)
        copies = needed


def _reached(
    timeline: Timeline,
    times: dict[tuple[int, int], int],
    ends: ndarray,
    members: dict[int, frozenset[int]],
) -> tuple[int, int]:
    """Return the first settled pass, and how many copies it takes: more than there are, or 0 if none do."""
    graph = timeline.graph
    copies = len(ends)
    first = 0
    needed = []
    repeated = {step for copy, step in times if copy}
    last = ends[-1].tolist()
    taken = (ends[-1] - ends[-2]).tolist()
    for rank, together in members.items():
        passes = [0] * copies  # over the repeated steps of the rank
        for (copy, step), ns in times.items():
            if step in repeated and step_rank(graph.steps[step]) == rank:
                passes[copy] += ns
        # One that runs ahead of another is held up by it in the end, so the lanes of all ranks that it
        # meets count. Background threads do not: nothing waits for them.
        counts = [
            number
            for number, lane in enumerate(graph.lanes)
            if last[number] and not lane.background and (len(members) == 1 or lane.rank in together)
        ]
        before, now = passes[-2:]
        equal = abs(now - before) <= SETTLED * before
        if equal and all(taken[number] <= (1 + SETTLED) * now for number in counts):
            needed.append(copies)
        else:
            more = 2 * copies
            most = MOST_COPIES
            if equal:  # while what was queued is worked off
                slowest = max(counts, key=taken.__getitem__)
                ahead = max(last[number] for number in counts) - last[slowest]
                more = max(more, copies + ahead // (taken[slowest] - now) + 2)
                most = MOST_LAGGING
            needed.append(more if more <= min(most, MOST_TASKS // len(graph)) else 0)
        alike = (copy for copy, ns in enumerate(passes) if abs(ns - now) <= SETTLED * abs(now))
        first = max(first, next(alike))
    return first, max(needed) if max(needed) > copies else min(needed)


def need_steps(graph: Graph) -> None:
    """Raise `GraphError` if there is no step to be judged."""
    if not len(graph):
        raise GraphError("there is nothing to simulate: the graph has no tasks")
    if not covered_steps(graph).any():
        reasons = sorted({step["why_not"] for step in graph.steps if step.get("why_not")})
        said = f"no step of this trace can be judged: {'; '.join(reasons) or 'it has no steps'}."
        if "recorded" not in said:
            said += " Record at least two whole steps, or name another marker with --step-marker."
        raise GraphError(said)


def repeatable(graph: Graph) -> Window | None:
    """Return the program range of the covered steps, or None if they cannot follow themselves.

    All of them count, since steps of a run differ; of a very long recording the last ones. A sole step has no
    neighbour to show how one leads into the next. Of several ranks each has a range of its own; None where
    their steps cannot be told to be the same ones.
    """
    by_rank = dict[int, list[int]]()
    for number, step in enumerate(graph.steps):
        by_rank.setdefault(step_rank(step), []).append(number)
    longest = max(
        FEWEST_REPEATED, MOST_REPEATED * len(graph.steps) // max(len(graph) * len(by_rank), 1)
    )
    if len(by_rank) > 1:
        return _windows_of_ranks(graph, by_rank, longest)
    covered = np.flatnonzero(covered_steps(graph)).tolist()
    return _window(graph, covered[-longest:]) if covered and covered[0] else None


def _window(graph: Graph, steps: list[int]) -> tuple[int, int]:
    """Return the program range of some steps that follow each other."""
    begin = graph.steps[steps[0]]["start_ns"]
    end = graph.steps[steps[-1]]["end_ns"]
    return int(begin) * ORDER_STEP, int(end) * ORDER_STEP


def _windows_of_ranks(
    graph: Graph, by_rank: dict[int, list[int]], longest: int
) -> dict[int, tuple[int, int]] | None:
    """Return each rank's program range of the last covered steps, at most so many, the same on all ranks.

    None if a rank has no covered step that others follow, or a collective would be inside on
    one rank and outside on another: repeated, it would meet another one.
    """
    rank_of = graph.rank
    if not np.isin(rank_of[graph.alive & (graph.row >= 0)], list(by_rank)).all():
        return None  # a rank without steps
    shift = _step_shifts(graph, by_rank)
    window = {}
    for members in set(coupled(graph).values()):
        together = [rank for rank in by_rank if rank in members]
        covered = [
            {
                place - shift[rank]
                for place, step in enumerate(by_rank[rank])
                if place and graph.steps[step].get("covered")  # the first step follows none
            }
            for rank in together
        ]
        places = sorted(set.intersection(*covered))[-longest:]
        if not places:
            return None
        for rank in together:
            window[rank] = _window(graph, [by_rank[rank][place + shift[rank]] for place in places])
    src, dst = _links(graph)
    where = where_in(graph, window)
    across = rank_of[src] != rank_of[dst]
    return window if (where[src] == where[dst])[across].all() else None


def coupled(graph: Graph, *, waiting: bool = False) -> dict[int, frozenset[int]]:
    """Return, for each rank, the ranks that it meets, through others too.

    If only those are asked for that make it wait or wait for it, a meeting after which nobody waits is none.
    """
    ranks = dict.fromkeys(step_rank(step) for step in graph.steps)
    found = {rank: frozenset([rank]) for rank in [*ranks, *graph.ranks.tolist()]}
    if len(ranks) < 2:
        return {rank: found[rank] for rank in ranks}
    src, dst = _links(graph)
    rank = graph.rank
    if waiting:
        holds = ~graph.in_background[dst] | np.isin(dst, src)
        src = src[holds]
        dst = dst[holds]
    for one, other in combinations([rank[src], rank[dst]])[1]:
        together = found[one] | found[other]
        found |= dict.fromkeys(together, together)
    return {rank: found[rank] for rank in ranks}


def _links(graph: Graph) -> tuple[ndarray, ndarray]:
    src = graph.links["src"]
    dst = graph.links["dst"]
    there = graph.alive[src] & graph.alive[dst]
    return src[there], dst[there]


def _step_shifts(graph: Graph, by_rank: dict[int, list[int]]) -> dict[int, int]:
    """Return by how many places each rank's steps are ahead of those of the rank that has the most.

    Told by the majority of the collectives that two ranks met in, directly or through others; ranks that
    met none end together.
    """
    rank_of, place = np.full((2, len(graph.steps)), -1)
    for rank, steps in by_rank.items():
        rank_of[steps] = rank
        place[steps] = np.arange(len(steps))
    src, dst = _links(graph)
    step = graph.step[np.concatenate([src, dst])]
    known = step >= 0
    # What follows several: the step of each rank in it.
    meetings = combinations([np.tile(dst, 2)[known], rank_of[step[known]], place[step[known]]])[1]
    near: dict[int, dict[int, Counter[int]]] = {rank: defaultdict(Counter) for rank in by_rank}
    for _, each in groupby(meetings, key=itemgetter(0)):
        (_, first, at), *others = each
        for _, rank, there in others:
            if rank != first:
                near[first][rank][there - at] += 1
                near[rank][first][at - there] += 1
    most = max(len(steps) for steps in by_rank.values())
    shift = dict[int, int]()
    for first, steps in by_rank.items():
        waiting = [] if first in shift else [first]
        shift.setdefault(first, len(steps) - most)
        while waiting:
            rank = waiting.pop()
            for other, votes in near[rank].items():
                if other not in shift:
                    shift[other] = shift[rank] + votes.most_common(1)[0][0]
                    waiting.append(other)
    return shift
