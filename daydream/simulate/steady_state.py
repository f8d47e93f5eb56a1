"""The steady state: what every further step would take.

A recorded window of a few steps may begin with an empty launch queue and end with a
full one, and a change moves that balance: made twice as fast, a GPU first works off
what was queued. So the covered steps are simulated again behind themselves, and where
the second pass does not take as long as the first, more are added until it does. Equal
passes are not enough: while what was queued is worked off, the threads take longer for
a pass than the device, which catches up with them later.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import itemgetter
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.errors import GraphError
from daydream.graph.lower import where_in
from daydream.graph.tables import ORDER_STEP
from daydream.simulate import simulate

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.lower import Window
    from daydream.simulate.contention import Contention
    from daydream.simulate.timeline import Timeline

SETTLED = 0.001  # two passes over the window that differ by no more than this have settled
FEWEST_REPEATED = 8  # steps, where there are so many: a window shorter than that may miss a kind of step
MOST_REPEATED = 500_000  # tasks; of a longer recording the last steps that hold so many are repeated
MOST_COPIES = 64
MOST_LAGGING = 4_096  # copies while a queue is worked off: none holds more launches, and each copy has one
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
        return round(fmean(self.step_times().values() or [0]))  # steps that a change left no work take none

    @property
    def typical_ns(self) -> int:
        """Median time of the steps of the pass that had settled."""
        return round(median(self.step_times().values() or [0]))

    def typical(self) -> tuple[int, int]:
        """Return (step, its time) of the settled pass's median step."""
        times = self.step_times()
        middle = median_low(times.values())
        return next(step for step, ns in times.items() if ns == middle), middle

    def step_times(self) -> dict[int, int]:
        """Return the times of the steps of the pass that had settled, in ns."""
        return {step: ns for (copy, step), ns in self.times.items() if copy == self.copy}

    @property
    def passes(self) -> int:
        """How often the window was simulated."""
        return int(self.timeline.copy.max(initial=0)) + 1

    def first_pass(self) -> dict[int, int]:
        """Return the times of the covered steps as recorded, not repeated."""
        return {step: ns for (copy, step), ns in self.times.items() if copy == 0}

    def mean_after(self, after: SteadyState) -> int:
        """Return the mean step after a change, in ns, over the steps that both have."""
        now, then = self.step_times(), after.step_times()
        both = [step for step in now if step in then]
        work = sum(now[step] for step in both)
        if not work:  # nothing is left of any step, or nothing was there
            return round(fmean(then.values())) if then else 0
        return round(self.step_ns * sum(then[step] for step in both) / work)

    def nearest_steps(self, after: SteadyState, before_ns: int, after_ns: int) -> tuple[int, int]:
        """Return the step nearest to two times, here and after a change: the same one where both have it."""
        now, then = self.step_times(), after.step_times()
        both = [step for step in now if now[step] and then.get(step) is not None]
        if not both:
            return self.typical()[0], after.typical()[0]
        chosen = min(both, key=lambda step: abs(now[step] - before_ns) + abs(then[step] - after_ns))
        return chosen, chosen


def settle(graph: Graph, *, contention: Contention | None = None, copies: int = 2) -> SteadyState:
    """Return the steady state of the covered steps: they are repeated until it is reached, or never will be.

    `contention` is as in `simulate`. So many `copies` of the window are simulated at once, where it is known
    that fewer will not do, which changes no time: what comes later holds up nothing before it. Raises
    `GraphError` if the trace covers no step.
    """
    need_steps(graph)
    window = repeatable(graph)
    if window is None:
        timeline = simulate(graph, contention=contention)
        return SteadyState(timeline, timeline.step_times(), 0, settled=True)
    members = coupled(graph, waiting=True)
    later_counts = contention is not None or bool(graph.scheduled)
    simulated, copies = 2 if later_counts else copies, 2
    while True:
        simulated = max(simulated, copies)
        # Transfers of the pass after the last one slow that one, too.
        beyond = int(contention is not None)
        timeline = simulate(graph, copies=simulated + beyond, window=window, contention=contention)
        all_times, all_ends = timeline.step_times(), _lane_ends(timeline)
        while copies <= simulated:
            times = {key: ns for key, ns in all_times.items() if key[0] < copies}
            ends = all_ends[:copies]
            if len(ends) == 1:  # the window holds no work
                return SteadyState(timeline, times, 0, settled=True)
            first, needed = _reached(timeline, times, ends, members)
            if needed <= copies:
                steady = needed == copies
                return SteadyState(timeline, times, first if steady else copies - 1, settled=steady)
            copies = needed


