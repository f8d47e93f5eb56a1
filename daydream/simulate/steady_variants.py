"""The settled step of many variants: the same work, some of it faster or slower.

Says for each variant exactly what `settle` says about a copy of the graph with these tasks
scaled. The window is repeated as often as `settle` would; all variants that need the same
number of passes are simulated together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daydream.simulate import simulate
from daydream.simulate.batch import LEAST_VARIANTS, Change, ends, scaled
from daydream.simulate.steady import SETTLED, Settled, need_steps, passes_needed, repeatable, settle

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Speedup:
    """Variants that scale some tasks (ids of the graph), one a factor; their gaps, where asked, too."""

    ids: np.ndarray
    factors: tuple[float, ...]
    gaps: bool = False
    durations: bool = True

    def apply(self, graph: Graph, factor: float) -> None:
        """Scale the tasks of a graph."""
        for name, chosen in (("duration_ns", self.durations), ("gap_ns", self.gaps)):
            if chosen:
                values = graph.columns[name]
                values[self.ids] = np.floor(values[self.ids] * factor + 0.5).astype(np.int64)


@dataclass
class SettledVariants:
    """The times of the covered steps in the pass that had settled, in ns: a row a variant, a column a step.

    -1 where that pass does not hold the step.
    """

    steps: list[int]
    step_ns: np.ndarray
    settled: np.ndarray


def settle_all(graph: Graph, speedups: Sequence[Speedup], *, passes: int = 2) -> SettledVariants:
    """Return the settled steps of every variant, speed-ups in their order and factors in theirs.

    `passes` are simulated at first; only speed depends on it, see `settle`.

    Raises `GraphError` as `settle` does.
    """
    need_steps(graph)
    covered = [number for number, step in enumerate(graph.steps) if step.get("covered")]
    count = sum(len(speedup.factors) for speedup in speedups)
    result = SettledVariants(covered, np.full((count, len(covered)), -1, np.int64), np.zeros(count, bool))
    place = {step: column for column, step in enumerate(covered)}

    def note(variant: int, settled: Settled) -> None:
        result.settled[variant] = settled.settled
        for (copy, step), ns in settled.times.items():
            if copy == settled.copy:
                result.step_ns[variant, place[step]] = ns

    window = repeatable(graph)
    copies = 1 if window is None else max(passes, 2)
    asked = min(copies, 2)
    waiting = {copies: np.arange(count)}
    while waiting:
        copies, variants = waiting.popitem()
        if len(variants) < LEAST_VARIANTS or graph.scheduled or isinstance(window, Mapping):
            for variant, changed in zip(variants.tolist(), _changed(graph, speedups, variants), strict=True):
                note(variant, settle(changed))
            continue
        run = _Run(simulate(graph, copies=copies, window=window))
        needed = run.settle(_chosen(speedups, variants), result, variants, place, asked)
        asked = 0
        for more in np.unique(needed[needed > 0]).tolist():
            waiting[more] = np.append(waiting.get(more, variants[:0]), variants[needed == more])
    return result


class _Run:
    """A window repeated so often, and what tells whether its steps have settled."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.copies = int(timeline.copy.max()) + 1
        lanes = timeline.graph.lanes
        self.closing = timeline.closing
        step = timeline.graph.columns["step"][timeline.task[self.closing]]
        key = timeline.copy[self.closing] * np.int64(len(timeline.graph.steps) + 1) + step
        self.closing = self.closing[np.argsort(key, kind="stable")]
        # The last entry of each lane in each pass, as the last assigned to a place stays; -1 for none.
        self.lane_ends = np.full((self.copies, len(lanes)), -1)
        self.lane_ends[timeline.copy, timeline.plan.lane] = np.arange(len(timeline.task))
        self.background = np.array([lane.background for lane in lanes], bool)

    def settle(
        self,
        speedups: Sequence[Speedup],
        result: SettledVariants,
        variants: np.ndarray,
        place: dict[int, int],
        asked: int,
    ) -> np.ndarray:
        """Note the variants that have settled; return how many passes the others need, 0 for the noted.

        Judged are the first `asked` passes, then as many as those ask for; with 0 all of them.
        """
        observed = np.append(self.closing, self.lane_ends[self.lane_ends >= 0])
        found = ends(self.timeline.plan, list(self._changes(speedups)), observed)
        times = self._times(found[:, : len(self.closing)])
        if self.copies == 1:
            copy, needed = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
        else:
            repeated = {step for copy, step in times if copy}
            passes = np.zeros((self.copies, len(found)), np.int64)
            for (number, step), ns in times.items():
                if step in repeated:
                    passes[number] += ns
            lane_ns = np.zeros((*self.lane_ends.shape, len(found)), np.int64)
            lane_ns[self.lane_ends >= 0] = found[:, len(self.closing) :].T
            copy = np.zeros(len(found), np.int64)
            needed = np.full(len(found), asked or self.copies)
            while (open_ := (needed > 0) & (needed <= self.copies)).any():
                count = int(needed[open_].min())
                rows = np.flatnonzero(needed == count)
                copy[rows], needed[rows] = self._judged(passes[:count, rows], lane_ns[:count, :, rows])
        for (number, step), ns in times.items():
            rows = (copy == number) & (needed <= 0)
            result.step_ns[variants[rows], place[step]] = ns[rows]
        result.settled[variants] = needed == 0
        return needed

    def _judged(self, passes: np.ndarray, lane_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pass each variant is read from, and what `passes_needed` says of these passes."""
        taken, ahead = self._slowest_lane(lane_ns[-2:])
        close = np.abs(passes - passes[-1]) <= SETTLED * passes[-1]
        needed = np.array([
            passes_needed(len(passes), int(a), int(b), int(c), int(d), len(self.timeline.graph))
            for a, b, c, d in zip(passes[-2], passes[-1], taken, ahead, strict=True)
        ])  # fmt: skip
        return np.where(needed == 0, close.argmax(axis=0), len(passes) - 1), needed

    def _times(self, closing_ns: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
        """Return the time of each (copy, step), a variant an entry, as `Timeline.step_times` does for one."""
        timeline = self.timeline
        copy = timeline.copy[self.closing]
        step = timeline.graph.columns["step"][timeline.task[self.closing]]
        first = np.flatnonzero(np.append(True, (copy[1:] != copy[:-1]) | (step[1:] != step[:-1])))
        last = np.maximum.reduceat(closing_ns, first, axis=1)
        at = {
            key: place
            for place, key in enumerate(zip(copy[first].tolist(), step[first].tolist(), strict=True))
        }
        times = {}
        for key, before in timeline.spans.items():
            begin = int(timeline.graph.steps[key[1]]["start_ns"]) if before is None else last[:, at[before]]
            times[key] = last[:, at[key]] - begin
        return times

    def _slowest_lane(self, lane_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `settle` asks about the slowest lane, for each variant."""
        before, last = lane_ns
        counts = (last > 0) & ~self.background[:, None]
        taken = np.where(counts, last - before, 0)
        slowest = taken.argmax(axis=0)
        rows = np.arange(taken.shape[1])
        return taken[slowest, rows], np.where(counts, last, 0).max(axis=0) - last[slowest, rows]

    def _changes(self, speedups: Sequence[Speedup]) -> list[Change]:
        """Return the speed-ups as changes of the plan, whose gaps between passes stand for another task's."""
        timeline = self.timeline
        graph = timeline.graph.copy()
        graph.columns["gap_ns"] = np.arange(graph.size)
        window = repeatable(graph) if self.copies > 1 else None
        gap_owner = simulate(graph, copies=self.copies, window=window).plan.gap_ns
        duration_at, gap_at = _Inverse(timeline.task, graph.size), _Inverse(gap_owner, graph.size)
        return [
            scaled(
                timeline.plan,
                duration_at(speedup.ids) if speedup.durations else (),
                speedup.factors,
                gaps_of=gap_at(speedup.ids) if speedup.gaps else (),
            )
            for speedup in speedups
        ]


class _Inverse:
    """From tasks of the graph to the entries of a timeline that stand for them."""

    def __init__(self, task: np.ndarray, size: int) -> None:
        self.entries = np.argsort(task, kind="stable")
        self.pointer = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(task, minlength=size), out=self.pointer[1:])

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        begin, count = self.pointer[ids], self.pointer[ids + 1] - self.pointer[ids]
        shift = np.repeat(begin - np.cumsum(count) + count, count)
        return self.entries[shift + np.arange(len(shift))]


def _chosen(speedups: Sequence[Speedup], variants: np.ndarray) -> list[Speedup]:
    """Return the speed-ups with only these variants, in their order."""
    chosen = []
    first = 0
    for speedup in speedups:
        stop = first + len(speedup.factors)
        inside = variants[(variants >= first) & (variants < stop)] - first
        if len(inside):
            factors = tuple(speedup.factors[number] for number in inside.tolist())
            chosen.append(Speedup(speedup.ids, factors, speedup.gaps, speedup.durations))
        first = stop
    return chosen


def _changed(graph: Graph, speedups: Sequence[Speedup], variants: np.ndarray) -> Iterator[Graph]:
    """Yield a changed copy of the graph for each of these variants."""
    for speedup in _chosen(speedups, variants):
        for factor in speedup.factors:
            changed = graph.copy()
            speedup.apply(changed, factor)
            yield changed
