"""Timeline: when every task would run, and what that says about the steps."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from daydream.arrays import run_starts
from daydream.graph.lower import Lowered, steps_in
from daydream.graph.plan import Cause
from daydream.graph.tables import CPU, step_rank
from daydream.lazy import NotebookFigure
from daydream.simulate.critical_path import (
    CriticalPath,
    Path,
    binding,
    critical_path,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from daydream.graph.graph import Graph

Key = tuple[int, int]  # copy, step


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
        start_ns: ndarray,
        end_ns: ndarray,
        *,
        overlaps_settled: bool = True,
    ) -> None:
        self.graph = graph
        self.plan = lowered.plan
        self.task = lowered.task
        self.copy = lowered.copy
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.repeats = {} if lowered.window is None else steps_in(graph, lowered.window)
        self.overlaps_settled = overlaps_settled
        self._paths: dict[tuple[int, ...], Path] = {}
        self._bound: dict[int, tuple[ndarray, ndarray]] = {}  # by copy, of its steps: see `binding`

    def __repr__(self) -> str:
        return f"<Timeline {len(self.task):,} tasks, {self.makespan_ns / 1e6:,.3f} ms>"

    @property
    def makespan_ns(self) -> int:
        """End of the last task."""
        return int(self.end_ns.max(initial=0))

    @property
    def copies(self) -> int:
        """How often the window is there."""
        return int(self.copy.max(initial=0)) + 1

    @cached_property
    def wait_ns(self) -> ndarray:
        """How long each task's lane waited for the task to proceed: ns, int64, shape (tasks,)."""
        return self.waits_of(slice(None))

    def waits_of(self, entries: ndarray | slice) -> ndarray:
        """Return `wait_ns` of some entries, without working out that of all: ns, int64, their shape."""
        ahead = self.plan.before_on_lane()[entries]
        ready = np.where(ahead >= 0, self.end_ns[ahead] + self.plan.gap_ns[ahead], 0)
        return self.start_ns[entries] - ready

    def column(self, name: str) -> ndarray:
        """Return a column of the graph for the timeline's tasks: the column's dtype, shape (tasks,)."""
        return self.graph.column(name, self.task)

    @property
    def closing(self) -> ndarray:
        """Entries that may complete a step: int64, (n,), by copy and step.

        The last work of each (copy, step) on each lane, all of it where a policy orders a lane.
        """
        return self._completions[0]

    @cached_property
    def _completions(self) -> tuple[ndarray, list[Key], ndarray]:
        """`closing`, the (copy, step) that its entries complete, and where those of each begin in it.

        The plan keeps them for timelines whose tasks complete the same steps.
        """
        completes = _completes(self.graph)
        kept, found = self.plan.cache.get("completions", (None, None))
        if found is not None and np.array_equal(kept, completes):
            return found
        completed = completes[self.task]
        steps = len(self.graph.steps)
        lanes = len(self.graph.lanes)
        closing = np.flatnonzero(completed >= 0)
        place = self.copy[closing] * np.int64(steps) + completed[closing]
        if self.plan.scheduled:
            order = np.argsort(place, kind="stable")
            closing = closing[order]
            place = place[order]
        else:
            last = np.full(self.copies * steps * lanes, -1)
            last[place * lanes + self.plan.lane[closing]] = closing  # the last is written last
            used = np.flatnonzero(last >= 0)
            closing = last[used]
            place = used // lanes
        first = np.flatnonzero(run_starts(place))
        found = closing, [divmod(number, steps) for number in place[first].tolist()], first
        self.plan.cache["completions"] = completes, found
        return found

    @cached_property
    def last_of_steps(self) -> dict[Key, int]:
        """By (copy, step), the entry that completes the step: the last to end, background threads aside."""
        closing, keys, first = self._completions
        ends = self.end_ns[closing]
        latest = np.repeat(np.maximum.reduceat(ends, first), np.diff(first, append=len(closing)))
        entries = np.maximum.reduceat(np.where(ends == latest, closing, -1), first)
        return dict(zip(keys, entries.tolist(), strict=True))

    @cached_property
    def spans(self) -> dict[Key, Key | None]:
        """By covered (copy, step), the (copy, step) whose completion it counts from; None: its own start.

        In a repeated window the step before the first is the last of the copy before; a step that a change
        left without work is passed over there.
        """
        keys = self._completions[1]
        steps = self.graph.steps
        done = frozenset(keys)
        found = dict[Key, Key | None]()
        ahead = {}  # by step, the one before it on its rank
        last_of = dict[int, int]()
        for number, info in enumerate(steps):
            rank = step_rank(info)
            ahead[number] = last_of.get(rank, -1)
            last_of[rank] = number
        latest = dict[int, Key]()  # by rank, what was completed last of its window
        for copy, step in keys:
            rank = step_rank(steps[step])
            first, last = self.repeats.get(rank, (0, len(steps) - 1))
            if steps[step].get("covered") and (not copy or step >= first):
                before = latest.get(rank, (0, -1)) if copy else (0, ahead[step])
                found[copy, step] = before if before in done else None
            if first <= step <= last:
                latest[rank] = copy, step
        return found

    def step_times(self, closing_ns: ndarray | None = None) -> dict[Key, int]:
        """Return, by (copy, step), the time from the completion before it to its own; covered steps only.

        A sole step counts from where it begins: as recorded, or as what runs before it lets it. `closing_ns`
        is when the `closing` entries end for another rank of this program, in their order.
        """
        closing, keys, first = self._completions
        closing_ns = self.end_ns[closing] if closing_ns is None else closing_ns
        ends = {}
        latest = dict[
            int, int
        ]()  # by rank: as in the recording, no step is done before the one before it
        for key, end in zip(keys, np.maximum.reduceat(closing_ns, first).tolist(), strict=True):
            rank = step_rank(self.graph.steps[key[1]])
            ends[key] = latest[rank] = max(end, latest.get(rank, end))
        return {
            key: ends[key] - (self._begin_ns(*key) if before is None else ends[before])
            for key, before in self.spans.items()
        }

    def _begin_ns(self, copy: int, step: int) -> int:
        """Return when a step begins that follows none: as recorded, unless what runs before it moves.

        Then it is as long before its first task as recorded, but not before the task ahead of that one ends.
        """
        graph = self.graph
        recorded = int(graph.steps[step]["start_ns"])
        inside = (graph.step[self.task] == step) & (self.copy == copy)
        known = np.flatnonzero(inside & (graph.row[self.task] >= 0))
        if not len(known):
            return recorded
        measured = graph.measured_start_ns[self.task[known]]
        begun = int(measured.min())
        lane = self.plan.lane == self.plan.lane[known[np.argmin(measured)]]
        first = int(self.start_ns[inside & lane].min())
        ahead = self.end_ns[lane & ~inside & (self.end_ns <= first)]
        if not len(ahead) or first == begun:
            return recorded
        done = int(ahead.max())
        return (
            max(recorded, done)
            if first > begun
            else min(recorded, max(first - (begun - recorded), done))
        )

    def critical_path(self, task: int | None = None) -> CriticalPath:
        """Return the chain of causes behind the end of a timeline entry (default: the last to end)."""
        return critical_path(self.plan, self.start_ns, self.end_ns, task)

    def path_to(self, copy: int, *steps: int) -> CriticalPath:
        """Return the chain of causes behind steps that follow each other.

        Only what lies within the steps counts: all work and delays add up to them.
        """
        last = self.last_of_steps
        before = self.spans[copy, steps[0]]
        begin = self._begin_ns(copy, steps[0]) if before is None else int(self.end_ns[last[before]])
        times = self.plan, self.start_ns, self.end_ns
        if copy not in self._bound:
            stop = 1 + max(entry for (of, _), entry in last.items() if of == copy)
            self._bound[copy] = binding(*times, None if self.plan.scheduled else stop)
        return critical_path(*times, last[copy, steps[-1]], since=begin, bound=self._bound[copy])

    def path(self, copy: int, steps: Sequence[int]) -> Path:
        """Return the critical path of some covered steps, as pieces of time; arrays are to be read only."""
        wanted = copy, *steps
        if wanted in self._paths:
            return self._paths[wanted]
        # By its last step, those of which each counts from the end of the one before it.
        runs = dict[Key | None, list[int]]()
        for step in steps:
            runs[copy, step] = [*runs.pop(self.spans[copy, step], []), step]
        # A trace of one rank may tell which it is; its rows, and so its lanes, do not.
        ranks = {lane.rank for lane in self.graph.lanes}
        alone = ranks.pop() if len(ranks) == 1 else None
        windows = list[tuple[int, int, int]]()
        pieces = [np.empty((6, 0), np.int64)]
        for run in runs.values():
            chain = self.path_to(copy, *run)
            work = chain.task_ns
            delay = chain.delay_ns
            rank = step_rank(self.graph.steps[run[0]]) if alone is None else alone
            end = int(self.end_ns[chain.task[-1]])
            place = np.arange(len(chain.task))
            begin = end - int(work.sum() + delay.sum())
            start = np.maximum(self.start_ns[chain.task], begin)
            late = np.where(chain.cause == Cause.LANE, np.maximum(place - 1, 0), place)
            columns = np.stack([
                np.full(2 * len(place), len(windows)),
                np.tile(chain.task, 2),
                self.task[chain.task[np.append(place, late)]],
                np.append(start, start - delay),
                np.append(work, delay),
                np.append(np.full(len(place), -1), chain.cause),
            ])  # fmt: skip
            pieces.append(columns[:, np.flatnonzero(columns[4])])
            windows.append((begin, end, rank))
        self._paths[wanted] = Path(
            np.array(windows, np.int64).reshape(-1, 3), *np.concatenate(pieces, axis=1)
        )
        return self._paths[wanted]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per task: id, name, kind, lane, step, phase, layer, start, end, wait."""
        import pandas as pd

        names = ("name", "kind", "lane", "step", "phase", "layer")
        frame = pd.DataFrame({name: self.column(name) for name in names})
        frame.insert(0, "task", self.task)
        return frame.assign(
            copy=self.copy, start_ns=self.start_ns, end_ns=self.end_ns, wait_ns=self.wait_ns
        )


def _completes(graph: Graph) -> ndarray:
    """Return which step each task of a graph can complete, -1 for none: int32, shape (ids,).

    None of background threads, nor the own time of a named range. Nor, beside a device, CPU work that lasts
    beyond the range of its step: what a recorded step does on CPUs ends with its range.
    """
    step = graph.step.copy()
    on_cpu = graph.kind == CPU
    step[graph.in_background] = -1
    if len(graph.recorded):
        step[(graph.of_rows("annotation") | (graph.row < 0)) & on_cpu] = -1
    if graph.steps and not on_cpu.all():
        ends = np.array([each["end_ns"] for each in graph.steps], np.int64)
        tasks = np.flatnonzero(on_cpu & (step >= 0) & (graph.row >= 0))
        room = ends[step[tasks]] - graph.measured_start_ns[tasks]
        step[tasks[graph.duration_ns[tasks] > room]] = -1
    return step
