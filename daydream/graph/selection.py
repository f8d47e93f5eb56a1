"""Selection: a set of tasks of one graph, with the words that read and change them.

Text columns are matched by value (`kind`, `phase`, `dtype`, `lane`; a tuple means
any of them), by shell pattern (`layer`), or by regular expression (`name`, `op`,
`within`). All words are on one page, `docs/primitives.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from daydream import lazy
from daydream.arrays import combinations, unique
from daydream.errors import GraphError, NoMatchError, NotApplicableError
from daydream.graph.calls import instances, operators, row_numbers
from daydream.graph.groups import Groups
from daydream.graph.insert import encode
from daydream.graph.lower import around_points, follow_instead, keep_waits
from daydream.graph.select import (
    DERIVED,
    Where,
    among,
    coded,
    in_program_order,
    is_text,
    lanes_for,
    matching,
    no_match,
    one_each,
    read_column,
    same_graph,
    texts_of,
)
from daydream.graph.tables import ALL_LANES, COLUMNS, COSTS, CPU, nanoseconds
from daydream.lazy import NotebookTables
from daydream.trace.schema import FIELDS

if TYPE_CHECKING:
    import pandas as pd

    from daydream.graph.graph import Graph

SHOWN = ("name", "kind", "lane", "phase", "layer", "op", "step", "duration_ns", "gap_ns")
OWN = {"graph", "ids", "words", "conditions"}
TIMES = ("duration_ns", "gap_ns", "latency_ns", "release_ns")


class Selection(NotebookTables):
    """Tasks of a graph, in program order. Attributes are columns: `kernels.duration_ns` is an array.

    Example::

        graph = daydream.build(daydream.load("examples/synthetic_gpt_gpu.json.gz"))
        kernels = graph.select(kind="kernel", phase=("forward", "backward"))
        long = kernels.where(lambda tasks: tasks.duration_ns > 50_000)
        long.scale(0.5)  # the others stay

    """

    def __init__(
        self, graph: Graph, ids: ndarray, words: str = "", conditions: Sequence[Where] = ()
    ) -> None:
        self.graph = graph
        self.ids = ids
        self.words = words  # how it was selected, for error messages
        self.conditions = tuple(conditions)  # by which texts it was selected, one after another

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Selection]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, places: Any) -> Selection:
        """Return the tasks at some places (a number, a slice, an array), or where a mask holds."""
        return self.of(np.atleast_1d(self.ids[places]), self.words, ordered=True)

    def __repr__(self) -> str:
        return f"<Selection of {len(self):,} tasks{': ' + self.words if self.words else ''}>"

    def __getattr__(self, name: str) -> ndarray:
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
            raise GraphError(
                f"columns of a selection are copies; change them with .set({name}=...)"
            )
        object.__setattr__(self, name, value)

    def __or__(self, other: Selection) -> Selection:
        same_graph(self.graph, other)
        either = unique(np.append(self.ids, other.ids))
        return self._with(other, either, f"({self.words} or {other.words})")

    def __and__(self, other: Selection) -> Selection:
        return self._with(other, self.ids[self.is_in(other)], f"{self.words}, {other.words}")

    def __sub__(self, other: Selection) -> Selection:
        left = self.ids[~self.is_in(other)]
        return self._with(other, left, f"{self.words} without ({other.words})")

    def is_in(self, other: Selection) -> ndarray:
        """Return which of these tasks are among others: bool, shape (tasks,)."""
        same_graph(self.graph, other)
        return among(self.graph, other.ids)[self.ids]

    def next_after(self, others: Selection) -> ndarray:
        """Return the place among these tasks of the next one behind each of the others in program order.

        int64, shape (others,): the number of these tasks where none follows.
        """
        return np.searchsorted(self.order, others.order, side="right")

    def _with(self, other: Selection, ids: ndarray, words: str) -> Selection:
        ids = in_program_order(self.graph, ids)
        return Selection(self.graph, ids, words, self.conditions + other.conditions)

    def of(self, ids: ndarray, words: str, *, ordered: bool = False) -> Selection:
        """Return other tasks of this graph as a selection, put in program order unless they are `ordered`."""
        if not ordered:
            ids = in_program_order(self.graph, ids)
        return Selection(self.graph, ids, words, self.conditions)

    # choosing

    def where(self, test: Callable[[Selection], Any] | None = None, **where: Any) -> Selection:
        """Return the tasks that match the words and pass `test`, a function from this selection to a mask.

        Words are columns; besides them `on` (cpu or gpu) and `within`, a regular expression on
        the names of operators (or ranges) that enclose the task at any depth.
        """
        ids = self.ids
        words = [self.words]
        if test is not None:
            mask = np.asarray(test(self), bool)
            if mask.shape != ids.shape:
                raise GraphError(f"a test gives true or false for each task, not {mask.shape}")
            ids = ids[mask]
            words.append("a test")
        wanted = {name: value for name, value in where.items() if value is not None}
        words += [f"{name}={value!r}" for name, value in wanted.items()]
        return Selection(
            self.graph,
            matching(self.graph, ids, wanted),
            ", ".join(filter(None, words)),
            (*self.conditions, texts_of(wanted)),
        )

    def query(self, expression: str, **values: Any) -> Selection:
        """Return the tasks for which a pandas expression on columns holds; `@name` stands for a value."""
        columns = {*self.graph.columns, *DERIVED, *FIELDS}
        words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", expression))
        frame = self.to_pandas([word for word in words if word in columns])
        try:
            mask = np.asarray(frame.eval(expression, local_dict=values, engine="python"))
        except Exception as error:  # noqa: BLE001 - the expression is the user's, and pandas raises what its parts raise
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            known = f"Columns are {', '.join(SHOWN)} and those of the trace."
            raise GraphError(f"cannot ask for {expression!r}: {why}. {known}") from None
        if mask.shape != self.ids.shape or mask.dtype != bool:
            raise GraphError(f"{expression!r} is not true or false for each task")
        return self.of(self.ids[mask], f"{self.words}, {expression!r}".strip(", "), ordered=True)

    def first(self) -> Selection:
        """Return the first task in program order."""
        return self.need_some()[:1]

    def last(self) -> Selection:
        """Return the last task in program order."""
        return self.need_some()[-1:]

    def head(self, count: int) -> Selection:
        """Return the first tasks in program order."""
        return self.need_some()[:count]

    def launches(self) -> Selection:
        """Return the calls that launched these device tasks."""
        launch = self.graph.launch[self.ids]
        calls = np.flatnonzero(among(self.graph, launch[launch >= 0]))
        return self.of(calls, f"launches of {self.words}")

    def launched(self) -> Selection:
        """Return the device work that these calls launched."""
        launch = self.graph.launch
        chosen = np.append(among(self.graph, self.ids), False)  # the last: of no launch, -1
        return self.of(
            np.flatnonzero(self.graph.alive & chosen[launch]), f"launched by {self.words}"
        )

    def operators(self) -> Selection:
        """Return the CPU tasks of the operator calls that did this work and no other.

        Inner calls go with them; see `daydream.graph.calls.operators`.
        """
        return operators(self)

    def waiting(self) -> Selection:
        """Return the calls among these that wait for device work."""
        waits = np.isin(self.ids, self.graph.syncs["task"])
        return self.of(self.ids[waits], f"{self.words}, waiting", ordered=True)

    def waited_for(self) -> Selection:
        """Return the points of the program that these calls wait for: records of events, or the calls."""
        table = self.graph.syncs
        points = unique(table["point"][np.isin(table["task"], self.ids)])
        return self.of(points[self.graph.alive[points]], f"what {self.words} wait for")

    def on_lanes_of(self, others: Selection) -> Selection:
        """Return the tasks on those lanes, threads or streams, that run some of the others."""
        lane = self.graph.lane
        return self[np.isin(lane[self.ids], lane[others.ids])]

    def group_by(
        self,
        *columns: str | Sequence[Any] | ndarray,
        within: str | None = None,
        block: str | Sequence[str] | None = None,
    ) -> Groups:
        """Return the tasks in groups of equal values; with several columns the key is a tuple.

        A column is its name, or an array or list of whole numbers, one a task, with -1 for unknown.
        `within` groups by the outermost call of an operator whose name matches, `block` by the
        outermost module whose path matches a shell pattern (or one of several), with all modules
        inside it; their values come first in the key. Tasks whose value is unknown are in no group.
        """
        graph = self.graph
        ids = self.ids
        chosen = self.of(ids, self.words, ordered=True)
        # By column the value of each task or the number of its text, -1 for none, and these texts.
        parts: list[tuple[ndarray, list[Any] | None]] = []
        if within is not None:
            parts.append((instances(graph, ids, within), None))
        if block is not None:
            chosen.conditions += (texts_of({"block": block}),)
            by_layer, blocks = lazy.ask("block_of_layers", graph, block)
            parts.append((by_layer[graph.layer[ids]], blocks))
        for each in columns:
            if isinstance(each, str) and is_text(each):
                parts.append(coded(graph, each, ids))
                continue
            own = read_column(graph, each, ids) if isinstance(each, str) else np.asarray(each)
            if own.shape != ids.shape:
                raise GraphError("own numbers to group by are one for each task")
            parts.append((own, None))
        if not parts:
            raise GraphError(
                "group by a column, such as layer, op or step, within an operator or by block"
            )
        numbers = np.array([number for number, _ in parts])
        known = numbers.min(axis=0) >= 0
        group = np.full(len(ids), -1)
        group[known], rows = combinations(numbers[:, known])
        keys = [
            tuple(
                value if texts is None else texts[value]
                for value, (_, texts) in zip(row, parts, strict=True)
            )
            for row in rows
        ]
        return Groups(chosen, group, [key for (key,) in keys] if len(parts) == 1 else keys)

    def runs(self, size: float | Sequence[float], *, of: str) -> Groups:
        """Return consecutive tasks in groups that are full as soon as a column's sum reaches `size`.

        Several sizes are those of the first groups, the last one of all that follow. Runs
        start anew in each step and rank, and tasks with 0 or unknown join the run they are in.
        """
        sizes = np.atleast_1d(size).tolist()
        if not sizes or not all(one > 0 for one in sizes):
            raise GraphError(f"runs need sizes above 0, not {size}")
        amounts = np.maximum(read_column(self.graph, of, self.ids), 0).tolist()
        filled = dict[
            tuple[int, int], tuple[int, float]
        ]()  # by step and rank: its run, and the sum in it
        keys = []
        # A loop over tasks: where a run ends depends on where the one before it did.
        for step, rank, amount in zip(self.step.tolist(), self.rank.tolist(), amounts, strict=True):
            run, sum_ = filled.get((step, rank), (0, 0))
            keys.append((step, rank, run))
            sum_ += amount
            full = sum_ >= sizes[min(run, len(sizes) - 1)]
            filled[step, rank] = (run + 1, 0) if full else (run, sum_)
        return Groups(self, *combinations(np.array(keys, np.int64).reshape(-1, 3).T))

    def stretches(self, by: Selection, *, on_lane: bool = False) -> Groups:
        """Return the tasks in groups that no task of `by` parts, in program order.

        A group never spans two steps or ranks; with `on_lane` it keeps to one lane, and only
        tasks of `by` on that lane part it.
        """
        graph = self.graph
        lanes = graph.lane if on_lane else graph.rank
        place = np.empty(graph.size, np.int64)  # by lane or rank, and then in program order
        place[graph.ids] = np.arange(len(graph.ids)) + lanes[graph.ids] * np.int64(graph.size)
        before = np.searchsorted(np.sort(place[by.ids]), place[self.ids])
        return Groups(self, *combinations([self.step, lanes[self.ids], before]))

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
            raise NoMatchError(no_match(self.graph, self.words, self.conditions))
        return self

    def to_edit(self) -> Selection:
        """Return the selection, whose texts the graph notes as those of an edit; `NoMatchError` if empty."""
        self.graph.edited_by |= dict.fromkeys(self.conditions)
        return self.need_some()

    def need_all(self) -> Selection:
        """Return the selection, or raise `GraphError` if some of its tasks were removed meanwhile."""
        gone = (~self.graph.alive[self.ids]).sum()
        if gone:
            raise GraphError(
                f"{gone:,} of {len(self):,} tasks were removed since they were selected: {self.words}"
            )
        return self

    # changing

    def scale(self, factor: Any, *, durations: bool = True, gaps: bool = False) -> Selection:
        """Multiply `durations`, and with `gaps` the untraced time after them, rounding half up.

        The factor is one number, or one for each task.
        """
        graph = self.to_edit().graph
        ids = self.ids
        try:
            factors = np.asarray(factor, np.float64)
        except (TypeError, ValueError):
            raise GraphError(f"a factor must be a number, not {factor!r}") from None
        if not (np.isfinite(factors).all() and (factors >= 0).all()):
            raise GraphError(f"a factor must be 0 or more, not {factor}")
        factors = one_each(factors, len(ids), "factors")
        for name in ("duration_ns",) * durations + ("gap_ns",) * gaps:
            what = f"{name} times {factors.max():g}"
            graph.write(name, ids, nanoseconds(graph.columns[name][ids] * factors, what))
        return self

    def doubt(
        self, error: float | Sequence[float] | ndarray, *, waiting: bool = False
    ) -> Selection:
        """Say how far the times given to the tasks may be off: a part of them, at 90%, one or one for each.

        For models that know their own errors. It widens the range of the prediction where it is more than
        what such models were found to have (`graph_diff.MODEL_ERROR`). Transfers that may have been
        `waiting` may be longer by that, or shorter where it is below 0, and not the other way: it widens the
        range at one end.
        """
        self.graph.doubted.append((self.ids, np.broadcast_to(error, self.ids.shape), waiting))
        return self

    def set(self, **columns: Any) -> Selection:
        """Give the tasks new values, one for all or one for each.

        Times in ns (`duration_ns`, `gap_ns`, `latency_ns`, `release_ns`), `name`, `kind`,
        `phase`, `layer`, `op`, `step`, and what the trace says of the work: `dtype`, `bytes`,
        `shapes`, `collective`, `group`, `elements`.
        """
        graph = self.to_edit().graph
        ids = self.ids
        for name, value in columns.items():
            given = (
                nanoseconds(value, name) if name in TIMES else encode(graph, {name: value})[name]
            )
            given = one_each(given, len(ids), name)
            if name == "kind" and ((given > CPU) != (graph.kind[ids] > CPU)).any():
                raise GraphError("CPU tasks cannot become device work, nor the other way round")
            graph.write(name, ids, given)
            if name in COSTS:
                graph.modelled.append(ids)
                if graph.columns[COSTS[name]][ids].any():
                    graph.write(COSTS[name], ids, 0)  # a new time is no pause that was recorded
        return self

    def remove(self) -> None:
        """Take the tasks out; calls whose device work is all gone go with it."""
        self.to_edit()
        self.graph.remove(self.ids)

    def replace(self, name: str, *, duration_ns: float, **columns: Any) -> Selection:
        """Put one task in the place of all of these: same lane, kind and launch as the first."""
        return self._whole().fuse(name, duration_ns=duration_ns, **columns)

    def split(self, parts: int, *, launched: bool = False) -> Selection:
        """Divide each task into so many parts that follow each other; return all of them.

        The parts' durations add up exactly, and the gap stays behind the last. One call
        launches them all, unless with `launched` each further part brings its own and has
        the trace's start-up cost before it. What followed a task follows its last part.
        """
        self.to_edit()
        if not isinstance(parts, int | np.integer) or parts < 1:
            raise GraphError(f"a task is split into 1 or more parts, not {parts!r}")
        graph = self.graph
        ids = self.ids
        whole, extra = np.divmod(graph.duration_ns[ids], parts)
        graph.write("duration_ns", ids, whole + (extra > 0))
        words = f"parts of {self.words}"
        if parts == 1:
            return self.of(ids, words)
        between = np.where(graph.kind[ids] != CPU, graph.facts.startup_ns, 0) * launched
        gaps = np.tile(between, (parts - 1, 1))
        gaps[-1] = graph.gap_ns[ids]
        graph.write("gap_ns", ids, between)
        same = np.tile(ids, parts - 1)
        part = np.arange(1, parts)[:, None]
        more = graph.insert_after(
            self.of(same, self.words, ordered=True),
            "part",
            duration_ns=(whole + (extra > part)).reshape(-1),
            gap_ns=gaps.reshape(-1),
            launched=launched,
        )
        # One call launches them all, unless each brings its own.
        alike = ("name", "row") if launched else ("name", "row", "launch", "latency_ns")
        for name in (*alike, *{*graph.columns}.difference(COLUMNS)):
            graph.write(name, more.ids, graph.columns[name][same])
        follow_instead(graph, ids, more.ids[-len(ids) :])
        return self.of(np.append(ids, more.ids), words)

    def move(self, lane: str, *, follows: bool = True, held_for: bool = True) -> Selection:
        """Put the tasks on another lane (made if it is new), their launches and other causes kept.

        Edges stand for what the order on the old lane said: a moved task still `follows`
        what ran before it, and what came behind it is still `held_for` it, a call that
        waited for that lane too. Leave out either where there is no such dependency.
        """
        graph = self.to_edit().need_all().graph
        ids = self.ids
        on_device = graph.kind[ids] != CPU
        if on_device.any() != on_device.all():
            raise GraphError(
                "CPU tasks and device work cannot go to one lane; move them one after the other"
            )
        old = graph.lane[ids]
        lanes = lanes_for(graph, lane, old, on_device=bool(on_device.all()))
        going = ids[lanes != old]
        if not len(going):
            raise NotApplicableError(f"these tasks are on {lane!r} already")
        moving = among(graph, going)
        by_lane = graph.ids[np.argsort(graph.lane[graph.ids], kind="stable")]
        earlier = by_lane[:-1]
        later = by_lane[1:]
        parted = (graph.lane[earlier] == graph.lane[later]) & (moving[earlier] != moving[later])
        earlier = earlier[parted]
        later = later[parted]
        leaves = moving[earlier]
        keep_waits(graph, going, drop=False)
        if follows:
            graph.link(earlier[~leaves], later[~leaves])
        if held_for:
            graph.link(earlier[leaves], later[leaves])
            syncs = graph.syncs
            last, _ = around_points(graph, syncs["lane"], syncs["point"])
            moved = (last >= 0) & moving[last] & graph.alive[syncs["task"]]
            graph.link(last[moved], syncs["task"][moved])  # calls that waited for the lane
        graph.write("lane", ids, lanes)
        return self.of(ids, self.words)

    def stop_waiting(self) -> Selection:
        """Let these calls no longer wait for device work; they keep what they cost by themselves."""
        calls = self.to_edit()
        graph = self.graph
        task = graph.syncs["task"]
        rows = row_numbers(graph, calls.ids)
        # A blocking call is a call and its return; the return, a task of the same row, waits.
        dropped = np.isin(task, calls.ids) | np.isin(row_numbers(graph, task), rows[rows >= 0])
        dropped &= graph.alive[task]
        if not dropped.any():
            raise NoMatchError(f"none of these calls waits for device work: {self.words}")
        graph.syncs.keep(~dropped)
        return calls

    def wait_for(
        self, lane: str | Sequence[str] | None = None, *, on: str | Sequence[str] | None = None
    ) -> Selection:
        """Let these calls return when what was launched on a lane, or on any, before them has ended.

        With `on` the calls return at once, and that lane's later work waits instead, as behind
        `cudaStreamWaitEvent`. Lanes are one for all calls or one for each.
        """
        graph = self._calls().graph
        own = graph.lane[self.ids]
        source = (
            ALL_LANES if lane is None else lanes_for(graph, lane, own, on_device=True, new=False)
        )
        if on is None:
            graph.syncs.add(task=self.ids, lane=source, point=self.ids)
        else:
            target = lanes_for(graph, on, own, on_device=True, new=False)
            graph.waits.add(record=self.ids, source=source, wait=self.ids, target=target)
        return self

    def repeat(self, times: int = 1, *, before: Selection | None = None) -> Selection:
        """Do this work again, right behind its last task or before another; see `Groups.repeat`."""
        return self._whole().repeat(times, before=before)

    def _whole(self) -> Groups:
        return Groups(self, np.zeros(len(self), np.int64), ["all"])

    def _calls(self) -> Selection:
        calls = self.to_edit().need_all()
        if (calls.graph.kind[calls.ids] != CPU).any():
            raise GraphError(
                "only CPU tasks wait for the device; device work follows what it is linked to"
            )
        return calls
