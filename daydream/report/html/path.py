"""The critical path of a typical step for the HTML report: by task, and in order; and the step by layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.select import coded
from daydream.graph.tables import CPU
from daydream.simulate.critical_path import PathCause
from daydream.simulate.timeline import Timeline
from daydream.text import counted
from daydream.trace.schema import PHASES

MOST_STRETCHES = 40  # that are shown for themselves; what lies between them is summed up


@dataclass(frozen=True)
class Total:
    """What the tasks of a group take in one step."""

    path_ns: int = 0
    device_ns: int = 0
    cpu_ns: int = 0
    tasks: int = 0


@dataclass(frozen=True)
class Stretch:
    """A part of the critical path on one lane and in one phase, or several short ones."""

    begin_ns: int  # since the step's begin
    lane: str
    phase: str
    task: str  # what takes longest in it
    tasks: int
    work_ns: int
    delay_ns: int
    delay: str  # what most of the delay is


@dataclass(frozen=True, eq=False)
class StepPath:
    """The critical path of one step of a timeline."""

    timeline: Timeline
    copy: int
    step: int
    entry: np.ndarray  # the timeline's entries on the path
    cause: np.ndarray
    work_ns: np.ndarray
    delay_ns: np.ndarray

    @property
    def name(self) -> str:
        """The step's name."""
        return str(self.timeline.graph.steps[self.step]["name"])

    @property
    def step_ns(self) -> int:
        """How long the step takes."""
        return int((self.work_ns + self.delay_ns).sum())

    @property
    def task(self) -> np.ndarray:
        """The graph's tasks on the path."""
        return self.timeline.task[self.entry]

    def totals(self, column: str) -> dict[str | None, Total]:
        """Return by layer, operator or name what tasks take: on the path, on the device, on the CPU."""
        timeline, graph = self.timeline, self.timeline.graph
        ours = (timeline.copy == self.copy) & (graph.columns["step"][timeline.task] == self.step)
        task = timeline.task[ours]
        codes, texts = coded(graph, column, task)
        on_path, _ = coded(graph, column, self.task)
        size = len(texts) + 1
        device = graph.columns["kind"][task] != CPU
        time = timeline.plan.duration_ns[ours]
        sums = np.zeros((4, size), np.int64)
        np.add.at(sums[0], on_path, self.work_ns + self.delay_ns)  # unknown (-1) is the last
        np.add.at(sums[1], codes[device], time[device])
        np.add.at(sums[2], codes[~device], time[~device])
        np.add.at(sums[3], codes, 1)
        found = np.flatnonzero(sums.any(axis=0)).tolist()
        return {
            texts[code] if code < size - 1 else None: Total(*sums[:, code].tolist())
            for code in found
        }

    def by_task(self) -> dict[str, tuple[int, int]]:
        """Return by name how many tasks are on the path, and their time on it with the delays before them."""
        codes, texts = coded(self.timeline.graph, "name", self.task)
        time = np.zeros(len(texts) + 1, np.int64)
        np.add.at(time, codes, self.work_ns + self.delay_ns)
        number = np.bincount(codes[codes >= 0], minlength=len(texts))
        return {
            texts[code]: (int(number[code]), int(time[code]))
            for code in np.flatnonzero(time[:-1]).tolist()
        }

    def stretches(self) -> list[Stretch]:
        """Return the path in order, by lane and phase; of many stretches the short ones summed up."""
        if not len(self.entry):
            return []
        graph = self.timeline.graph
        lane, phase = graph.columns["lane"][self.task], graph.columns["phase"][self.task]
        first = np.flatnonzero(np.append(True, (lane[1:] != lane[:-1]) | (phase[1:] != phase[:-1])))
        time = np.add.reduceat(self.work_ns + self.delay_ns, first)
        if len(first) > MOST_STRETCHES:
            long = np.zeros(len(first), bool)
            long[np.argsort(-time, kind="stable")[:MOST_STRETCHES]] = True
            first = first[np.append(True, long[1:] | long[:-1])]
        return [self._stretch(b, e) for b, e in pairwise([*first.tolist(), len(self.entry)])]

    def _stretch(self, begin: int, end: int) -> Stretch:
        graph, part = self.timeline.graph, slice(begin, end)
        task, work, delay = self.task[part], self.work_ns[part], self.delay_ns[part]
        lanes = np.unique(graph.columns["lane"][task])
        phases = np.unique(graph.columns["phase"][task])
        names, texts = coded(graph, "name", task)
        by_name = np.bincount(names + 1, work + delay, len(texts) + 1)
        most = int(by_name.argmax())
        by_cause = np.bincount(self.cause[part].astype(np.int64), delay, len(Cause))
        return Stretch(
            begin_ns=int((self.work_ns + self.delay_ns)[:begin].sum()),
            lane=graph.lanes[lanes[0]].name if len(lanes) == 1 else counted(len(lanes), "lane"),
            phase=(PHASES[phases[0]] if phases[0] >= 0 else "") if len(phases) == 1 else "several",
            task=texts[most - 1] if most else "",
            tasks=end - begin,
            work_ns=int(work.sum()),
            delay_ns=int(delay.sum()),
            delay=_delay(int(by_cause.argmax()), on_device=graph.lanes[lanes[0]].on_device)
            if delay.any()
            else "",
        )


def step_path(timeline: Timeline, copy: int, step: int) -> StepPath:
    """Return the critical path of one step; its work and delays add up to the step."""
    path = timeline.path_to(copy, step)
    return StepPath(timeline, copy, step, path.task, path.cause, path.task_ns, path.delay_ns)


def _delay(cause: int, *, on_device: bool) -> str:
    if cause == Cause.LANE:
        return "start-up" if on_device else PathCause.UNTRACED.label
    return Cause(cause).label