def _reached(
    timeline: Timeline,
    times: dict[tuple[int, int], int],
    ends: np.ndarray,
    members: dict[int, frozenset[int]],
) -> tuple[int, int]:
    """Return the first settled pass, and how many copies it takes: more than there are, or 0 if none do."""
    copies, first, needed = len(ends), 0, []
    for rank, together in members.items():
        # One that runs ahead of another is held up by it in the end, so the lanes of all ranks that it
        # meets count.
        several = len(members) > 1
        passes = _passes(timeline, times, copies, rank if several else None)
        slowest, ahead = _slowest_lane(timeline, ends, together if several else None)
        before, last = passes[-2:]
        equal = abs(last - before) <= SETTLED * before
        if equal and slowest <= (1 + SETTLED) * last:
            needed.append(copies)
        else:
            more, most = 2 * copies, MOST_COPIES
            if equal:  # while what was queued is worked off
                more, most = max(more, copies + ahead // (slowest - last) + 2), MOST_LAGGING
            needed.append(more if more <= min(most, MOST_TASKS // len(timeline.graph)) else 0)
        alike = (copy for copy, ns in enumerate(passes) if abs(ns - last) <= SETTLED * abs(last))
        first = max(first, next(alike))
    return first, max(needed) if max(needed) > copies else min(needed)


def need_steps(graph: Graph) -> None:
    """Raise `GraphError` if there is no step to be judged."""
    if not len(graph):
        raise GraphError("there is nothing to simulate: the graph has no tasks")
    covered = [step for step in graph.steps if step.get("covered")]
    if not covered:
        reasons = sorted({step["why_not"] for step in graph.steps if step.get("why_not")})
        raise GraphError(
            "no step of this trace can be judged"
            + (f": {'; '.join(reasons)}." if reasons else ": it has no steps.")
            + " Record at least two whole steps, or name another marker with --step-marker."
        )


def _passes(
    timeline: Timeline, times: dict[tuple[int, int], int], copies: int, rank: int | None
) -> list[int]:
    """Return the time of each pass over the steps (of a rank) that are repeated, in ns."""
    repeated = {step for copy, step in times if copy}
    if rank is not None:
        repeated = {step for step in repeated if timeline.graph.steps[step].get("rank", 0) == rank}
    passes = [0] * copies
    for (copy, step), ns in times.items():
        if step in repeated:
            passes[copy] += ns
    return passes


def _lane_ends(timeline: Timeline) -> np.ndarray:
    """Return when each lane ends with each pass, in ns: a row a pass."""
    plan, copy, lanes = timeline.plan, timeline.copy, len(timeline.graph.lanes)
    if plan.scheduled:
        ends = np.zeros((int(copy.max(initial=0)) + 1, lanes), np.int64)
        np.maximum.at(ends, (copy, plan.lane), timeline.end_ns)
        return ends
    if "last_on_lanes" not in plan.cache:
        last = np.full((int(copy.max(initial=0)) + 1) * lanes, -1)
        last[copy * lanes + plan.lane] = np.arange(len(plan))  # of several entries the last is written last
        plan.cache["last_on_lanes"] = last.reshape(-1, lanes)
    last = plan.cache["last_on_lanes"]
    return np.where(last >= 0, timeline.end_ns[last], 0)


def _slowest_lane(
    timeline: Timeline, ends: np.ndarray, ranks: frozenset[int] | None = None
) -> tuple[int, int]:
    """Return how long the slowest lane takes for a pass, and how far ahead of the last completion it is.

    Background threads do not count: nothing waits for them. Of several `ranks` only their lanes do.
    """
    before, last = ends[-2:]
    counts = np.array([
        not lane.background and (ranks is None or lane.rank in ranks) for lane in timeline.graph.lanes
    ], bool) & (last > 0)  # fmt: skip
    taken = np.where(counts, last - before, 0)
    slowest = int(np.argmax(taken))
    return int(taken[slowest]), int(last[counts].max(initial=0) - last[slowest])


def repeatable(graph: Graph) -> Window | None:
    """Return the program range of the covered steps, or None if they cannot follow themselves.

    All of them count, since steps of a run differ; of a very long recording the last ones. A sole step has no
    neighbour to show how one leads into the next. Of several ranks each has a range of its own; None where
    their steps cannot be told to be the same ones.
    """
    steps = graph.steps
    ranks = {step.get("rank", 0) for step in steps}
    longest = max(FEWEST_REPEATED, MOST_REPEATED * len(steps) // max(len(graph) * len(ranks), 1))
    if len(ranks) > 1:
        return windows_of_ranks(graph, longest)
    covered = [number for number, step in enumerate(steps) if step.get("covered")]
    if len(steps) < 2 or not covered or covered[0] == 0:
        return None
    first = covered[-longest:][0]
    begin, end = steps[first]["start_ns"], steps[covered[-1]]["end_ns"]
    return int(begin) * ORDER_STEP, int(end) * ORDER_STEP


def windows_of_ranks(graph: Graph, longest: int) -> dict[int, tuple[int, int]] | None:
    """Return each rank's program range of the last covered steps, at most so many, the same on all ranks.

    None if a rank has no covered step that others follow, or a collective would be inside on
    one rank and outside on another: repeated, it would meet another one.
    """
    by_rank: dict[int, list[int]] = {}
    for number, step in enumerate(graph.steps):
        by_rank.setdefault(step.get("rank", 0), []).append(number)
    columns = graph.columns
    recorded = np.unique(columns["lane"][graph.alive & (columns["row"] >= 0)]).tolist()
    if {graph.lanes[lane].rank for lane in recorded} - set(by_rank):
        return None  # a rank without steps
    shift = _step_shifts(graph, by_rank)
    window = {}
    for members in set(coupled(graph).values()):
        together = [rank for rank in by_rank if rank in members]
        places = [
            place
            for place in range(max(len(steps) for steps in by_rank.values()))
            if all(_follows(graph, by_rank[rank], place + shift[rank]) for rank in together)
        ][-longest:]
        if not places:
            return None
        for rank in together:
            first, last = (by_rank[rank][place + shift[rank]] for place in (places[0], places[-1]))
            window[rank] = (
                int(graph.steps[first]["start_ns"]) * ORDER_STEP,
                int(graph.steps[last]["end_ns"]) * ORDER_STEP,
            )
    return window if _is_closed(graph, window) else None


def coupled(graph: Graph, *, waiting: bool = False) -> dict[int, frozenset[int]]:
    """Return, for each rank, the ranks that it meets, through others too.

    If only those are asked for that make it wait or wait for it, a meeting after which nobody waits is none.
    """
    found = {step.get("rank", 0): frozenset([step.get("rank", 0)]) for step in graph.steps}
    if len(found) < 2:
        return found
    src, dst = _links(graph)
    if waiting:
        behind = np.array([lane.background for lane in graph.lanes], bool)[graph.columns["lane"][dst]]
        holds = ~behind | np.isin(dst, src)
        src, dst = src[holds], dst[holds]
    rank = np.array([lane.rank for lane in graph.lanes], np.int64)[graph.columns["lane"]]
    for one, other in np.unique(np.stack([rank[src], rank[dst]], axis=1), axis=0).tolist():
        together = found.get(one, frozenset([one])) | found.get(other, frozenset([other]))
        for mate in together:
            found[mate] = together
    return {
        rank: mates for rank, mates in found.items() if any(s.get("rank", 0) == rank for s in graph.steps)
    }


def _links(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    src, dst = graph.links["src"], graph.links["dst"]
    there = (src >= 0) & (dst >= 0)
    there[there] &= graph.alive[src[there]] & graph.alive[dst[there]]
    return src[there], dst[there]


def _follows(graph: Graph, steps: list[int], place: int) -> bool:
    """Tell whether a rank's step at a place is covered and not its first, which follows none."""
    return 0 < place < len(steps) and bool(graph.steps[steps[place]].get("covered"))


def _step_shifts(graph: Graph, by_rank: dict[int, list[int]]) -> dict[int, int]:
    """Return by how many places each rank's steps are ahead of those of the rank that has the most.

    Told by the majority of the collectives that two ranks met in, directly or through others; ranks that
    met none end together.
    """
    near: dict[int, list[tuple[int, int]]] = {rank: [] for rank in by_rank}
    for (one, other), counts in _votes(graph, by_rank).items():
        ahead = counts.most_common(1)[0][0]
        near[one].append((other, ahead))
        near[other].append((one, -ahead))
    most = max(len(steps) for steps in by_rank.values())
    shift: dict[int, int] = {}
    for first, steps in by_rank.items():
        if first in shift:
            continue
        shift[first] = len(steps) - most
        waiting = [first]
        while waiting:
            rank = waiting.pop()
            for other, ahead in near[rank]:
                if other not in shift:
                    shift[other] = shift[rank] + ahead
                    waiting.append(other)
    return shift


def _votes(graph: Graph, by_rank: dict[int, list[int]]) -> dict[tuple[int, int], Counter[int]]:
    """Return how often each pair of ranks met so many steps apart."""
    place = np.full(len(graph.steps) + 1, -1)
    rank_of = np.full(len(graph.steps) + 1, -1)
    for rank, steps in by_rank.items():
        place[steps], rank_of[steps] = np.arange(len(steps)), rank
    src, dst = _links(graph)
    step = graph.columns["step"].astype(np.int64)
    ends = np.concatenate([src, dst])
    what = np.tile(dst, 2)[step[ends] >= 0]  # what follows several: the step of each rank in it
    rows = np.stack([what, rank_of[step[ends[step[ends] >= 0]]], place[step[ends[step[ends] >= 0]]]], axis=1)
    votes: dict[tuple[int, int], Counter[int]] = {}
    for _, each in groupby(np.unique(rows, axis=0).tolist(), key=itemgetter(0)):
        (_, first, at), *others = each
        for _, rank, there in others:
            if rank != first:
                votes.setdefault((first, rank), Counter())[there - at] += 1
    return votes


def _is_closed(graph: Graph, window: dict[int, tuple[int, int]]) -> bool:
    """Tell whether what joins two ranks is inside the window, before or behind it on both."""
    src, dst = _links(graph)
    lane, where = graph.columns["lane"], where_in(graph, window)
    rank = np.array([each.rank for each in graph.lanes], np.int64)
    across = rank[lane[src]] != rank[lane[dst]]
    return bool((where[src] == where[dst])[across].all())
