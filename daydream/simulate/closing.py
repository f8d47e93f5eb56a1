"""Which work may complete steps, and which step counts from which: it hardly depends on what tasks take.

So plans that are alike share it (`daydream.graph.alike`): other times seldom let other tasks last beyond
their steps.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline

Key = tuple[int, int]  # copy, step


class Closing(NamedTuple):
    """The last work of each (copy, step) on each lane, in a timeline.

    `tasks` are its entries, int64. `keys` are the steps that they close, ascending; those of one stand
    together in `tasks[order]`, from `first` on. `spans` says of each covered step which one's completion it
    counts from; None: its own start.
    """

    tasks: np.ndarray
    keys: list[Key]
    order: np.ndarray
    first: np.ndarray
    spans: dict[Key, Key | None]

    @classmethod
    def of(cls, timeline: Timeline) -> Closing:
        """Return that of a timeline, from its plan's cache where it is known for such times."""
        cache, graph = timeline.plan.cache, timeline.graph
        completing: _Completing | None = cache.get("completing")
        if completing is None or completing.steps != graph.steps:
            completing = cache["completing"] = _Completing.of(graph)
        beyond = completing.beyond(graph)
        known = completing.known
        if known is None or not np.array_equal(known[0], beyond):
            known = beyond, _found(timeline, completing.with_these(beyond))
            cache["completing"] = completing._replace(known=known)
        return known[1]


class _Completing(NamedTuple):
    """Which step each task of a graph can complete: `step`, -1 for none, int32, shape (ids,).

    None of background threads, nor the own time of a named range. Nor, beside a device, CPU work that lasts
    beyond the range of its step: what a recorded step does on CPUs ends with its range. `on_cpus` may last
    beyond, and do where they take more than is left of it. `known` is who did so at last, and what that gave.
    """

    steps: list[dict[str, Any]]
    step: np.ndarray
    on_cpus: np.ndarray
    known: tuple[np.ndarray, Closing] | None = None

    @classmethod
    def of(cls, graph: Graph) -> _Completing:
        columns, trace = graph.columns, graph.trace
        step, on_cpu = columns["step"].copy(), columns["kind"] == CPU
        background = [number for number, lane in enumerate(graph.lanes) if lane.background]
        if background:
            step[np.isin(columns["lane"], background)] = -1
        if trace is not None and len(trace):
            named = np.append(trace.is_kind("annotation"), True)[columns["row"]]  # the last: of no row
            step[named & on_cpu] = -1
        beside_device = len(graph.steps) > 0 and not on_cpu.all()
        on_cpus = np.flatnonzero(on_cpu & (step >= 0) & (columns["row"] >= 0) & beside_device)
        on_cpus = on_cpus.astype(np.int32)  # held with the graph
        return cls([dict(step) for step in graph.steps], step, on_cpus)

    def beyond(self, graph: Graph) -> np.ndarray:
        """Return the tasks that last beyond their steps with the times of this graph."""
        columns, tasks = graph.columns, self.on_cpus
        ends = np.array([step["end_ns"] for step in self.steps], np.int64)
        room = ends[self.step[tasks]] - columns["measured_start_ns"][tasks]
        return tasks[columns["duration_ns"][tasks] > room]

    def with_these(self, beyond: np.ndarray) -> np.ndarray:
        """Return `step` where these tasks last beyond."""
        step = self.step.copy()
        step[beyond] = -1
        return step


def _found(timeline: Timeline, completes: np.ndarray) -> Closing:
    graph = timeline.graph
    tasks = _last_work(timeline, completes)
    copy, step = timeline.copy[tasks], graph.columns["step"][timeline.task[tasks]]
    order = np.lexsort((step, copy))
    copy, step = copy[order], step[order]
    new = (copy[1:] != copy[:-1]) | (step[1:] != step[:-1])
    first = np.flatnonzero(np.append(True, new)[: len(order)])
    keys = list(zip(copy[first].tolist(), step[first].tolist(), strict=True))
    return Closing(tasks, keys, order, first, _spans(graph, keys, timeline.repeats))


def _last_work(timeline: Timeline, completes: np.ndarray) -> np.ndarray:
    graph, lanes = timeline.graph, len(timeline.graph.lanes)
    if timeline.plan.scheduled:  # a lane with a policy runs in another order than that of ids
        return np.flatnonzero(completes[timeline.task] >= 0)
    none = len(graph.steps) * lanes  # the place of what completes no step
    by_task = np.where(completes >= 0, completes * np.int64(lanes) + graph.columns["lane"], none)
    program = timeline.program
    copy = timeline.copy[: program.tasks]
    place = by_task[timeline.task[: program.tasks]] + copy * np.int64(none + 1)
    last = np.full((int(copy.max(initial=0)) + 1, none + 1), -1)
    last.reshape(-1)[place] = np.arange(len(place))  # of what is assigned to one place, the last stays
    return program.all_ids(np.sort(last[:, :none][last[:, :none] >= 0]))


def _spans(graph: Graph, keys: list[Key], repeats: Mapping[int, tuple[int, int]]) -> dict[Key, Key | None]:
    """Return, by covered (copy, step), the one that runs before it, or None."""
    ends, mates_of = frozenset(keys), dict[int, list[int]]()
    for number, info in enumerate(graph.steps):
        mates_of.setdefault(info.get("rank", 0), []).append(number)
    found: dict[Key, Key | None] = {}
    for copy, step in keys:
        rank = graph.steps[step].get("rank", 0)
        first, last = repeats.get(rank, (0, len(graph.steps) - 1))
        if graph.steps[step].get("covered") and not (copy and step < first):
            found[copy, step] = _step_before(copy, step, mates_of[rank], first, last, ends)
    return found


def _step_before(
    copy: int, step: int, mates: list[int], first: int, last: int, ends: frozenset[Key]
) -> Key | None:
    """Return the (copy, step) that runs before one, or None; a window follows its own last step."""
    place = bisect.bisect_left(mates, step)
    if not copy:
        before = (copy, mates[place - 1]) if place else None
        return before if before in ends else None
    at = bisect.bisect_right(mates, last)
    around = [(copy, place), (copy - 1, at)]  # a step that a change left without work is passed over
    earlier = ((here, mates[one]) for here, end in around for one in range(end - 1, -1, -1))
    return next((key for key in earlier if key[1] >= first and key in ends), None)
