"""The settled step: what every further step would take.

A recorded window of a few steps may begin with an empty launch queue and end with a
full one, and a change moves that balance: made twice as fast, a GPU first works off
what was queued. So the covered steps are simulated again behind themselves, and where
the second pass does not take as long as the first, more are added until it does. Equal
passes are not enough: while what was queued is worked off, the threads take longer for
a pass than the device, which catches up with them later.
"""

from __future__ import annotations

from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.errors import GraphError
from daydream.graph.graph import ORDER_STEP
from daydream.simulate import simulate
from daydream.simulate.rank_windows import coupled, windows_of_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daydream.graph.graph import Graph
    from daydream.graph.windows import Window
    from daydream.simulate.contention import Contention
    from daydream.simulate.timeline import Timeline

SETTLED = 0.001  # two passes over the window that differ by no more than this have settled
FEWEST_REPEATED = 8  # steps, where there are so many: a window shorter than that may miss a kind of step
MOST_REPEATED = 500_000  # tasks; of a longer recording the last steps that hold so many are repeated
MOST_COPIES = 64
MOST_LAGGING = 4_096  # copies while a queue is worked off: none holds more launches, and each copy has one
MOST_TASKS = 4_000_000


class Settled(NamedTuple):
    """A simulated window. `step_ns` is the settled step, `copy` the pass it was read from."""

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

    @property
    def judged(self) -> int:
        """How many of these passes were judged; some may have been simulated behind them."""
        return 1 + max((copy for copy, _ in self.times), default=0)

    def first_pass(self) -> dict[int, int]:
        """Return the times of the covered steps as recorded, not repeated."""
        return {step: ns for (copy, step), ns in self.times.items() if copy == 0}

    def mean_after(self, after: Settled) -> int:
        """Return the mean step after a change, in ns, over the steps that both have."""
        now, then = self.step_times(), after.step_times()
        both = [step for step in now if step in then]
        work = sum(now[step] for step in both)
        if not work:  # nothing is left of any step, or nothing was there
            return round(fmean(then.values())) if then else 0
        return round(self.step_ns * sum(then[step] for step in both) / work)

    def nearest_steps(self, after: Settled, before_ns: int, after_ns: int) -> tuple[int, int]:
        """Return the step nearest to two times, here and after a change: the same one where both have it."""
        now, then = self.step_times(), after.step_times()
        both = [step for step in now if now[step] and then.get(step) is not None]
        if not both:
            return self.typical()[0], after.typical()[0]
        chosen = min(both, key=lambda step: abs(now[step] - before_ns) + abs(then[step] - after_ns))
        return chosen, chosen


def settle(graph: Graph, *, passes: int = 2, contention: Contention | None = None, spare: int = 0) -> Settled:
    """Simulate the covered steps until they have settled. Raises `GraphError` if the trace covers none.

    `passes` are simulated at once, as `Settled.passes` of a graph without contention counts them. Where
    they are more than it takes, the first of them are judged as if they stood alone: what comes later
    changes nothing before it. So only the speed depends on this number; a change often takes as many as
    the untouched graph.
    `contention` is as in `simulate`. `spare` passes are simulated behind those that are judged: one, where
    changes of the graph will be with contention, makes its plan that of the changes, too.
    """
    need_steps(graph)
    window = repeatable(graph)
    if window is None:
        timeline = simulate(graph, contention=contention)
        return Settled(timeline, timeline.step_times(), 0, settled=True)
    members = coupled(graph, waiting=True)
    beyond = spare if contention is None else 1  # what transfers meet in the pass behind slows them too
    asked = 2
    copies = asked if graph.scheduled else max(asked, passes)  # by policy a later pass may overtake another
    while True:
        timeline = simulate(graph, copies=copies + beyond, window=window, contention=contention)
        ends = _lane_ends(timeline)[:copies]
        found = settled_within(timeline, timeline.step_times(), ends, members, asked)
        if isinstance(found, Settled):
            return found
        copies = asked = found


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


def passes_needed(copies: int, before: int, last: int, slowest: int, ahead: int, tasks: int) -> int:
    """Return how many passes to simulate next: 0 if these have settled, -1 if no more can be simulated.

    `before` and `last` are the times of the last two passes, `slowest` what the slowest
    lane took for the last, `ahead` how far it ended before the last completion.
    """
    more = 2 * copies
    lagging = abs(last - before) <= SETTLED * before
    if lagging:
        if slowest <= (1 + SETTLED) * last:
            return 0
        more = max(more, copies + ahead // (slowest - last) + 2)
    if more * tasks > MOST_TASKS or more > (MOST_LAGGING if lagging else MOST_COPIES):
        return -1
    return more


def settled_within(
    timeline: Timeline,
    times: dict[tuple[int, int], int],
    ends: np.ndarray,
    members: Mapping[int, frozenset[int]],
    asked: int = 2,
) -> Settled | int:
    """Return the steps of the passes that had settled, or how many passes to simulate for that.

    `times` are those of the steps, `ends` when each lane ends with each pass. Judged are the first `asked`
    passes, then as many as those ask for. A sole pass, where nothing can be repeated, has settled.
    """
    if len(ends) == 1:
        return Settled(timeline, times, 0, settled=True)
    while asked <= len(ends):
        times_of = {key: ns for key, ns in times.items() if key[0] < asked}
        more, first = _judge(timeline, times_of, ends[:asked], members)
        if more <= 0:
            return Settled(timeline, times_of, asked - 1 if more else first, settled=not more)
        asked = more
    return asked


def _judge(
    timeline: Timeline,
    times: dict[tuple[int, int], int],
    ends: np.ndarray,
    members: Mapping[int, frozenset[int]],
) -> tuple[int, int]:
    """Return how many passes to simulate next, as `passes_needed`, and the first that is like the last.

    Each rank must have settled. One that runs ahead of another is held up by it in the end, so
    the lanes of all ranks that it meets count.
    """
    needed, first = [], 0
    for rank, mates in members.items():
        passes = _passes(timeline, times, len(ends), rank if len(members) > 1 else None)
        before, last = passes[-2:]
        slowest = _slowest_lane(timeline, ends, mates if len(members) > 1 else None)
        needed.append(passes_needed(len(ends), before, last, *slowest, len(timeline.graph)))
        alike = (c for c, ns in enumerate(passes) if abs(ns - last) <= SETTLED * abs(last))
        first = max(first, next(alike))
    return max(needed) if max(needed) > 0 else min(needed), first


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
    plan, lanes = timeline.plan, len(timeline.graph.lanes)
    if plan.scheduled:
        ends = np.zeros((int(timeline.copy.max(initial=0)) + 1, lanes), np.int64)
        np.maximum.at(ends, (timeline.copy, plan.lane), timeline.end_ns)
        return ends
    # A lane ends with its last task. What shares a plan's structure (a variant) shares this.
    if "last_on_lanes" not in plan.cache:
        program = timeline.program
        copy = timeline.copy[: program.tasks]
        last = np.full((int(copy.max(initial=0)) + 1) * lanes, -1)
        place = copy.astype(np.int64) * lanes + plan.lane[: program.tasks]
        last[place] = np.arange(len(place))  # of what is assigned to one place, the last stays
        plan.cache["last_on_lanes"] = program.ids(last).reshape(-1, lanes)
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
