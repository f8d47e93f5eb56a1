"""GraphBuilder: the graph under construction, with what was recorded beside it.

The rules fill it one after the other. Recorded times live here and not in the
graph: a graph holds causes and costs, never observed outcomes (only
`measured_start_ns`, for comparing a replay with the recording).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from daydream.arrays import unique
from daydream.graph.columns import grown
from daydream.graph.graph import Graph
from daydream.graph.lookups import Lookups
from daydream.graph.query.numbering import distinct
from daydream.graph.tables import COLLECTIVE, CPU
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace

RANK_BITS = 50  # correlation ids stay below: 32 bits, and importers may put a process above them


@dataclass
class GraphBuilder:
    """What the rules share. Arrays named by task have one entry per task id."""

    trace: Trace
    graph: Graph
    end_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # recorded end, by task
    # Of the trace's own tasks.
    unit_of_task: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    event_rows: list[int] = field(default_factory=list)  # the row of `waits` behind each pair
    event_latency_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # by task
    _new_waits: list[tuple[int, int, int, int]] = field(default_factory=list)
    task_of_row: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    thread_ids: list[tuple[int, int, int]] = field(default_factory=list)  # (rank, pid, tid) by CPU lane
    waited: np.ndarray = field(default_factory=lambda: np.empty(0, bool))  # by task: a wait was taken out
    matched: list[tuple[int, int]] = field(default_factory=list)  # (task, what a link holds it for)
    host_lanes: set[int] = field(default_factory=set)  # collectives on the CPU: no streams of a device
    linked_threads: set[int] = field(default_factory=set)
    idle: dict[int, Any] = field(default_factory=dict)  # stretches by thread, as the rule `handoff` left them
    event_pairs: list[tuple[int, int]] = field(default_factory=list)  # (waiting task, the task it waits for)

    def __post_init__(self) -> None:
        self.tasks = Lookups(self.graph)
        self._end_room = self.end_ns

    @property
    def start_ns(self) -> np.ndarray:
        """Recorded start, by task."""
        return self.graph.columns["measured_start_ns"]

    def step_markers(self) -> np.ndarray:
        """Return a mask of the rows that only mark a step, and are no work."""
        codes = [code for code, name in enumerate(self.trace.text("name")) if name.startswith("ProfilerStep")]
        return np.isin(self.trace["name"], codes) & self.trace.is_kind("annotation")

    def named(self, match: Any, tasks: np.ndarray | None = None) -> np.ndarray:
        """Return which of the tasks, or of some, have a name that fits a predicate on names: a mask."""
        texts, names = self.graph.texts["name"], self.graph.columns["name"]
        if tasks is not None:
            codes, number = distinct(names[tasks])
            return self._fit(codes.tolist(), match)[number]
        fits = self._fit([*range(len(texts)), -1], match)
        return fits[names] if fits.any() else np.zeros(len(names), bool)

    def _fit(self, codes: list[int], match: Any) -> np.ndarray:
        texts = self.graph.texts["name"]
        return np.array([code >= 0 and bool(match(texts[code])) for code in codes], bool)

    @cached_property
    def annotates(self) -> np.ndarray:
        """Return which rows are named ranges: a mask, False at the end for tasks without a row (-1)."""
        return np.append(self.trace.is_kind("annotation"), False)

    @cached_property
    def calls(self) -> np.ndarray:
        """Return the tasks that are runtime calls (their first piece), ascending."""
        if not len(self.task_of_row):  # device rows only
            return np.empty(0, np.int64)
        first = self.task_of_row[self.trace.is_kind("runtime")]
        is_call = np.zeros(self.graph.size + 1, bool)
        is_call[first] = True
        return np.flatnonzero(is_call[:-1])  # the last: of calls without a task

    def calls_named(self, match: Any) -> np.ndarray:
        """Return the runtime calls whose name fits a predicate on names, ascending."""
        codes, number = self._names_of_calls
        return self.calls[self._fit(codes, match)[number]]

    @cached_property
    def _names_of_calls(self) -> tuple[list[int], np.ndarray]:
        codes, number = distinct(self.graph.columns["name"][self.calls])
        return codes.tolist(), number

    def threads(self, rows: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
        """Return a thread number per row, and the (rank, pid, tid) of each number."""
        rank, pid, tid = (np.asarray(self.trace[name][rows]) for name in ("rank", "pid", "tid"))
        number, threads = distinct_rows([np.maximum(rank, 0), pid, tid])
        return number, [(r, p, t) for r, p, t in threads]

    def depth(self, rows: np.ndarray) -> np.ndarray:
        """Return how many host rows enclose each row."""
        parent = np.asarray(self.trace["parent"], np.int64)
        depth = np.zeros(len(rows), np.int64)
        up = parent[rows]
        while (up >= 0).any():
            depth += up >= 0
            up = np.where(up >= 0, parent[np.maximum(up, 0)], -1)
        return depth

    def texts_of(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns that tasks take over from their rows."""
        trace, rows = self.trace, rows.astype(np.intp)  # NumPy looks up other types slowly
        phases = np.array(
            [PHASES.index(text) if text in PHASES else -1 for text in trace.text("phase")] + [-1], np.int8
        )
        return {
            "name": trace["name"].take(rows),
            "op": trace["op"].take(rows),
            "layer": trace["layer"].take(rows),
            "phase": phases.take(trace["phase"].take(rows)),
            "step": trace["step"].take(rows),
        }

    def add_cpu_tasks(
        self, after: np.ndarray, name: str | None, start: np.ndarray, order: np.ndarray | int
    ) -> np.ndarray:
        """Add CPU tasks without duration, each to the thread of another task, with its name if none given."""
        graph = self.graph
        same = {key: graph.columns[key][after] for key in ("lane", "op", "layer", "phase", "step", "name")}
        if name is not None:
            same["name"] = np.broadcast_to(graph.code("name", name), len(after))
        tasks = graph.add(len(after), kind=0, order=order, measured_start_ns=start, **same)
        self.extend(start)
        return tasks

    def extend(self, end_ns: np.ndarray, *, waited: bool = False) -> None:
        """Note the recorded ends of tasks that were just added to the graph."""
        self._end_room = grown(self._end_room, len(self.end_ns), [end_ns])
        self.end_ns = self._end_room[: len(self.end_ns) + len(end_ns)]
        self.waited = np.append(self.waited, np.full(len(end_ns), waited))

    def unit(self, rows: np.ndarray) -> np.ndarray:
        """Return what ties rows to a call: the correlation id, made distinct between ranks; -1 for none."""
        correlation = np.asarray(self.trace["correlation"][rows], np.int64)
        rank = np.maximum(np.asarray(self.trace["rank"][rows], np.int64), 0)
        return np.where(correlation >= 0, correlation + (rank << RANK_BITS), -1)

    def correlation(self, tasks: np.ndarray) -> np.ndarray:
        """Return the correlation ids of tasks, distinct between ranks."""
        rows = self.graph.columns["row"][tasks]
        return np.where(rows >= 0, self.unit(np.maximum(rows, 0)), -1)

    def sync_rows(self, name: str) -> dict[int, tuple[int, int]]:
        """Return, by correlation, the stream (waited for) and the record's correlation of sync rows."""
        trace = self.trace
        rows = np.flatnonzero(trace.is_kind("sync") & (trace["name"] == trace.code("name", name)))
        stream = trace["stream"] if name == "Stream Sync" else trace["wait_stream"]
        rank = np.maximum(np.asarray(trace["rank"][rows], np.int64), 0) << RANK_BITS
        record = np.asarray(trace["wait_correlation"][rows], np.int64)
        columns = (self.unit(rows), stream[rows], np.where(record >= 0, record + rank, -1))
        return {c: (s, w) for c, s, w in zip(*(column.tolist() for column in columns), strict=True)}

    def sync_streams(self, name: str) -> dict[int, int]:
        """Return, by correlation, the stream that the device's own record of a synchronization is on."""
        trace = self.trace
        rows = np.flatnonzero(trace.is_kind("sync") & (trace["name"] == trace.code("name", name)))
        return dict(zip(self.unit(rows).tolist(), trace["stream"][rows].tolist(), strict=True))

    @cached_property
    def collectives(self) -> dict[int, np.ndarray]:
        """Return the launched collectives of each lane that has any, in program order."""
        return self._by_lane(self.graph.columns["kind"] == COLLECTIVE)

    @cached_property
    def side_work(self) -> dict[int, np.ndarray]:
        """Return the launched work of each stream that runs no collectives, in program order."""
        work = self._by_lane(self.graph.columns["kind"] != CPU)
        return {lane: tasks for lane, tasks in work.items() if lane not in self.collectives}

    def _by_lane(self, chosen: np.ndarray) -> dict[int, np.ndarray]:
        tasks = self.tasks.launched()
        tasks = self.tasks.in_order(tasks[chosen[tasks]])
        lanes = self.graph.columns["lane"][tasks]
        return {lane: tasks[lanes == lane] for lane in unique(lanes).tolist()}

    def add_wait(self, record: int, source: int, wait: int, target: int) -> None:
        """Let work launched on `target` after `wait` follow the work on `source` up to `record`."""
        self._new_waits.append((record, source, wait, target))

    def settle_events(self) -> None:
        """Look up which tasks the event waits found so far tie together, as lowering will."""
        graph = self.graph
        if self._new_waits:
            record, source, wait, target = np.array(self._new_waits, np.int64).T
            graph.waits.add(record=record, source=source, wait=wait, target=target, latency_ns=0)
            self._new_waits = []
        order = graph.columns["order"]
        runs = dict(self.tasks.streams())
        self.event_pairs, self.event_rows = [], []
        table = graph.waits
        for source in unique(table["source"]).tolist():
            for target in unique(table["target"][table["source"] == source]).tolist():
                rows = np.flatnonzero((table["source"] == source) & (table["target"] == target))
                before, after = runs[source], runs[target]
                src = np.searchsorted(order[before], order[table["record"][rows]], side="right") - 1
                dst = np.searchsorted(order[after], order[table["wait"][rows]], side="right")
                there = (src >= 0) & (dst < len(after))
                rows, earlier, later = rows[there], before[src[there]], after[dst[there]]
                kept = order[earlier] < order[later]
                self.event_pairs += zip(later[kept].tolist(), earlier[kept].tolist(), strict=True)
                self.event_rows += rows[kept].tolist()

    def ended_before(self, tasks: np.ndarray) -> np.ndarray:
        """Return when the task before each device task on its stream had ended; far past for none."""
        ended = np.full(self.graph.size, -(2**60), np.int64)
        for _, run in self.tasks.streams():
            ended[run[1:]] = self.end_ns[run[:-1]]
        return ended[tasks]

    def late_starts(self) -> np.ndarray:
        """Return how much later each device task started than its known causes allow, by task."""
        columns = self.graph.columns
        late = np.zeros(self.graph.size, np.int64)
        known = np.full(self.graph.size, -(2**60), np.int64)
        for target, source in self.event_pairs:
            known[target] = max(known[target], self.end_ns[source])
        for _, tasks in self.tasks.streams():
            start, launch = self.start_ns[tasks], columns["launch"][tasks].astype(np.intp)
            begun = np.where(launch >= 0, self.start_ns[launch], start)
            before = np.append(-(2**60), self.end_ns[tasks[:-1]])
            late[tasks] = start - np.maximum(np.maximum(begun, before), known[tasks])
        return late

    def lane_of(self, call: int, stream: int) -> int:
        """Return the lane of a stream on the rank of a call, the busiest if several have it, or -1."""
        lanes = self.graph.lanes
        rank = lanes[self.graph.columns["lane"][call]].rank
        for number in self.lanes_of_stream.get((rank, stream), ()):
            return number
        return -1

    @cached_property
    def lanes_of_stream(self) -> dict[tuple[int, int], list[int]]:
        """Return the lanes of each stream of a rank, the busiest first."""
        columns, trace, lanes = self.graph.columns, self.trace, self.graph.lanes
        found: dict[tuple[int, int], list[int]] = {}
        work = {number: self.tasks.on(number) for number, lane in enumerate(lanes) if lane.on_device}
        for lane in sorted(filter(lambda lane: len(work[lane]), work), key=lambda lane: -len(work[lane])):
            row = columns["row"][work[lane].min()]
            found.setdefault((max(int(trace["rank"][row]), 0), int(trace["stream"][row])), []).append(lane)
        return found


def runs_of(values: np.ndarray) -> list[tuple[int, int]]:
    """Return (begin, end) of each run of equal values."""
    if not len(values):
        return []
    cuts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return list(zip(cuts.tolist(), [*cuts[1:].tolist(), len(values)], strict=True))


def distinct_rows(columns: list[np.ndarray]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Return which distinct combination each row of some columns holds, and the combinations, in order."""
    number = np.zeros(len(columns[0]), np.int64)
    found: list[tuple[int, ...]] = [()] * min(len(number), 1)
    for column in columns:
        values, pairs = column[:1], np.arange(len(found))
        if (column != values).any():
            values, code = distinct(column)
            whole = len(found) > 1
            pairs, number = distinct(number * len(values) + code) if whole else (np.arange(len(values)), code)
        found = [(*found[pair // len(values)], int(values[pair % len(values)])) for pair in pairs.tolist()]
    return number, found
