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

The words that edit a graph are on one page, `docs/primitives.md`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from daydream.display import NotebookTables
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.columns import Columns
from daydream.graph.edit.insert import insert_next_to, insert_one
from daydream.graph.edit.links import link, unlink
from daydream.graph.edit.rewrite import remove
from daydream.graph.interop import from_networkx, to_networkx
from daydream.graph.plan import Cause
from daydream.graph.selection import Selection, select_all
from daydream.graph.tables import (
    ALL_LANES,
    CODED,
    COLUMNS,
    DEVICE_KINDS,
    KINDS,
    ORDER_STEP,
    UNSET,
    Facts,
    Lane,
    Table,
    phase_code,
)
from daydream.trace.schema import FIELDS
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    import networkx as nx

    from daydream.costs.device.table import KernelTable
    from daydream.costs.resize.prior_resizes import Resizing

__all__ = [
    "ALL_LANES",
    "CODED",
    "COLUMNS",
    "DEVICE_KINDS",
    "KINDS",
    "ORDER_STEP",
    "Facts",
    "Graph",
    "Lane",
    "Table",
    "phase_code",
]


class Graph(NotebookTables):
    """Tasks, their lanes and their causes. Edits keep task ids: a removed id is never used again.

    Example::

        graph = daydream.build(daydream.load("examples/synthetic_gpt_gpu.json.gz"))
        kernels = graph.select(kind="kernel", phase="optimizer")
        kernels.scale(0.5)
        print(daydream.simulate(graph).makespan_ns)

    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.columns = Columns()
        self.overrides: dict[str, np.ndarray] = {}  # columns of the trace that edits changed, else `UNSET`
        self.alive = np.empty(0, bool)
        self.lanes: list[Lane] = []
        self.texts: dict[str, list[str]] = {name: [] for name in CODED}
        self.syncs = Table.of("task", "lane", "point", "latency_ns")
        self.waits = Table.of("record", "source", "wait", "target", "latency_ns")
        self.links = Table.of("src", "dst", "latency_ns", "from_start", "cause")
        self.queue_depth: dict[int, int] = {}
        self.scheduled: dict[int, str | Callable[[Selection], Any]] = {}  # lane -> key of its tasks
        self.facts = Facts()
        self.times: KernelTable | None = None  # what the user measured; copies share it
        self.steps: list[dict[str, Any]] = []
        self.edits = 0  # goes up with every editing word
        self.modelled: list[np.ndarray] = []  # ids of tasks whose time an edit set: what a model says
        self.doubted: list[tuple[np.ndarray, np.ndarray]] = []  # ids, and how far such a time may be off
        self.resized: list[Resizing] = []  # what made the recorded work more
        self.layers_asked: dict[tuple[Any, ...], None] | None = (
            None  # words of selections in copies, see `copy`
        )
        self.recorded_ns: np.ndarray | None = None  # durations before the first edit of any; copies share it
        self._codes: dict[str, dict[str, int]] = {}
        self._lane_ids: dict[str, int] = {}
        self._structure = 0  # goes up with every structural edit
        self._lowered: dict[Any, Any] = {}
        self._derived: dict[str, Any] = {}  # from the structure
        self._of_trace: dict[str, Any] = {}  # from the trace alone; copies share it
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
        """Ids of the tasks that are there, in program order: int64, shape (tasks,)."""
        if self._ids is None:
            order = self.columns["order"]
            if self.alive.all():
                self._ids = np.argsort(order, kind="stable")
            else:
                ids = np.flatnonzero(self.alive)
                self._ids = ids[np.argsort(order[ids], kind="stable")]
        return self._ids

    def __getattr__(self, name: str) -> np.ndarray:
        columns = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        raise AttributeError(f"a graph has no column {name!r}")

    def column(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Return a column for some tasks: int64, float64 or bool, or texts (None: unknown), shape (ids,)."""
        from daydream.graph.query.columns import read_column

        return read_column(self, name, ids)

    def select(self, **where: Any) -> Selection:
        """Return the tasks that match; see `Selection.where` for the words."""
        return select_all(self, where)

    def tasks(self, ids: Iterable[int]) -> Selection:
        """Return the selection of these ids."""
        return Selection(self, np.array(ids if isinstance(ids, np.ndarray) else list(ids), np.int64))

    def copy(self) -> Graph:
        """Return an independent copy; the trace behind it is shared.

        A copy is to be changed, so it notes by which layers its tasks are chosen: `layers_asked`.
        """
        twin = copy.copy(self)
        twin.columns = self.columns.copy()
        twin.overrides = {name: column.copy() for name, column in self.overrides.items()}
        twin.alive = self.alive.copy()
        twin.lanes = list(self.lanes)
        twin.texts = {name: list(texts) for name, texts in self.texts.items()}
        twin.syncs, twin.waits, twin.links = (
            Table(dict(table.columns)) for table in (self.syncs, self.waits, self.links)
        )
        twin.queue_depth = dict(self.queue_depth)
        twin.scheduled = dict(self.scheduled)
        twin.facts = self.facts.copy()
        twin.steps = [dict(step) for step in self.steps]
        twin.modelled = list(self.modelled)
        twin.doubted = list(self.doubted)
        twin.resized = list(self.resized)
        twin.layers_asked = dict(self.layers_asked or {})
        twin._codes = {}
        twin._lane_ids = dict(self._lane_ids)
        return twin  # what was derived is shared until one of the two is edited: see `touch`

    # lanes, codes, rows -----------------------------------------------------------------------

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
        if text is not None and not isinstance(text, str):
            raise GraphError(f"{column} must be text, not {text!r}")
        if text is None:
            return -1
        texts = self.texts.setdefault(column, [] if self.trace is None else [*self.trace.text(column)])
        codes = self._codes.get(column)
        if codes is None:
            codes = self._codes[column] = {text: code for code, text in enumerate(texts)}
        if text not in codes:
            codes[text] = len(texts)
            texts.append(text)
        return codes[text]

    def add(self, count: int, **columns: Any) -> np.ndarray:
        """Append tasks and return their ids (int64, shape (tasks,)); other columns take their defaults.

        Columns of the trace (`bytes`, `dtype`, ...) can be given too; texts come as codes.
        """
        first = self.size
        self.columns.append(count, columns)
        self.alive = np.concatenate([self.alive, np.ones(count, bool)])
        for name in self.overrides.keys() | (columns.keys() - COLUMNS.keys()):
            self.override(name)[first:] = columns.get(name, UNSET)
        self.touch()
        return np.arange(first, first + count)

    def override(self, name: str) -> np.ndarray:
        """Return what edits gave in a column of the trace, a value per task id, `UNSET` where none.

        The array has the column's dtype, shape (ids,), and is the graph's own: to write to.
        """
        if name not in FIELDS:
            raise GraphError(f"tasks have no column {name!r}")
        values = self.overrides.get(name, np.empty(0, np.int64))
        if len(values) < self.size:
            values = np.concatenate([values, np.full(self.size - len(values), UNSET)])
        self.overrides[name] = values
        return values

    def touch(self) -> None:
        """Forget what was derived from the structure."""
        self._structure += 1
        self._lowered = {}
        self._derived = {}
        self._ids = None

    # editing ----------------------------------------------------------------------------------

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
        thread. Other columns (`phase`, `layer`, `op`, `step`, `bytes`, ...) can be given by name.
        """
        task = insert_one(
            self, name, kind=kind, lane=lane, duration_ns=duration_ns, gap_ns=gap_ns,
            after=after, before=before, launch_after=launch_after, columns=columns,
        )  # fmt: skip
        return Selection(self, task, name)

    def insert_after(self, tasks: Selection, name: str, *, duration_ns: Any, **how: Any) -> Selection:
        """Insert a task right behind each of the tasks and return them; see `insert_next_to` for the rest."""
        new = insert_next_to(self, tasks, name, behind=True, duration_ns=duration_ns, **how)
        return Selection(self, new, name)

    def insert_before(self, tasks: Selection, name: str, *, duration_ns: Any, **how: Any) -> Selection:
        """Insert a task right before each of the tasks and return them; see `insert_next_to` for the rest."""
        new = insert_next_to(self, tasks, name, behind=False, duration_ns=duration_ns, **how)
        return Selection(self, new, name)

    def link(
        self,
        src: Selection | Iterable[int],
        dst: Selection | Iterable[int],
        *,
        latency_ns: Any = 0,
        from_start: Any = False,
        cause: Cause = Cause.USER,
    ) -> None:
        """Let each task of `dst` start no earlier than its task of `src` ends (or starts), plus a latency.

        One task on either side stands for all of them.
        """
        link(self, src, dst, latency_ns=latency_ns, from_start=from_start, cause=cause)

    def unlink(self, src: Selection, dst: Selection) -> None:
        """Drop the edges that were linked from any task of `src` to any of `dst`."""
        unlink(self, src, dst)

    def remove(self, ids: np.ndarray) -> None:
        """Remove tasks; a call goes too, with all of its pieces, when the device work it launched is gone."""
        remove(self, ids)

    def schedule(self, lane: str, *, key: str | Callable[[Selection], Any]) -> None:
        """Let a lane pick, among its ready tasks, the one with the least key first.

        `key` is a column name or a function from the lane's selection to an array. It is
        looked up when the graph is simulated, so tasks inserted later count too.
        """
        from daydream.graph.query.columns import lanes_named, priorities

        numbers = lanes_named(self, lane)
        if not numbers:
            raise GraphError(f"no lane {lane!r}; the lanes are {', '.join(map(repr, self._lane_ids))}")
        for number in numbers:
            priorities(self, number, key)  # refuses a key that cannot be read
            self.scheduled[number] = key
        self.edits += 1
        self.touch()

    def note(self, sentence: str) -> None:
        """Say something that a reader of any result from this graph should know."""
        if not isinstance(sentence, str):
            raise GraphError(f"a note must be text, not {sentence!r}")
        self.facts.notes.append(sentence)

    def does_not_apply(self, reason: str) -> NoReturn:
        """Raise `NotApplicableError`: there is nothing to change in this trace, for this reason."""
        raise NotApplicableError(reason)

    def lint(self) -> list[str]:
        """Return what is wrong with the graph, a sentence each; empty when it is sound."""
        from daydream.graph.lint import problems

        return problems(self)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Return the lowered graph for networkx: a node a task, an edge a cause with its latency."""
        return to_networkx(self)

    @classmethod
    def from_networkx(cls, digraph: nx.DiGraph[Any]) -> Graph:
        """Return a graph from nodes with a lane and duration_ns, and edges with latency_ns."""
        return from_networkx(cls, digraph)
