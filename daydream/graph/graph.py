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
| `doubtful` | it may follow that one, and does in the other reading (`Graph.released`) |

The words that edit a graph are on one page, `docs/primitives.md`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from msgspec import Struct
from numpy import ndarray

from daydream.arrays import take
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import pieces_of
from daydream.graph.insert import TAKEN_OVER, encode, ids_of, insert_next_to, place
from daydream.graph.lower import problems
from daydream.graph.plan import Cause
from daydream.graph.select import (
    Where,
    in_program_order,
    lanes_named,
    of_tasks,
    of_trace,
    priorities,
    read_column,
)
from daydream.graph.selection import Selection
from daydream.graph.tables import (
    CODED,
    COLUMNS,
    NO_EDGE,
    TABLES,
    Facts,
    Lane,
    Table,
    kind_code,
    nanoseconds,
    next_version,
)
from daydream.lazy import NotebookTables
from daydream.trace.schema import FIELDS
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    import networkx as nx

OWN = (  # what each copy has of its own
    *TABLES,
    "lanes",
    "queue_depth",
    "scheduled",
    "facts",
    "modelled",
    "doubted",
    "edited_by",
    "resized",
)


class Resizing(Struct, frozen=True):
    """A size of the input that an edit changed; the work of the passes grew with it.

    Attributes:
        factor: how many times as large it is.
        old: the size before, None where it is not known.
        every: all sizes equal to the old one changed; else the first of a tensor.
        on_device: the work of device tasks grew; else that of CPU tasks.
    """

    factor: float
    old: int | None
    every: bool
    on_device: bool

    @property
    def new(self) -> int:
        """The size after the change."""
        return round((self.old or 0) * self.factor)


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
        self.columns = Table(COLUMNS)
        self.lanes: list[Lane] = []
        self.texts: dict[str, list[str]] = {name: [] for name in CODED}
        self.syncs = Table.of("task", "lane", "point", "latency_ns")
        self.waits = Table.of("record", "source", "wait", "target", "latency_ns")
        self.links = Table.of("src", "dst", "latency_ns", "from_start", "cause")
        # What may follow other work: no row tells.
        self.doubtful = Table.of("src", "dst", "latency_ns", "from_start", "cause")
        self.waits_released = False  # what may be a wait is one
        self.queue_depth: dict[int, int] = {}
        self.scheduled: dict[int, str | Callable[[Selection], Any]] = {}  # lane -> key of its tasks
        self.facts = Facts()
        self.times: Any = None  # what the user measured, a `costs.KernelTable`; copies share it
        self.steps: list[dict[str, Any]] = []
        self.modelled: list[ndarray] = []  # ids of tasks whose time an edit set: what a model says
        self.doubted: list[
            tuple[ndarray, ndarray, bool]
        ] = []  # ids, how far such a time may be off, and whether for waiting
        self.resized: list[Resizing] = []  # what made the recorded work more
        self.edited_by: dict[Where, None] = {}  # the words of selections that were edited
        self.recorded_ns: ndarray | None = (
            None  # durations before the first edit of any; copies share it
        )
        self._codes: dict[str, dict[str, int]] = {}
        self._version = self._structure = next_version()  # of what is in no table
        self._derived: dict[int, dict[Any, Any]] = {}  # by version or structure
        self._of_trace: dict[Any, Any] = {}  # texts and nesting of the trace; copies share it

    # reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.alive.sum())

    def __repr__(self) -> str:
        return f"<Graph {len(self):,} tasks on {len(self.lanes)} lanes>"

    @property
    def size(self) -> int:
        """Number of ids ever given out, removed tasks included."""
        return len(self.columns)

    @property
    def recorded(self) -> Trace:
        """The trace, an empty one if the graph is of none."""
        return Trace({}, {}) if self.trace is None else self.trace

    @property
    def ranks(self) -> ndarray:
        """The rank of each lane: int64, shape (lanes,); of a graph without lanes, one 0."""
        return np.array([lane.rank for lane in self.lanes] or [0], np.int64)

    @property
    def rank(self) -> ndarray:
        """The rank of each task's lane: int64, shape (ids,)."""
        return self.ranks[self.lane]

    def of_rows(self, *kinds: str) -> ndarray:
        """Return whether each task is a piece of a row of these kinds (`runtime`, ...): bool, shape (ids,)."""
        return take(self.recorded.is_kind(*kinds), self.row, False)

    @property
    def in_background(self) -> ndarray:
        """Whether each task is on a thread that nothing waits for: bool, shape (ids,)."""
        return np.array([lane.background for lane in self.lanes], bool)[self.lane]

    @property
    def ids(self) -> ndarray:
        """Ids of the tasks that are there, in program order: int64, shape (tasks,)."""
        found: ndarray = self.derived(
            "ids", lambda: in_program_order(self, np.flatnonzero(self.alive)), structure=True
        )
        found.flags.writeable = False  # copies that nobody edited share it
        return found

    @property
    def version(self) -> int:
        """The number of the last write: graphs with the same one are equal."""
        return max(self._version, *(table.version for table in self._tables))

    @property
    def structure(self) -> int:
        """The number of the last write of anything but durations and gaps."""
        return max(self._structure, *(table.structure for table in self._tables))

    @property
    def _tables(self) -> tuple[Table, ...]:
        return tuple(getattr(self, name) for name in TABLES)

    def derived(self, key: Any, make: Callable[[], Any], *, structure: bool = False) -> Any:
        """Return what `make` works out from this graph, once a version; unedited copies share it.

        With `structure` it depends on neither durations nor gaps, and is kept while these are written. Of a
        draft, whose arrays can still be written to in place, nothing is kept.
        """
        if not self.columns.frozen:
            return make()
        version = self.structure if structure else self.version
        if version not in self._derived:
            now = (self.version, self.structure)
            kept = {each: values for each, values in self._derived.items() if each in now}
            self._derived = {**kept, version: {}}
        values = self._derived[version]
        if key not in values:
            values[key] = make()
        return values[key]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        while next_version() <= self.version:  # numbers of another process
            pass

    def __getattr__(self, name: str) -> ndarray:
        columns = self.__dict__.get("columns", ())
        if name in columns:
            return columns[name]
        raise AttributeError(
            f"Graph has no attribute {name!r}; tasks are chosen as in graph.select(kind='kernel')"
        )

    def column(self, name: str, ids: ndarray) -> ndarray:
        """Return a column for some tasks: int64, float64 or bool, or texts (None: unknown), shape (ids,)."""
        return read_column(self, name, ids)

    def select(self, **where: Any) -> Selection:
        """Return the tasks that match; see `Selection.where` for the words."""
        return Selection(self, self.ids).where(**where)

    def tasks(self, ids: Iterable[int]) -> Selection:
        """Return the selection of these ids."""
        return Selection(self, np.array(ids if isinstance(ids, ndarray) else list(ids), np.int64))

    def named(self, match: Callable[[str], Any], tasks: ndarray | None = None) -> ndarray:
        """Return which of the tasks, or of some, have a name that fits a predicate on names: a mask."""
        chosen = self.tasks(np.arange(self.size) if tasks is None else tasks)
        return of_tasks(chosen, "name", lambda name: name is not None and match(name), bool)

    def copy(self) -> Graph:
        """Return an independent copy; the trace is shared."""
        twin = copy.copy(self)
        for name in OWN:
            setattr(twin, name, getattr(self, name).copy())
        twin.texts = {name: [*texts] for name, texts in self.texts.items()}
        twin.steps = [{**step} for step in self.steps]
        twin._codes = {}
        return twin

    def retimed(self, duration_ns: ndarray, gap_ns: ndarray) -> Graph:
        """Return a copy whose tasks take other times: ns, int64, shape (ids,)."""
        twin = self.copy()
        twin.columns.put("duration_ns", duration_ns)
        twin.columns.put("gap_ns", gap_ns)
        return twin

    def released(self) -> Graph:
        """Return a copy in which what may be a wait is one: it takes no time, and follows what it waits for.

        That is `doubt` and `gap_doubt` of tasks, and what is `doubtful`, with the usual launch latency.
        """
        parts = self.duration_ns * (1.0 - self.doubt), self.gap_ns * (1.0 - self.gap_doubt)
        twin = self.retimed(*np.rint(parts))
        twin.waits_released = True
        return twin

    def differs_in_times_only(self, other: Graph) -> bool:
        """Tell whether another graph has the same plans but for durations and gaps; False if that is open."""
        if (
            self.scheduled
            or other.scheduled
            or self.lanes != other.lanes
            or self.queue_depth != other.queue_depth
            or self.steps != other.steps
        ):
            return False
        return all(
            np.array_equal(mine[name], theirs[name])
            for mine, theirs in zip(self._tables, other._tables, strict=True)
            for name in mine
            if name not in NO_EDGE
        )

    def freeze(self) -> None:
        """Make all arrays read-only: the graph is a draft no more."""
        for table in self._tables:
            table.freeze()

    # lanes, codes, rows -----------------------------------------------------------------------

    def lane_id(
        self, name: str, *, on_device: bool = False, rank: int = 0, device: int = -1
    ) -> int:
        """Return the number of the lane with this name, made if it is new."""
        for number, lane in enumerate(self.lanes):
            if lane.name == name:
                return number
        return self.add_lane(Lane(name, rank, on_device, device))

    def add_lane(self, lane: Lane) -> int:
        """Add a lane and return its number; further lanes of one name get a number, too."""
        names = {each.name for each in self.lanes}
        name = lane.name
        number = 1
        while name in names:
            number += 1
            name = f"{lane.name} ({number})"
        self.lanes.append(lane._replace(name=name))
        self._version = self._structure = next_version()
        return len(self.lanes) - 1

    def code(self, column: str, text: str | None) -> int:
        """Return the code of a text in a coded column, made if it is new; -1 for None."""
        if text is None:
            return -1
        if not isinstance(text, str):
            raise GraphError(f"{column} must be text, not {text!r}")
        texts = self.texts.setdefault(column, [*self.recorded.text(column)])
        if column not in self._codes:
            self._codes[column] = {text: code for code, text in enumerate(texts)}
        code: int = self._codes[column].setdefault(text, len(texts))
        if code == len(texts):
            texts.append(text)
        return code

    def add(self, count: int, **columns: Any) -> ndarray:
        """Append tasks and return their ids (int64, shape (tasks,)); other columns take their defaults.

        Columns of the trace (`bytes`, `dtype`, ...) can be given too; texts come as codes.
        """
        for name in columns:
            self._own(name)
        self.columns.add(**{"alive": np.ones(count, bool), **columns})
        return np.arange(self.size - count, self.size)

    def write(self, name: str, ids: Any, values: Any) -> None:
        """Give tasks (ids or a mask) new values in a column: one for all or one for each; texts as codes."""
        if name == "duration_ns" and self.recorded_ns is None:
            self.recorded_ns = self.columns[name]
        self._own(name)
        self.columns.write(name, ids, values)

    def _own(self, name: str) -> None:
        """Make a column of the trace one of the graph, with what was recorded of each task."""
        if name in self.columns:
            return
        if name not in FIELDS:
            raise GraphError(f"tasks have no column {name!r}")
        recorded = of_trace(self, name, np.arange(self.size))
        self.columns.types = {**self.columns.types, name: np.int64}
        self.columns.put(name, recorded)

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
        number = kind_code(kind)
        causes, followers, caller = (ids_of(self, tasks) for tasks in (after, before, launch_after))
        duration, gap = (nanoseconds(value) for value in (duration_ns, gap_ns))
        values = encode(self, columns)
        lane_id = lane if isinstance(lane, int) else self.lane_id(lane, on_device=kind != "cpu")
        behind = causes
        if len(caller):
            call = self.insert(
                "launch",
                kind="cpu",
                lane=int(self.lane[caller[0]]),
                duration_ns=self.facts.launch_cost_ns,
                after=caller[:1],
                **{key: value for key, value in columns.items() if key in TAKEN_OVER},
            )
            values |= {"launch": call.ids, "latency_ns": self.facts.launch_latency_ns}
            behind = np.append(causes, call.ids)
        near = [*causes, *followers, *behind]
        if near:
            values.setdefault("step", self.step[near[0]])
        task = self.add(
            1,
            name=self.code("name", name),
            kind=number,
            lane=lane_id,
            order=place(self, lane_id, behind, followers),
            duration_ns=duration,
            gap_ns=gap,
            **values,
        )
        self.link(causes, task)
        self.link(task, followers)
        return Selection(self, task, name)

    def insert_after(
        self, tasks: Selection, name: str, *, duration_ns: Any, **how: Any
    ) -> Selection:
        """Insert a task right behind each of the tasks and return them; see `insert_next_to` for the rest."""
        return insert_next_to(self, tasks, name, behind=True, duration_ns=duration_ns, **how)

    def insert_before(
        self, tasks: Selection, name: str, *, duration_ns: Any, **how: Any
    ) -> Selection:
        """Insert a task right before each of the tasks and return them; see `insert_next_to` for the rest."""
        return insert_next_to(self, tasks, name, behind=False, duration_ns=duration_ns, **how)

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
        sources = ids_of(self, src)
        targets = ids_of(self, dst)
        if len(sources) != len(targets) and 1 not in {len(sources), len(targets)}:
            raise GraphError(
                f"cannot link {len(sources)} tasks with {len(targets)}; give one for each"
            )
        self.links.add(
            src=sources, dst=targets, latency_ns=latency_ns, from_start=from_start, cause=cause
        )

    def unlink(self, src: Selection, dst: Selection) -> None:
        """Drop the edges that were linked from any task of `src` to any of `dst`."""
        rows = np.isin(self.links["src"], src.ids) & np.isin(self.links["dst"], dst.ids)
        if not rows.any():
            raise NotApplicableError(f"no edge leads from {src.words} to {dst.words}")
        self.links.keep(~rows)

    def remove(self, ids: ndarray) -> None:
        """Remove tasks; a call goes too, with all of its pieces, when the device work it launched is gone."""
        self.write("alive", ids, False)
        launch = self.launch
        calls = np.unique(launch[ids])
        calls = calls[(calls >= 0) & ~np.isin(calls, launch[self.alive])]
        self.write("alive", np.append(calls, pieces_of(self, calls)[0]), False)

    def schedule(self, lane: str, *, key: str | Callable[[Selection], Any]) -> None:
        """Let a lane pick, among its ready tasks, the one with the least key first.

        `key` is a column name or a function from the lane's selection to an array. It is
        looked up when the graph is simulated, so tasks inserted later count too.
        """
        numbers = lanes_named(self, lane)
        if not numbers:
            known = ", ".join(repr(each.name) for each in self.lanes)
            raise GraphError(f"no lane {lane!r}; the lanes are {known}")
        for number in numbers:
            priorities(self, number, key)  # refuses a key that cannot be read
            self.scheduled[number] = key
        self._version = self._structure = next_version()

    def note(self, sentence: str) -> None:
        """Say something that a reader of any result from this graph should know."""
        if not isinstance(sentence, str):
            raise GraphError(f"a note must be text, not {sentence!r}")
        self.facts.notes.append(sentence)

    def covers(self, times: float, unit: str = "samples") -> None:
        """Let a step cover `times` as many samples, or tokens: answers then give the throughput, too."""
        self.facts.work *= times
        if self.facts.work_unit != "tokens":  # more samples are more tokens, too
            self.facts.work_unit = unit

    def does_not_apply(self, reason: str) -> NoReturn:
        """Raise `NotApplicableError`: there is nothing to change in this trace, for this reason."""
        raise NotApplicableError(reason)

    def lint(self) -> list[str]:
        """Return what is wrong with the graph, a sentence each; empty when it is sound."""
        return problems(self)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Return the lowered graph for networkx: a node a task, an edge a cause with its latency."""
        from daydream.graph.interop import to_networkx

        return to_networkx(self)

    @classmethod
    def from_networkx(cls, digraph: nx.DiGraph[Any]) -> Graph:
        """Return a graph from nodes with a lane and duration_ns, and edges with latency_ns."""
        from daydream.graph.interop import from_networkx

        return from_networkx(cls, digraph)
