"""Selection: a set of tasks of one graph, with the words that read and change them.

Text columns are matched by value (`kind`, `phase`, `dtype`, `lane`; a tuple means
any of them), by shell pattern (`layer`), or by regular expression (`name`, `op`,
`within`). All words are on one page, `docs/primitives.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.display import NotebookTables
from daydream.errors import GraphError, NoMatchError, NotApplicableError
from daydream.graph.edit.rewrite import move, split, start_waiting, stop_waiting, waiting
from daydream.graph.edit.values import scale, set_columns
from daydream.graph.edit.waits import wait_for
from daydream.graph.grouping import group_by, runs, stretches
from daydream.graph.groups import Groups
from daydream.graph.query.calls import operators
from daydream.graph.query.columns import read_column
from daydream.graph.query.expression import SHOWN, passes
from daydream.graph.query.matching import matching, no_match, note_layers
from daydream.graph.query.program_order import among, in_program_order

if TYPE_CHECKING:
    import pandas as pd

    from daydream.graph.graph import Graph

OWN = {"graph", "ids", "words"}
KEPT = frozenset(("kind", "on", "phase", "name", "op", "layer", "dtype", "collective", "within"))
MOST_KEPT = 2  # ids in selections that are kept, for each task of the graph


class Selection(NotebookTables):
    """Tasks of a graph, in program order. Attributes are columns: `kernels.duration_ns` is an array.

    Example::

        graph = daydream.build(daydream.load("examples/synthetic_gpt_gpu.json.gz"))
        kernels = graph.select(kind="kernel", phase=("forward", "backward"))
        long = kernels.where(lambda tasks: tasks.duration_ns > 50_000)
        long.scale(0.5)  # the others stay

    """

    def __init__(self, graph: Graph, ids: np.ndarray, words: str = "") -> None:
        self.graph = graph
        self.ids = ids
        self.words = words  # how it was selected, for error messages

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Selection]:
        for task in self.ids.tolist():
            yield Selection(self.graph, np.array([task]), self.words)

    def __repr__(self) -> str:
        return f"<Selection of {len(self):,} tasks{': ' + self.words if self.words else ''}>"

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return read_column(self.graph, name, self.ids)
        except NotApplicableError:
            raise
        except GraphError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in OWN:
            raise GraphError(f"columns of a selection are copies; change them with .set({name}=...)")
        object.__setattr__(self, name, value)

    def __or__(self, other: Selection) -> Selection:
        self._same_graph(other)
        either = among(self.graph, self.ids)
        either[other.ids] = True
        return self.of(np.flatnonzero(either), f"({self.words} or {other.words})")

    def __and__(self, other: Selection) -> Selection:
        self._same_graph(other)
        both = among(self.graph, other.ids)[self.ids]
        return self.of(self.ids[both], f"{self.words}, {other.words}")

    def __sub__(self, other: Selection) -> Selection:
        self._same_graph(other)
        left = ~among(self.graph, other.ids)[self.ids]
        return self.of(self.ids[left], f"{self.words} without ({other.words})")

    def _same_graph(self, other: Selection) -> None:
        if other.graph is not self.graph:
            raise GraphError("selections of two graphs have nothing in common; select from one of them")

    def of(self, ids: np.ndarray, words: str, *, ordered: bool = False) -> Selection:
        """Return other tasks of this graph as a selection, put in program order unless they are `ordered`."""
        if not ordered:
            ids = in_program_order(self.graph, ids)
        return Selection(self.graph, ids, words)

    # choosing

    def where(self, test: Callable[[Selection], np.ndarray] | None = None, **where: Any) -> Selection:
        """Return the tasks that match the words and pass `test`, a function from this selection to a mask.

        Words are columns; besides them `on` (cpu or gpu) and `within`, a regular expression on
        the names of operators (or ranges) that enclose the task at any depth.
        """
        chosen = self
        if test is not None:
            mask = np.asarray(test(self), bool)
            if mask.shape != self.ids.shape:
                raise GraphError(f"a test gives true or false for each task, not {mask.shape}")
            chosen = Selection(self.graph, self.ids[mask], f"{self.words}, a test".strip(", "))
            if not where:
                return chosen
        return select(self.graph, chosen.ids, where, chosen.words)

    def query(self, expression: str, **values: Any) -> Selection:
        """Return the tasks for which a pandas expression on columns holds; `@name` stands for a value."""
        words = f"{self.words}, {expression!r}".strip(", ")
        return Selection(self.graph, self.ids[passes(self, expression, values)], words)

    def first(self) -> Selection:
        """Return the first task in program order."""
        return self.head(1)

    def last(self) -> Selection:
        """Return the last task in program order."""
        self.need_some()
        return Selection(self.graph, self.ids[-1:], f"last of {self.words}")

    def head(self, count: int) -> Selection:
        """Return the first tasks in program order."""
        self.need_some()
        return Selection(self.graph, self.ids[:count], f"first {count} of {self.words}")

    def launches(self) -> Selection:
        """Return the calls that launched these device tasks."""
        launch = self.graph.columns["launch"][self.ids]
        calls = np.flatnonzero(among(self.graph, launch[launch >= 0]))
        return self.of(calls, f"launches of {self.words}")

    def launched(self) -> Selection:
        """Return the device work that these calls launched."""
        launch = self.graph.columns["launch"]
        chosen = np.append(among(self.graph, self.ids), False)  # the last: of no launch, -1
        return self.of(np.flatnonzero(self.graph.alive & chosen[launch]), f"launched by {self.words}")

    def operators(self) -> Selection:
        """Return the CPU tasks of the operator calls that did this work and no other.

        Inner calls go with them; see `daydream.graph.query.calls.operators`.
        """
        return operators(self)

    def waiting(self) -> Selection:
        """Return the calls among these that wait for device work."""
        return waiting(self)

    def waited_for(self) -> Selection:
        """Return the points of the program that these calls wait for: records of events, or the calls."""
        table = self.graph.syncs
        points = np.flatnonzero(among(self.graph, table["point"][among(self.graph, self.ids)[table["task"]]]))
        return self.of(points[self.graph.alive[points]], f"what {self.words} wait for")

    def on_lanes_of(self, others: Selection) -> Selection:
        """Return the tasks on those lanes, threads or streams, that run some of the others."""
        lane = self.graph.columns["lane"]
        return self.of(self.ids[np.isin(lane[self.ids], np.unique(lane[others.ids]))], self.words)

    def group_by(
        self, *columns: str, within: str | None = None, block: str | Sequence[str] | None = None
    ) -> Groups:
        """Return the tasks in groups of equal values; with several columns the key is a tuple.

        `within` groups by the outermost call of an operator whose name matches, `block` by the
        outermost module whose path matches a shell pattern (or one of several), with all modules
        inside it; their values come first in the key. Tasks whose value is unknown are in no group.
        """
        return group_by(self, columns, within, block)

    def runs(self, size: float | Sequence[float], *, of: str) -> Groups:
        """Return consecutive tasks in groups that are full as soon as a column's sum reaches `size`.

        Several sizes are those of the first groups, the last one of all that follow. Runs
        start anew in each step and rank, and tasks with 0 or unknown join the run they are in.
        """
        return runs(self, size, of)

    def stretches(self, by: Selection, *, on_lane: bool = False) -> Groups:
        """Return the tasks in groups that no task of `by` parts, in program order.

        A group never spans two steps or ranks; with `on_lane` it keeps to one lane, and only
        tasks of `by` on that lane part it.
        """
        return stretches(self, by, on_lane=on_lane)

    def total(self, column: str) -> int:
        """Return the sum of a column over the tasks where it is known."""
        values = getattr(self, column)
        return int(values[values > 0].sum())

    def to_pandas(self, columns: Sequence[str] = SHOWN) -> pd.DataFrame:
        """Return columns of the tasks as a data frame indexed by id."""
        import pandas as pd

        return pd.DataFrame(
            {name: getattr(self, name) for name in columns}, index=pd.Index(self.ids, name="task")
        )

    def need(self, what: str, *, lacks: str | None = None) -> Selection:
        """Return the selection, or raise `NotApplicableError` saying that the trace has no such thing."""
        if not len(self.ids):
            raise NotApplicableError(f"this trace has no {what}", lacks=lacks)
        return self

    def need_some(self) -> Selection:
        """Return the selection, or raise `NoMatchError` saying what was looked for."""
        if not len(self.ids):
            raise NoMatchError(no_match(self.graph, self.words))
        return self

    def need_all(self) -> Selection:
        """Return the selection, or raise `GraphError` if some of its tasks were removed meanwhile."""
        gone = int((~self.graph.alive[self.ids]).sum())
        if gone:
            raise GraphError(
                f"{gone:,} of {len(self):,} tasks were removed since they were selected: {self.words}"
            )
        return self

    # changing

    def scale(self, factor: Any, *, gaps: bool = False) -> Selection:
        """Multiply durations (with `gaps`, the untraced time after them too), rounding half up.

        The factor is one number, or one for each task.
        """
        return scale(self, factor, gaps=gaps)

    def doubt(self, error: float | np.ndarray) -> Selection:
        """Say how far the times given to the tasks may be off: a part of them, at 90 %, one or one for each.

        For models that know their own errors. It widens the range of the prediction where it is more than
        what such models were found to have (`uncertainty.MODEL_ERROR`). Transfers may be longer by that, or
        shorter where it is below 0, and not the other way: it widens the range at one end.
        """
        self.graph.doubted.append((self.ids, np.broadcast_to(np.asarray(error, np.float64), self.ids.shape)))
        return self

    def set(self, **columns: Any) -> Selection:
        """Give the tasks new values, one for all or one for each.

        Times in ns (`duration_ns`, `gap_ns`, `latency_ns`, `release_ns`), `name`, `kind`,
        `phase`, `layer`, `op`, `step`, and what the trace says of the work: `dtype`, `bytes`,
        `shapes`, `collective`, `group`, `elements`.
        """
        return set_columns(self, columns)

    def remove(self) -> None:
        """Take the tasks out; calls whose device work is all gone go with it."""
        self.need_some()
        self.graph.remove(self.ids)

    def replace(self, name: str, *, duration_ns: float, **columns: Any) -> Selection:
        """Put one task in the place of all of these: same lane, kind and launch as the first."""
        return Groups(self, np.zeros(len(self), np.int64), [name]).fuse(
            name, duration_ns=duration_ns, **columns
        )

    def split(self, parts: int, *, launched: bool = False) -> Selection:
        """Divide each task into so many parts that follow each other; return all of them.

        The parts' durations add up exactly, and the gap stays behind the last. One call
        launches them all, unless with `launched` each further part brings its own and has
        the trace's start-up cost before it. What followed a task follows its last part.
        """
        return split(self, parts, launched=launched)

    def move(self, lane: str, *, follows: bool = True, held_for: bool = True) -> Selection:
        """Put the tasks on another lane (made if it is new), their launches and other causes kept.

        Edges stand for what the order on the old lane said: a moved task still `follows`
        what ran before it, and what came behind it is still `held_for` it, a call that
        waited for that lane too. Leave out either where there is no such dependency.
        """
        return move(self, lane, follows=follows, held_for=held_for)

    def stop_waiting(self) -> Selection:
        """Let these calls no longer wait for device work; they keep what they cost by themselves."""
        return stop_waiting(self)

    def wait_for(self, lane: str | Sequence[str], *, on: str | Sequence[str] | None = None) -> Selection:
        """Let these calls return when what was launched on a lane before them has ended.

        With `on` the calls return at once, and that lane's later work waits instead, as behind
        `cudaStreamWaitEvent`. Lanes are one for all calls or one for each.
        """
        return wait_for(self, lane, on)

    def start_waiting(self, lane: str | None = None) -> Selection:
        """Let these calls wait for all device work launched before them, or for that of one lane."""
        return start_waiting(self, lane)

    def repeat(self, times: int = 1, *, before: Selection | None = None) -> Selection:
        """Do this work again, right behind its last task or before another; see `Groups.repeat`."""
        return Groups(self, np.zeros(len(self), np.int64), ["all"]).repeat(times, before=before)


def select(graph: Graph, ids: np.ndarray, where: dict[str, Any], words: str = "") -> Selection:
    """Return those of `ids` that match every word of `where` (words with value None are left out)."""
    note_layers(graph, where)
    mask, said = matching(graph, ids, where)
    return Selection(graph, ids[mask], ", ".join([words, *said] if words else said))


def select_all(graph: Graph, where: dict[str, Any]) -> Selection:
    """Return the tasks of a graph that match every word of `where`.

    What texts were asked for is kept until the next structural edit: copies of a graph are asked the same.
    """
    words = tuple(where.items())
    if not all(name in KEPT and _is_text(wanted) for name, wanted in words):
        return select(graph, graph.ids, where)
    note_layers(graph, where)
    known = graph._derived.setdefault("selected", {})
    if words not in known:
        found = select(graph, graph.ids, where)
        if sum(len(ids) for ids, _ in known.values()) + len(found) > MOST_KEPT * graph.size:
            return found
        found.ids.flags.writeable = False
        known[words] = found.ids, found.words
    ids, said = known[words]
    return Selection(graph, ids, said)


def _is_text(wanted: Any) -> bool:
    several = wanted if type(wanted) is tuple else (wanted,)
    return all(type(each) is str for each in several)
