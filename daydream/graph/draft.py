"""Draft: the graph under construction, with what was recorded beside it.

The rules fill it one after the other, through its few writing methods; what is looked up (tasks by lane,
what a call launched, what holds a task) is worked out from what it holds, so that no rule has to keep
anything up to date for the next. Recorded times live here and not in the graph: a graph holds causes and
costs, never observed outcomes (only `measured_start_ns`, for comparing a replay with the recording).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ndarray

from daydream.arrays import run_starts, unique
from daydream.graph.graph import Graph
from daydream.graph.plan import around, stable_order
from daydream.graph.tables import CODED, COLUMNS, CPU, TABLES, Table
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace

RANK_BITS = 50  # correlation ids stay below: 32 bits, and importers may put a process above them
NEVER = -(2**60)  # before any recorded time
NONE = np.empty(0, np.int64)
BUILT = ("texts", "steps", "facts", "lanes", *TABLES[1:], "queue_depth")
OF_GRAPH = {"measured_start_ns": "start_ns"}  # columns that have another name here


@dataclass
class DeviceWork:
    """Device rows that are no tasks yet, by lane and in launch order."""

    row: ndarray  # -1 for work that was not traced
    like: ndarray  # a row that it resembles
    lane: ndarray
    start: ndarray
    duration: ndarray
    launch: ndarray
    order: ndarray
    unit: ndarray  # correlation, the same for all nodes of a graph launch


class Draft(Graph):
    """What the rules read and write: a column is an attribute, with one entry per task.

    `start_ns` and `end_ns` are as recorded, `waited` is true where a wait was taken out of the time of a
    task, `unit` is the correlation of device work, the same for all nodes of a graph launch. Columns are
    written to in place; `add` makes new arrays, so an array is not kept over it.
    """

    trace: Trace

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.texts = {name: [*trace.text(name)] for name in CODED}
        self.steps = [dict(step) for step in trace.metadata.get("steps", [])]
        self.thread_ids: list[tuple[int, ...]] = []  # (rank, pid, tid) by CPU lane
        self.task_of_row = np.full(len(trace), -1, np.int64)  # the first CPU task of each row
        self.device_work: DeviceWork | None = None
        types = {OF_GRAPH.get(name, name): dtype for name, dtype in COLUMNS.items()}
        self.columns = Table({**types, "end_ns": np.int64, "waited": bool, "unit": np.int64})
        self._by_lane: dict[
            int, ndarray
        ] = {}  # tasks in program order, as far as they are looked up
        self._looked_up = 0

    # writing ----------------------------------------------------------------------------------

    def add(self, count: int, **columns: Any) -> ndarray:
        """Add tasks and return their ids; a value for all or one for each, else the column's default.

        The recorded end is that of the duration if it is not given.
        """
        columns.setdefault("start_ns", -1)
        columns.setdefault("end_ns", np.add(columns["start_ns"], columns.get("duration_ns", 0)))
        return super().add(count, **columns)

    def move(self, tasks: Any, **columns: Any) -> None:
        """Set columns of tasks by which they are looked up: their lane, their order."""
        for name, values in columns.items():
            getattr(self, name)[tasks] = values
        self._by_lane = {}
        self._looked_up = 0

    def add_cpu_tasks(
        self,
        like: ndarray,
        start: ndarray,
        order: Any,
        name: str | None = None,
        **columns: Any,
    ) -> ndarray:
        """Add CPU tasks without duration, each to the thread of another task, with its name by default."""
        same = self.values(like, "lane", "op", "layer", "phase", "step", "name")
        if name is not None:
            same["name"] = self.code("name", name)
        return self.add(len(like), order=order, start_ns=start, **same, **columns)

    def turn_into_wait(
        self,
        tasks: ndarray,
        begin: ndarray,
        woken: ndarray,
        end: ndarray,
        *,
        order: Any,
        inside: Any = True,
        like: ndarray | None = None,
        name: str | None = None,
        works_on: bool = False,
    ) -> ndarray:
        """Cut a wait out of CPU time and return the tasks that go on behind it; they are to be given a cause.

        Args:
            tasks: those whose time it is, or whose gap.
            begin: when they began to wait, in ns of the recording; what came before stays.
            woken: when what they waited for had come.
            end: when their time or gap was over: what is left from `woken` on is the gap of what goes on.
            order: the place of what goes on in program order.
            inside: whether the wait lies in the time of a task, not in the gap behind it.
            like: the tasks that those that go on resemble, by default those that waited.
            name: the name of what goes on, by default that of the task.
            works_on: whether what is left is work of the task, not a gap.

        """
        gap = np.where(inside, self.gap_ns[tasks], 0)
        before = np.where(inside, self.start_ns[tasks], self.end_ns[tasks])
        kept = np.maximum(begin - before, 0)
        self.duration_ns[tasks] = np.where(inside, kept, self.duration_ns[tasks])
        self.gap_ns[tasks] = np.where(inside, 0, kept)
        self.end_ns[tasks] = np.where(inside, before + kept, before)
        rest = {"duration_ns": end - woken, "row": self.row[tasks]} if works_on else {}
        gap = gap if works_on else gap + end - woken
        return self.add_cpu_tasks(
            tasks if like is None else like, woken, order, name, gap_ns=gap, **rest
        )

    def wait_first(self, calls: ndarray, until: ndarray) -> None:
        """Take the wait at the begin of calls out of their time: they begin when it was over, in ns."""
        self.duration_ns[calls] = self.end_ns[calls] - until
        self.start_ns[calls] = until
        self.waited[calls] = True

    def finish(self) -> Graph:
        """Return the graph of what was found so far."""
        graph = Graph(self.trace)
        for name in BUILT:
            setattr(graph, name, getattr(self, name))
        for name in COLUMNS:
            graph.columns.put(name, self.columns[OF_GRAPH.get(name, name)].view())
        graph.freeze()
        return graph

    # looking up tasks -------------------------------------------------------------------------

    def values(self, tasks: ndarray, *names: str) -> dict[str, Any]:
        """Return columns of some tasks, all columns by default."""
        return {name: getattr(self, name)[tasks] for name in names or self.columns}

    def on(self, lane: int) -> ndarray:
        """Return the tasks of a lane in program order."""
        return self._lane_tasks().get(lane, NONE)

    def threads(self) -> list[int]:
        """Return the lanes of the CPU that have tasks."""
        return sorted(lane for lane in self._lane_tasks() if not self.lanes[lane].on_device)

    def streams(self) -> list[tuple[int, ndarray]]:
        """Return (lane, its tasks in program order) for each stream of a device that has tasks."""
        found = sorted(self._lane_tasks().items())
        return [
            (n, tasks) for n, tasks in found if self.lanes[n].on_device and not self.lanes[n].host
        ]

    def launched(self) -> ndarray:
        """Return the tasks that a call launched."""
        return np.flatnonzero(self.launch >= 0)

    def launched_by(self, thread: int) -> ndarray:
        """Return the tasks that the calls of a thread launched, in program order."""
        work = self.launched()
        return self.in_order(work[self.lane[self.launch[work]] == thread])

    def launched_around(self, calls: ndarray) -> tuple[ndarray, ndarray]:
        """Return the task that the thread of each call launched last before it, and next; -1 for none."""
        return around(self.launched_by, self.order, self.lane[calls], self.order[calls])

    def on_streams(self) -> ndarray:
        """Return the tasks of the streams, stream by stream in program order."""
        return np.concatenate([NONE, *(tasks for _, tasks in self.streams())])

    def in_order(self, tasks: ndarray) -> ndarray:
        """Return tasks in program order."""
        return tasks[np.argsort(self.order[tasks], kind="stable")]

    def _lane_tasks(self) -> dict[int, ndarray]:
        if self._looked_up < self.size:
            new = np.arange(self._looked_up, self.size)
            new = new[stable_order(self.lane[new], len(self.lanes))]
            self._looked_up = self.size
            for begin, end in runs_of(self.lane[new]):
                lane = int(self.lane[new[begin]])
                tasks = np.concatenate([self._by_lane.get(lane, NONE), new[begin:end]])
                self._by_lane[lane] = self.in_order(tasks)
        return self._by_lane

    def held_by(self) -> ndarray:
        """Return (device tasks, the task each waits for, row of `waits` or -1), as lowering will find.

        int64, shape (3, waits).
        """
        waits = self.waits
        links = self.links
        order = self.order
        earlier, _ = around(self.on, order, waits["source"], order[waits["record"]])
        _, later = around(self.on, order, waits["target"], order[waits["wait"]])
        held = (earlier >= 0) & (later >= 0) & (order[earlier] < order[later])
        linked = self.kind[links["dst"]] != CPU
        by_waits = np.stack([later, earlier, np.arange(len(waits))])[:, held]
        by_links = np.stack([links["dst"], links["src"], np.full(len(links), -1)])[:, linked]
        return np.append(by_waits, by_links, axis=1)

    def held_until(self) -> ndarray:
        """Return, by task, when the work of other streams that it waits for had ended, or `NEVER`."""
        later, earlier, _ = self.held_by()
        until = np.full(self.size, NEVER)
        np.maximum.at(until, later, self.end_ns[earlier])
        return until

    def ended_before(self, tasks: ndarray) -> ndarray:
        """Return when the task before each device task on its stream had ended; `NEVER` for none."""
        ended = np.full(self.size, NEVER)
        for _, run in self.streams():
            ended[run[1:]] = self.end_ns[run[:-1]]
        return ended[tasks]

    def beside(self, lane: int) -> ndarray:
        """Return which of the lanes are others of the device of one: a mask."""
        places = [(each.rank, each.device) for each in self.lanes]
        return np.array([at != lane and place == places[lane] for at, place in enumerate(places)])

    @cached_property
    def calls(self) -> ndarray:
        """The tasks that are runtime calls (their first piece), in program order."""
        first = np.sort(self.task_of_row[self.trace.is_kind("runtime")])
        return self.in_order(first[first >= 0])

    def calls_named(self, match: Callable[[str], Any]) -> ndarray:
        """Return the runtime calls whose name fits a predicate on names, in program order."""
        return self.calls[self.named(match, self.calls)]

    def usual_costs(self, calls: ndarray, otherwise: int = 0) -> ndarray:
        """Return the median duration of calls by code of their name, in ns; `otherwise` for names of none.

        int64; the last is that of tasks without a name.
        """
        costs = np.full(len(self.texts["name"]) + 1, otherwise, np.int64)
        names = self.name[calls]
        durations = self.duration_ns[calls]
        for name in unique(names).tolist():
            costs[name] = np.median(durations[names == name])
        return costs

    # looking up rows of the trace -------------------------------------------------------------

    def texts_of(self, rows: ndarray) -> dict[str, ndarray]:
        """Return the columns that tasks take over from their rows."""
        trace = self.trace
        rows = rows.astype(np.intp)  # NumPy looks up other types slowly
        phases = np.array(
            [PHASES.index(text) if text in PHASES else -1 for text in trace.text("phase")] + [-1],
            np.int8,
        )
        same = {name: trace[name].take(rows) for name in ("name", "op", "layer", "step")}
        return {**same, "phase": phases.take(trace["phase"].take(rows))}

    def units(self, rows: ndarray, column: str = "correlation") -> ndarray:
        """Return what ties rows to a call: the correlation id, made distinct between ranks; -1 for none."""
        given = self.trace[column][rows]
        rank = np.maximum(self.trace["rank"][rows], 0, dtype=np.int64)
        return np.where(given >= 0, given + (rank << RANK_BITS), -1)


def runs_of(values: ndarray) -> list[tuple[int, int]]:
    """Return (begin, end) of each run of equal values."""
    cuts = np.append(np.flatnonzero(run_starts(values)), len(values)).tolist()
    return list(pairwise(cuts))
