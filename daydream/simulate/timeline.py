"""Timeline: when every task would run, and what that says about the steps."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from daydream.display import NotebookFigure
from daydream.graph.plan import Cause
from daydream.graph.tables import CPU, KINDS
from daydream.simulate.closing import Closing
from daydream.simulate.critical_path import CriticalPath, critical_path, slack
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from daydream.graph.graph import Graph
    from daydream.graph.lower import Lowered

Name = TypeVar("Name", bound=str)  # of a part of a step


class Stretch(NamedTuple):
    """The chain of causes behind steps that follow each other; its work and delays add up to them."""

    steps: tuple[int, ...]
    path: CriticalPath
    begin_ns: int
    work_ns: np.ndarray
    delay_ns: np.ndarray


class Timeline(NotebookFigure):
    """Start and end of every task, in ns; `task` holds the graph's ids, `copy` the repetition of the window.

    `start_ns` is when a task's work proceeds. A blocking call is entered earlier and
    stands `wait_ns` until then. `repeats` holds the first and last step of the repeated window, by rank;
    `overlaps_settled` is false where what overlaps still changed after as many turns as are made.
    All arrays are int64, shape (tasks,).

    Example::

        graph = daydream.build(daydream.load("examples/mlp_cpu.json.gz"))
        timeline = daydream.simulate(graph)
        print(timeline.makespan_ns, timeline.end_ns - timeline.start_ns)

    """

    def __init__(
        self,
        graph: Graph,
        lowered: Lowered,
        start_ns: np.ndarray,
        end_ns: np.ndarray,
        *,
        repeats: Mapping[int, tuple[int, int]] | None = None,
        overlaps_settled: bool = True,
    ) -> None:
        self.graph = graph
        self.plan = lowered.plan
        self.task, self.copy = lowered.task, lowered.copy
        self.program = lowered.repeats  # of which the other tasks are copies
        self.start_ns, self.end_ns = start_ns, end_ns
        self.repeats = repeats or {}
        self.overlaps_settled = overlaps_settled
        self._begins: dict[tuple[int, int], int] = {}
        self._behind: dict[tuple[int, tuple[int, ...]], list[Stretch]] = {}
        # Of those chains, for who makes them:
        self.pieces: dict[tuple[int, tuple[int, ...]], Any] = {}
        self.causes: dict[tuple[int, tuple[int, ...]], Mapping[Any, int]] = {}

    def __repr__(self) -> str:
        return f"<Timeline {len(self.task):,} tasks, {self.makespan_ns / 1e6:,.3f} ms>"

    @property
    def makespan_ns(self) -> int:
        """End of the last task."""
        return int(self.end_ns.max()) if len(self.end_ns) else 0

    @cached_property
    def wait_ns(self) -> np.ndarray:
        """How long each task's lane waited for the task to proceed: ns, int64, shape (tasks,)."""
        order = self.plan.by_lane()
        ready = np.empty(len(self.task), np.int64)
        ready[order[1:]] = (self.end_ns + self.plan.gap_ns)[order[:-1]]
        ready[order[self.plan.lane_bounds()[:-1]]] = 0
        return np.subtract(self.start_ns, ready, out=ready)

    def waits_of(self, entries: np.ndarray) -> np.ndarray:
        """Return `wait_ns` of some entries, without working out that of all: ns, int64, their shape."""
        ahead = self.plan.before_on_lane(entries)
        ready = np.where(ahead >= 0, self.end_ns[ahead] + self.plan.gap_ns[ahead], 0)
        waits: np.ndarray = self.start_ns[entries] - ready
        return waits

    def column(self, name: str) -> np.ndarray:
        """Return a column of the graph for the timeline's tasks: the column's dtype, shape (tasks,)."""
        return self.graph.column(name, self.task)

    @cached_property
    def last_of_steps(self) -> dict[tuple[int, int], int]:
        """By (copy, step), the task that completes the step: the last to end, background threads aside."""
        inside = self.closing
        if not len(inside):
            return {}
        step = self.graph.columns["step"][self.task[inside]]
        key = self.copy[inside].astype(np.int64) * (len(self.graph.steps) + 1) + step
        order = np.lexsort((inside, self.end_ns[inside], key))
        last = order[np.append(key[order][1:] != key[order][:-1], True)]
        at = zip(self.copy[inside[last]].tolist(), step[last].tolist(), strict=True)
        return dict(zip(at, inside[last].tolist(), strict=True))

    @cached_property
    def _closing(self) -> Closing:
        # What shares a plan's structure (a variant) shares this.
        if "closing" not in self.plan.cache:
            self.plan.cache["closing"] = Closing.of(self)
        found: Closing = self.plan.cache["closing"]
        return found

    @property
    def closing(self) -> np.ndarray:
        """Entries that may complete a step, the last work of each (copy, step) on each lane: int64, (n,)."""
        return self._closing.tasks

    @property
    def spans(self) -> dict[tuple[int, int], tuple[int, int] | None]:
        """By covered (copy, step), the (copy, step) whose completion it counts from; None: its own start."""
        return self._closing.spans

    def step_times(self, closing_ns: np.ndarray | None = None) -> dict[tuple[int, int], int]:
        """Return, by (copy, step), the time from the completion before it to its own; covered steps only.

        A sole step counts from where it begins: as recorded, or as what runs before it lets it. In a repeated
        window the step before the first is the last of the copy before. `closing_ns` is when the `closing`
        tasks end in a variant of this timeline, in their order.
        """
        keys, order, first = self._closing.keys, self._closing.order, self._closing.first
        if not keys:
            return {}
        closing_ns = self.end_ns[self.closing] if closing_ns is None else closing_ns
        ends: dict[tuple[int, int], int] = {}
        latest: dict[int, int] = {}  # by rank: as in the recording, no step is done before the one before it
        for key, end in zip(keys, np.maximum.reduceat(closing_ns[order], first).tolist(), strict=True):
            rank = self.graph.steps[key[1]].get("rank", 0)
            ends[key] = latest[rank] = max(end, latest.get(rank, end))
        times = {}
        for key, before in self.spans.items():
            begin = ends[before] if before is not None else self._begins_ns(*key)
            times[key] = ends[key] - begin
        return times

    def _begins_ns(self, copy: int, step: int) -> int:
        """Return when a step begins that follows none: as recorded, unless what runs before it moves.

        Then it is as long before its first task as recorded, but not before the task ahead of that one ends.
        """
        if (copy, step) not in self._begins:
            self._begins[copy, step] = self._begin(copy, step, int(self.graph.steps[step]["start_ns"]))
        return self._begins[copy, step]

    @property
    def begins_move(self) -> bool:
        """Whether a step that follows none begins behind work of the trace, which a change may move."""
        return any(before is None and self._ahead(*key) is not None for key, before in self.spans.items())

    def _begin(self, copy: int, step: int, recorded: int) -> int:
        found = self._ahead(copy, step)
        if found is None:
            return recorded
        begun, first, done = found
        if first == begun:
            return recorded
        return max(recorded, done) if first > begun else min(recorded, max(first - (begun - recorded), done))

    def _ahead(self, copy: int, step: int) -> tuple[int, int, int] | None:
        """Return when a first task was recorded, when it begins, and when what is ahead of it ends, ns."""
        columns = self.graph.columns
        begun = columns["measured_start_ns"][self.task]
        inside = (columns["step"][self.task] == step) & (self.copy == copy)
        known = np.flatnonzero(inside & (columns["row"][self.task] >= 0))
        if not len(known):
            return None
        one = known[np.argmin(begun[known])]
        lane = columns["lane"][self.task] == columns["lane"][self.task[one]]
        first = int(self.start_ns[inside & lane].min())
        ahead = self.end_ns[lane & ~inside & (self.end_ns <= first)]
        return (int(begun[one]), first, int(ahead.max())) if len(ahead) else None

    def critical_path(self, task: int | None = None) -> CriticalPath:
        """Return the chain of causes behind the end of a timeline entry (default: the last to end)."""
        return critical_path(self.plan, self.start_ns, self.end_ns, task)

    def slack_ns(self, sinks: Any = None) -> np.ndarray:
        """Return how much longer each task alone could take without a sink (default: the end) moving.

        In ns: int64, shape (tasks,).
        """
        return slack(self.plan, self.start_ns, self.end_ns, sinks)

    def breakdown(self, copy: int, *steps: int) -> dict[str, dict[str, int]]:
        """Return where the time of some steps goes, `by_phase` and `by_cause`, in ns a step.

        Each adds up to the mean of the steps. Only time on the chain of causes that leads to their completion
        counts: work that ran beside it was hidden. `by_cause` names kinds of tasks and of edges, which
        reports do not; it goes with the keys of that name in JSON.
        """
        stretches = self.stretches(copy, steps)
        return {
            "by_phase": per_step(_by_phase(self, stretches), len(steps)),
            "by_cause": per_step(_by_cause(self, stretches), len(steps)),
        }

    def by_layer(self, copy: int, *steps: int) -> dict[str, int]:
        """Return where the time of some steps goes by layer, in ns a step, as `breakdown` does by phase.

        Longest first. What belongs to no layer is `unknown`.
        """
        names = ["unknown", *self.graph.texts["layer"]]
        total = np.zeros(len(names), np.int64)
        for each in self.stretches(copy, steps):
            layer = self.graph.columns["layer"][self.task[each.path.task]].astype(np.int64)
            np.add.at(total, layer + 1, each.work_ns + each.delay_ns)
        order = np.argsort(-total, kind="stable")
        return per_step({names[code]: int(total[code]) for code in order}, len(steps))

    def path_to(self, copy: int, step: int) -> tuple[CriticalPath, np.ndarray, np.ndarray]:
        """Return the chain of causes behind a step, and the work of each task on it and the delay before it.

        Only what lies within the step counts: all work and delays add up to it. Both arrays are in ns,
        int64, shape (tasks on the path,).
        """
        (only,) = self.stretches(copy, [step])
        return only.path, only.work_ns, only.delay_ns

    def stretches(self, copy: int, steps: Sequence[int], *, keep: bool = True) -> list[Stretch]:
        """Return the chain of causes behind some covered steps, steps that follow each other as one stretch.

        What leads to the completion of the last of them decides what all of them took together. Kept, since
        tables, ranges and pictures ask for the same ones, unless `keep` is false.
        """
        wanted = copy, tuple(steps)
        found = self._behind.get(wanted)
        if found is None:
            found = [self._stretch(copy, run) for run in self._runs(copy, steps)]
            if keep:
                self._behind[wanted] = found
        return found

    def _runs(self, copy: int, steps: Sequence[int]) -> list[list[int]]:
        """Return the steps in runs of which each counts from the end of the one before it."""
        runs: list[list[int]] = []
        ahead: dict[int, int] = {}  # by step, the one it counts from
        for step in steps:
            before = self.spans[copy, step]
            if before is not None and before[0] == copy:
                ahead[step] = before[1]
        last: dict[int, int] = {}  # by the last step of a run, its place
        for step in steps:
            place = last.pop(ahead.get(step, -1), None)
            if place is None:
                runs.append([])
                place = len(runs) - 1
            runs[place].append(step)
            last[step] = place
        return runs

    def _stretch(self, copy: int, run: Sequence[int]) -> Stretch:
        last, before = self.last_of_steps, self.spans[copy, run[0]]
        begin = self._begins_ns(copy, run[0]) if before is None else int(self.end_ns[last[before]])
        path = critical_path(self.plan, self.start_ns, self.end_ns, last[copy, run[-1]], since=begin)
        start = self.start_ns[path.task]
        work_begin, work_end = np.maximum(start, begin), np.maximum(start + path.task_ns, begin)
        delay_begin = np.maximum(start - path.delay_ns, begin)
        return Stretch(tuple(run), path, begin, work_end - work_begin, np.maximum(start, begin) - delay_begin)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per task: id, name, kind, lane, step, phase, layer, start, end, wait."""
        import pandas as pd

        names = ("name", "kind", "lane", "step", "phase", "layer")
        frame = pd.DataFrame({name: self.column(name) for name in names})
        frame.insert(0, "task", self.task)
        return frame.assign(copy=self.copy, start_ns=self.start_ns, end_ns=self.end_ns, wait_ns=self.wait_ns)


def _by_cause(timeline: Timeline, stretches: Sequence[Stretch]) -> dict[str, int]:
    work, delay = np.zeros(len(KINDS), np.int64), np.zeros((len(Cause), 2), np.int64)
    for each in stretches:
        kinds = timeline.graph.columns["kind"][timeline.task[each.path.task]].astype(np.int64)
        np.add.at(work, kinds, each.work_ns)
        np.add.at(delay, (each.path.cause.astype(np.int64), (kinds != CPU).astype(np.int64)), each.delay_ns)
    found = dict(zip(KINDS, work.tolist(), strict=True))
    for cause in Cause:
        for on_device, ns in enumerate(delay[cause].tolist()):
            why = cause.label
            if cause == Cause.LANE:
                why = "start-up between device tasks" if on_device else "untraced CPU time"
            found[why] = found.get(why, 0) + ns
    return found


def _by_phase(timeline: Timeline, stretches: Sequence[Stretch]) -> dict[str, int]:
    total = np.zeros(len(PHASES) + 1, np.int64)
    for each in stretches:
        phases = timeline.graph.columns["phase"][timeline.task[each.path.task]].astype(np.int64)
        np.add.at(total, phases + 1, each.work_ns + each.delay_ns)
    return dict(zip(("unknown", *PHASES), total.tolist(), strict=True))


def per_step(total: Mapping[Name, int], steps: int) -> dict[Name, int]:
    """Return the parts of a step in whole ns, which add up to the mean step; no parts of nothing."""
    there = {name: ns for name, ns in total.items() if ns}
    found = {name: round(ns / steps) for name, ns in there.items()}
    if found:
        largest = max(found, key=lambda name: found[name])
        found[largest] += round(sum(there.values()) / steps) - sum(found.values())
    return found
