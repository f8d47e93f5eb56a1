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
from daydream.simulate.batch import Scaled, ends, scaled
from daydream.simulate.rank_windows import coupled
from daydream.simulate.steady import Settled, need_steps, repeatable, settle, settled_within

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline


# Fewer are settled one by one: which entries of a timeline stand for which tasks takes as long. Only speed
# depends on this.
LEAST_VARIANTS = 12


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
    members = coupled(graph, waiting=True)
    waiting = {1 if window is None else max(passes, 2): list(range(count))}
    while waiting:
        copies = min(waiting)
        variants = np.array(sorted(waiting.pop(copies)), np.int64)
        run = None
        if len(variants) >= LEAST_VARIANTS and not graph.scheduled and not isinstance(window, Mapping):
            run = _Run(simulate(graph, copies=copies, window=window))
        if run is None or run.timeline.begins_move:  # by what lies ahead of a step, which is not observed
            for variant, changed in zip(variants.tolist(), _changed(graph, speedups, variants), strict=True):
                note(variant, settle(changed))
            continue
        found = run.variants(_chosen(speedups, variants))
        for variant, (times, lane_ns) in zip(variants.tolist(), found, strict=True):
            settled = settled_within(run.timeline, times, lane_ns, members)
            if isinstance(settled, Settled):
                note(variant, settled)
            else:
                waiting.setdefault(settled, []).append(variant)
    return result


class _Run:
    """A window repeated so often, and what tells whether its steps have settled."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.copies = int(timeline.copy.max()) + 1
        # The last entry of each lane in each pass, as the last assigned to a place stays; -1 for none.
        self.lane_ends = np.full((self.copies, len(timeline.graph.lanes)), -1)
        self.lane_ends[timeline.copy, timeline.plan.lane] = np.arange(len(timeline.task))

    def variants(
        self, speedups: Sequence[Speedup]
    ) -> Iterator[tuple[dict[tuple[int, int], int], np.ndarray]]:
        """Yield, for each variant, the times of its steps and when each lane ends with each pass."""
        closing = self.timeline.closing
        ends_with = self.lane_ends >= 0
        observed = np.append(closing, self.lane_ends[ends_with])
        for row in ends(self.timeline.plan, list(self._changes(speedups)), observed):
            lane_ns = np.zeros(self.lane_ends.shape, np.int64)
            lane_ns[ends_with] = row[len(closing) :]
            yield self.timeline.step_times(row[: len(closing)]), lane_ns

    def _changes(self, speedups: Sequence[Speedup]) -> list[Scaled]:
        """Return the speed-ups as variants of a plan whose gaps between passes stand for another task's."""
        timeline = self.timeline
        graph = timeline.graph.copy()
        graph.columns["gap_ns"] = np.arange(graph.size)
        window = repeatable(graph) if self.copies > 1 else None
        gap_owner = simulate(graph, copies=self.copies, window=window).plan.gap_ns
        duration_at, gap_at = _Inverse(timeline.task, graph.size), _Inverse(gap_owner, graph.size)
        return [
            scaled(
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
