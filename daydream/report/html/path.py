"""One step of a timeline for the report: by layer, operator, task or kernel, and its critical path in order."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.select import coded
from daydream.graph.tables import CPU
from daydream.simulate.critical_path import PathCause
from daydream.simulate.timeline import Timeline
from daydream.text import counted
from daydream.trace.schema import PHASES

MOST_STRETCHES = 40  # that are shown for themselves; what lies between them is summed up


class Total(NamedTuple):
    """What the tasks of a group take in one step, and how many of them are on the critical path."""

    path_ns: int = 0
    device_ns: int = 0
    cpu_ns: int = 0
    tasks: int = 0
    on_path: int = 0

    @property
    def mean_ns(self) -> float:
        """The mean device time of a task."""
        return self.device_ns / max(self.tasks, 1)


class Stretch(NamedTuple):
    """A part of the critical path on one lane and in one phase, or several short ones."""

    lane: str
    phase: str
    begin_ns: int  # since the step's begin
    task: str  # what takes longest in it
    tasks: int
    work_ns: int
    delay_ns: int
    delay: str  # what most of the delay is


class StepPath:
    """The critical path of one step of a timeline; its work and delays add up to the step.

    Attributes:
        task: the graph's tasks on the path, in order.
        work_ns, delay_ns, ns: the work of each, the delay before it, and both; int64, shape (tasks,).
        cause: the `Cause` of each delay.
    """

    def __init__(self, timeline: Timeline, copy: int, step: int) -> None:
        self.timeline = timeline
        self.copy = copy
        self.step = step
        path = timeline.path_to(copy, step)
        self.task = timeline.task[path.task]
        self.cause = path.cause
        self.work_ns = path.task_ns
        self.delay_ns = path.delay_ns
        self.ns: np.ndarray = path.task_ns + path.delay_ns

    @property
    def name(self) -> str:
        """The step's name."""
        return str(self.timeline.graph.steps[self.step]["name"])

    @property
    def step_ns(self) -> int:
        """How long the step takes."""
        return int(self.ns.sum())

    @property
    def inside(self) -> np.ndarray:
        """The timeline's entries of the step, as a mask."""
        timeline = self.timeline
        of_step = timeline.graph.columns["step"][timeline.task] == self.step
        mask: np.ndarray = (timeline.copy == self.copy) & of_step
        return mask

    def totals(self, column: str) -> dict[str | None, Total]:
        """Return by layer, operator or name what tasks take: on the path, on the device, on the CPU."""
        timeline = self.timeline
        graph = self.timeline.graph
        ours = self.inside
        task = timeline.task[ours]
        codes, texts = coded(graph, column, task)
        on_path, _ = coded(graph, column, self.task)
        device = graph.columns["kind"][task] != CPU
        time = timeline.plan.duration_ns[ours]
        sums = np.zeros((5, len(texts) + 1), np.int64)  # unknown (-1) is the last
        np.add.at(sums[0], on_path, self.ns)
        np.add.at(sums[1], codes[device], time[device])
        np.add.at(sums[2], codes[~device], time[~device])
        np.add.at(sums[3], codes, 1)
        np.add.at(sums[4], on_path, 1)
        found = np.flatnonzero(sums.any(axis=0)).tolist()
        return {[*texts, None][code]: Total(*sums[:, code].tolist()) for code in found}

    def stretches(self) -> list[Stretch]:
        """Return the path in order, by lane and phase; of many stretches the short ones summed up."""
        if not len(self.task):
            return []
        columns = self.timeline.graph.columns
        lane = columns["lane"][self.task]
        phase = columns["phase"][self.task]
        first = np.flatnonzero(np.append(True, (lane[1:] != lane[:-1]) | (phase[1:] != phase[:-1])))
        if len(first) > MOST_STRETCHES:
            long = np.zeros(len(first), bool)
            time = np.add.reduceat(self.ns, first)
            long[np.argsort(-time, kind="stable")[:MOST_STRETCHES]] = True
            first = first[np.append(True, long[1:] | long[:-1])]
        return [self._stretch(b, e) for b, e in pairwise([*first.tolist(), len(self.task)])]

    def _stretch(self, begin: int, end: int) -> Stretch:
        graph = self.timeline.graph
        part = slice(begin, end)
        task = self.task[part]
        delay = self.delay_ns[part]
        lanes = np.unique(graph.columns["lane"][task])
        phases = np.unique(graph.columns["phase"][task])
        names, texts = coded(graph, "name", task)
        by_name = np.bincount(names + 1, self.ns[part], len(texts) + 1)
        cause = int(np.bincount(self.cause[part].astype(np.int64), delay, len(Cause)).argmax())
        why = Cause(cause).label
        if cause == Cause.LANE:
            why = "start-up" if graph.lanes[lanes[0]].on_device else PathCause.UNTRACED.label
        return Stretch(
            graph.lanes[lanes[0]].name if len(lanes) == 1 else counted(len(lanes), "lane"),
            ["", *PHASES][phases[0] + 1] if len(phases) == 1 else "several",
            int(self.ns[:begin].sum()),
            ["", *texts][int(by_name.argmax())],
            end - begin,
            int(self.work_ns[part].sum()),
            int(delay.sum()),
            why if delay.any() else "",
        )
