"""Graph: what depends on what, as a structure of arrays that can be edited.

A task takes time on one lane. Its order on the lane is implicit: lanes run
their tasks by `order`, a key in CPU program order (device work comes right
after the call that launched it). Because every cause of a task comes before it
in program order, sorting by `order` is a topological sort.

Constraints between lanes are kept in the words of the program and resolved
only when the graph is lowered to a plan (`daydream.graph.lower`), so that they
stay right after tasks were inserted or removed:

| table | a row says |
|---|---|
| `launch` (a column) | this device task was launched by that call |
| `syncs` | this call returns when the work launched on this lane before a program point has ended |
| `waits` | work launched on `target` after the wait follows the work on `source` before the record |
| `queue_depth` | this lane holds so many launches in flight |
| `links` | this task follows that one (hand-offs between threads, and edges users add) |
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.graph.plan import Cause
from daydream.graph.selection import Selection, select
from daydream.trace import PHASES, Trace

if TYPE_CHECKING:
    import networkx as nx

KINDS = ("cpu", "kernel", "memcpy", "memset", "collective")
DEVICE_KINDS = KINDS[1:]
ORDER_STEP = 4096  # program-order keys between two nanoseconds, room for inserted tasks

COLUMNS: dict[str, Any] = {
    "lane": np.int32,
    "kind": np.int8,
    "name": np.int32,
    "op": np.int32,
    "layer": np.int32,
    "phase": np.int8,
    "step": np.int32,
    "row": np.int32,  # row of the trace, -1 for what was not measured
    "duration_ns": np.int64,
    "gap_ns": np.int64,
    "release_ns": np.int64,  # earliest start, 0 for none
    "launch": np.int32,  # task that launched this one, -1 for none
    "latency_ns": np.int64,  # from the launch's start to the earliest start of the device work
    "order": np.int64,
    "measured_start_ns": np.int64,  # -1 for what was not measured
}
DEFAULTS = {"row": -1, "launch": -1, "step": -1, "phase": -1, "op": -1, "layer": -1, "measured_start_ns": -1}
CODED = ("name", "op", "layer")


@dataclass(frozen=True)
class Lane:
    """What runs one task at a time: a CPU thread, a stream, a link."""

    name: str
    rank: int = 0
    on_device: bool = False
    device: int = -1
    background: bool = False  # a thread that nothing waits for, such as a watchdog


@dataclass
class Table:
    """Rows of a constraint, a column each; `add` takes arrays of equal length."""

    columns: dict[str, np.ndarray]

    @classmethod
    def of(cls, *names: str) -> Table:
        """Return an empty table with these columns."""
        return cls({name: np.empty(0, np.int64) for name in names})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def add(self, **rows: Any) -> None:
        """Append rows; a single value stands for all of them."""
        width = max(np.size(value) for value in rows.values())
        for name, column in self.columns.items():
            value = np.broadcast_to(np.asarray(rows[name], np.int64), width)
            self.columns[name] = np.concatenate([column, value])


ALL_LANES = -1  # `syncs["lane"]`: every device lane of the call's rank


@dataclass
class Facts:
    """What the builder learned and what it could not resolve; part of every result."""

    launch_latency_ns: int = 0
    startup_ns: int = 0
    launch_cost_ns: int = 0
    event_waits: dict[str, int] = field(
        default_factory=lambda: {"recorded": 0, "inferred": 0, "unresolved": 0}
    )
    queue_depth: int | None = None
    queue_learned: bool = False
    orphans: int = 0
    unexplained: int = 0  # device tasks that started later than their known causes allow
    unexplained_ns: int = 0
    untraced_ns: int = 0  # device work that the profiler left out, inside graphs and before the window
    unresolved_syncs: int = 0
    unlaunched_kernels: int = 0
    notes: list[str] = field(default_factory=list)


class Graph:
    """Tasks, their lanes and their causes. Edits keep task ids: a removed id is never used again."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.columns: dict[str, np.ndarray] = {name: np.empty(0, dtype) for name, dtype in COLUMNS.items()}
        self.alive = np.empty(0, bool)
        self.lanes: list[Lane] = []
        self.texts: dict[str, list[str]] = {name: [] for name in CODED}
        self.syncs = Table.of("task", "lane", "point", "latency_ns")
        self.waits = Table.of("record", "source", "wait", "target", "latency_ns")
        self.links = Table.of("src", "dst", "latency_ns", "from_start", "cause")
        self.queue_depth: dict[int, int] = {}
        self.scheduled: dict[int, np.ndarray] = {}  # lane -> priority of every task id
        self.facts = Facts()
        self.steps: list[dict[str, Any]] = []
        self.changed: set[str] = set()  # structure edits since the last lowering
        self._codes: dict[str, dict[str, int]] = {}
        self._lane_ids: dict[str, int] = {}
        self._structure = 0  # goes up with every structural edit
        self._lowered: dict[Any, Any] = {}
        self._ids: np.ndarray | None = None

    # reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.alive.sum())

    def __repr__(self) -> str:
        return f"<Graph {len(self):,} tasks on {len(self.lanes)} lanes>"

    @property
    def size(self) -> int:
        """Number of ids ever given out, removed tasks included."""
        return len(self.alive)

    @property
    def ids(self) -> np.ndarray:
        """Ids of the tasks that are there, in program order."""
        if self._ids is None:
            ids = np.flatnonzero(self.alive)
            self._ids = ids[np.argsort(self.columns["order"][ids], kind="stable")]
        return self._ids

    def __getattr__(self, name: str) -> np.ndarray:
        columns = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        raise AttributeError(f"a graph has no column {name!r}")

    def column(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Return a column for some tasks: numbers, or texts (None for unknown) for name, kind, dtype, ..."""
        from daydream.graph.columns import read_column

        return read_column(self, name, ids)

    def select(self, **where: Any) -> Selection:
        """Return the tasks that match; see `Selection.where` for the words."""
        return select(self, self.ids, where)

    def tasks(self, ids: Iterable[int]) -> Selection:
        """Return the selection of these ids."""
        return Selection(self, np.asarray(list(ids), np.int64))

    def copy(self) -> Graph:
        """Return an independent copy; the trace behind it is shared."""
        twin = copy.copy(self)
        twin.columns = {name: column.copy() for name, column in self.columns.items()}
        twin.alive = self.alive.copy()
        twin.lanes = list(self.lanes)
        twin.texts = {name: list(texts) for name, texts in self.texts.items()}
        twin.syncs, twin.waits, twin.links = (
            Table(dict(table.columns)) for table in (self.syncs, self.waits, self.links)
        )
        twin.queue_depth = dict(self.queue_depth)
        twin.scheduled = dict(self.scheduled)
        twin.facts = copy.deepcopy(self.facts)
        twin.steps = copy.deepcopy(self.steps)
        twin._codes = {}
        twin._lane_ids = dict(self._lane_ids)
        twin._lowered = dict(self._lowered)
        return twin

    # editing ----------------------------------------------------------------------------------

    def lane_id(self, name: str, *, on_device: bool = False, rank: int = 0, device: int = -1) -> int:
        """Return the number of the lane with this name, made if it is new."""
        if name not in self._lane_ids:
            self._lane_ids[name] = len(self.lanes)
            self.lanes.append(Lane(name, rank, on_device, device))
        return self._lane_ids[name]

    def add_lane(self, lane: Lane) -> int:
        """Add a lane and return its number."""
        self._lane_ids[lane.name] = len(self.lanes)
        self.lanes.append(lane)
        return len(self.lanes) - 1

    def code(self, column: str, text: str | None) -> int:
        """Return the code of a text in a coded column, made if it is new; -1 for None."""
        if text is None:
            return -1
        codes = self._codes.get(column)
        if codes is None:
            codes = self._codes[column] = {text: code for code, text in enumerate(self.texts[column])}
        if text not in codes:
            codes[text] = len(self.texts[column])
            self.texts[column].append(text)
        return codes[text]

    def add(self, count: int, **columns: Any) -> np.ndarray:
        """Append tasks in bulk and return their ids; columns that are not given take their default."""
        first = self.size
        for name, dtype in COLUMNS.items():
            value = columns.get(name, DEFAULTS.get(name, 0))
            new = np.broadcast_to(np.asarray(value, dtype), count)
            self.columns[name] = np.concatenate([self.columns[name], new])
        self.alive = np.concatenate([self.alive, np.ones(count, bool)])
        self.touch()
        return np.arange(first, first + count)

    def touch(self) -> None:
        """Forget what was derived from the structure."""
        self._structure += 1
        self._lowered = {}
        self._ids = None

    def insert(
        self,
        name: str,
        *,
        kind: str,
        lane: str | int,
        duration_ns: float,
        gap_ns: int = 0,
        after: Iterable[Any] = (),
        before: Iterable[Any] = (),
        launch_after: Any = None,
        **columns: Any,
    ) -> Selection:
        """Insert a task and return it.

        `after` and `before` name tasks (selections or ids). The task follows `after`
        (and the device work those tasks launched) in program order, so on its lane it
        comes right behind the last of them; without `after` it comes right before the
        first of `before`, else at the end of the lane. With `launch_after` (a CPU task) a
        device task brings its launch: a call of this graph's usual cost on that task's
        thread. Other columns (`phase`, `layer`, `op`, `step`) can be given by name.
        """
        from daydream.graph.place import place

        if kind not in KINDS:
            raise GraphError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
        after, before = _listed(after), _listed(before)
        for task in (*after, *before, *_listed(launch_after)):
            if isinstance(task, Selection) and task.graph is not self:
                raise GraphError("a task of another graph was given; select it from this one")
        causes, followers = _ids(after), _ids(before)
        for task in (*causes, *followers):
            self._check(task)
        lane_id = lane if isinstance(lane, int) else self.lane_id(lane, on_device=kind != "cpu")
        launch = -1
        if launch_after is not None:
            call = self.insert(
                "launch", kind="cpu", lane=int(self.columns["lane"][_ids([launch_after])[0]]),
                duration_ns=self.facts.launch_cost_ns, after=[launch_after], **columns,
            )  # fmt: skip
            launch = int(call.ids[0])
        order = place(self, lane_id, [*causes, launch] if launch >= 0 else causes, followers)
        coded = {key: self.code(key, columns.pop(key)) for key in CODED if key in columns}
        if "phase" in columns:
            columns["phase"] = phase_code(columns["phase"])
        near = [*causes, *followers, launch]
        if "step" not in columns and near[0] >= 0:
            columns["step"] = int(self.columns["step"][near[0]])
        task = int(
            self.add(
                1, name=self.code("name", name), kind=KINDS.index(kind), lane=lane_id, order=order,
                duration_ns=_nanoseconds(duration_ns), gap_ns=_nanoseconds(gap_ns), launch=launch,
                latency_ns=self.facts.launch_latency_ns if launch >= 0 else 0, **coded, **columns,
            )[0]
        )  # fmt: skip
        self.link(causes, [task] * len(causes))
        self.link([task] * len(followers), followers)
        return self.tasks([task])

    def link(
        self,
        src: Iterable[int],
        dst: Iterable[int],
        *,
        latency_ns: Any = 0,
        from_start: Any = False,
        cause: Cause = Cause.USER,
    ) -> None:
        """Let each task of `dst` start no earlier than its task of `src` ends (or starts), plus a latency."""
        src, dst = np.asarray(list(src), np.int64), np.asarray(list(dst), np.int64)
        if len(src):
            self.links.add(src=src, dst=dst, latency_ns=latency_ns, from_start=from_start, cause=int(cause))
            self.touch()

    def remove(self, ids: np.ndarray) -> None:
        """Remove tasks; a call goes too when all the device work it launched is gone."""
        self.alive[ids] = False
        launches = self.columns["launch"]
        calls = np.unique(launches[ids])
        calls = calls[calls >= 0]
        still = np.unique(launches[self.alive & (launches >= 0)])
        self.alive[np.setdiff1d(calls, still)] = False
        self.touch()

    def schedule(self, lane: str, *, key: Any) -> None:
        """Let a lane pick, among its ready tasks, the one with the least key first.

        `key` is a column name or a function from the lane's selection to an array.
        """
        if lane not in self._lane_ids:
            raise GraphError(f"no lane {lane!r}; the lanes are {', '.join(map(repr, self._lane_ids))}")
        tasks = self.select(lane=lane)
        values = key(tasks) if callable(key) else getattr(tasks, key)
        priority = np.zeros(self.size, np.int64)
        priority[tasks.ids] = np.asarray(values, np.int64)
        self.scheduled[self._lane_ids[lane]] = priority
        self.touch()

    def note(self, sentence: str) -> None:
        """Say something that a reader of any result from this graph should know."""
        self.facts.notes.append(sentence)

    def lint(self) -> list[str]:
        """Return what is wrong with the graph, a sentence each; empty when it is sound."""
        from daydream.graph.lint import problems

        return problems(self)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Return the lowered graph for networkx: a node a task, an edge a cause with its latency."""
        from daydream.graph.networkx import to_networkx

        return to_networkx(self)

    @classmethod
    def from_networkx(cls, digraph: nx.DiGraph[Any]) -> Graph:
        """Return a graph from nodes with a lane and duration_ns, and edges with latency_ns."""
        from daydream.graph.networkx import from_networkx

        return from_networkx(digraph)

    def _check(self, task: int) -> None:
        if not 0 <= task < self.size or not self.alive[task]:
            raise GraphError(f"task {task} is not in the graph; it may have been removed")


def phase_code(phase: str | None) -> int:
    """Return the code of a phase, -1 for None."""
    if phase is None:
        return -1
    if phase not in PHASES:
        raise GraphError(f"unknown phase {phase!r}; the phases are {', '.join(PHASES)}")
    return PHASES.index(phase)


def _nanoseconds(value: float) -> int:
    whole = round(value)
    if whole < 0:
        raise GraphError(f"a duration cannot be negative ({value} ns)")
    return whole


def _listed(tasks: Any) -> list[Any]:
    if tasks is None:
        return []
    return [tasks] if isinstance(tasks, Selection | int | np.integer) else list(tasks)


def _ids(tasks: Iterable[Any]) -> list[int]:
    ids: list[int] = []
    for task in _listed(tasks):
        ids.extend(task.ids.tolist() if isinstance(task, Selection) else [int(task)])
    return ids
