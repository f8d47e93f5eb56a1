"""Times that a user measured, where a change asks for them: they come before every model.

They are in a CSV or parquet file, either `kernel,duration_ns` (a kernel's exact name), or
`op,shapes,dtype,duration_ns` (an operator call as a trace names it: its kernels' time together). Where it holds an
operator at the old and at the new element type, a task's time goes with their ratio, so that what the measurement
and the training step do not share (caches, clocks) cancels. `daydream calibrate` writes such a file, and in its
metadata the device that it measured on.

With `before_ns` and `phase` a row is a call that was changed in place: `daydream calibrate --tool` ran the new code
in the script, on the tensors of the run, forward and backward. What became cheaper keeps its ratio; what became
dearer pays the difference, as added code does not take longer because the operator beside it was recorded slowly.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from daydream.arrays import distinct, distinct_rows
from daydream.costs.devices import device_properties, find_device
from daydream.costs.kernels import TF32_KERNEL, Work
from daydream.costs.operators import bare_name, names_fit
from daydream.costs.workload.calls import calls_of, forward_rows, of_rows
from daydream.costs.workload.formulas import Shape, all_tensors, parse_shapes
from daydream.errors import FileError, GraphError, NotApplicableError
from daydream.files.input_files import check_regular
from daydream.graph.calls import enclosing
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.text import counted

NewShapes = Mapping[
    int, tuple[str, Shape | None]
]  # by distinct work: its new shapes, and output shape


class TimeRequest(NamedTuple):
    """What changes for some tasks, an entry a task: what a table is asked.

    `affected` tasks change at all; `resized` ones do more or less work, `shapes` says in which
    shapes. `other_device`: the table's times are those of the new device, taken as they are.
    """

    dtype: np.ndarray
    affected: np.ndarray
    resized: np.ndarray
    shapes: NewShapes
    other_device: bool = False


def give_table(graph: Graph, table: KernelTable | str | os.PathLike[str] | None) -> None:
    """Let predictions on a graph and its copies use a table, or the file of one.

    Raises `TraceError` if the file is not one, `GraphError` if its times are of a CPU and the work on a GPU,
    or the other way round.
    """
    if table is None:
        return
    table = table if isinstance(table, KernelTable) else KernelTable.load(table)
    here = device_name(graph)
    if table.device is not None and (table.device == CPU) != (here == CPU):
        raise GraphError(
            f"the table holds times of {_said(table.device)}, and this trace's work ran on {_said(here)}.\n"
            "       Run `daydream calibrate` with this trace on a machine like that one."
        )
    graph.times = table


def _said(device: str | None) -> str:
    return "a CPU" if device == CPU else f"a {device or 'GPU'}"


def device_name(graph: Graph) -> str:
    """Return the name of the GPU that did the graph's work, empty if it has none, or `cpu`."""
    if not len(graph.select(on="gpu")):
        return CPU
    return str(device_properties(graph).get("name") or "")


def need_times_of(table: KernelTable, device: str) -> None:
    """Raise `NotApplicableError` if a table's times are those of another device."""
    if table.device is None:
        return
    try:
        same = find_device(table.device) == find_device(device)
    except NotApplicableError:
        same = False
    if not same:
        raise NotApplicableError(
            f"the table holds times of a {table.device}, and the question is about a {device}.\n"
            "       Run `daydream calibrate` there, or leave --table out."
        )


def from_table(
    graph: Graph, selection: Selection, table: KernelTable, task_work: Work, asked: TimeRequest
) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of each task by the table, and a mask of those that it knows."""
    old = selection.duration_ns.astype(np.float64)
    new = old.copy()
    known = np.zeros(len(old), bool)
    names = selection.name.tolist()
    for index in np.flatnonzero(asked.affected).tolist():
        time = table.kernel(names[index])
        if time is not None:
            new[index] = time
            known[index] = True
    trace = graph.recorded
    if not len(trace):
        return new, known
    calls = calls_of(trace)
    which = np.where(task_work.call >= 0, calls.which[task_work.call], -1)
    with_shapes = np.isin(which, list(asked.shapes))
    ask = np.flatnonzero(asked.affected & ~known & (which >= 0) & (with_shapes | ~asked.resized))
    comparable = table.device in (None, device_name(graph))  # with what was recorded
    recorded = recorded_ns(graph)
    columns = (values[ask].tolist() for values in (which, types_of(selection), asked.dtype))
    keys = list(zip(*columns, strict=True))
    time_of = Counter[tuple[int, str | None, str | None]]()
    for key, duration in zip(keys, old[ask].tolist(), strict=True):
        time_of[key] += duration
    answers = {}
    for key, _ in time_of.most_common():  # what measures may not get to the end
        answers[key] = _answer(table, calls.keys[key[0]], key, asked)
    for index, key in zip(ask.tolist(), keys, strict=True):
        time, before = answers[key]
        if time is not None and (before is not None or comparable or asked.other_device):
            old_ns = before or recorded[task_work.call[index]]
            new[index] = old[index] * time / max(old_ns, 1.0)
            known[index] = True
    return new, known


def _answer(
    table: KernelTable,
    call: tuple[str, str, Shape | None],
    key: tuple[int, str | None, str | None],
    asked: TimeRequest,
) -> tuple[float | None, float | None]:
    """Return a call's time after the change and, where it is the same device's, before it."""
    op, shapes, hint = call
    which, dtype, new_dtype = key
    new_shapes, new_hint = asked.shapes.get(which, (shapes, hint))
    if asked.other_device:
        return table.call(op, new_shapes, new_dtype, new_hint), None
    if (new_shapes, new_dtype) == (shapes, dtype):
        return None, None
    before = table.call(op, shapes, dtype, hint)
    return table.call(op, new_shapes, new_dtype, new_hint), before


def types_of(selection: Selection) -> np.ndarray:
    """Return the element type of each task as a table names it: float32 kernels in TF32 are `tf32`."""
    types = selection.dtype
    return np.where((types == "float32") & names_fit(selection, TF32_KERNEL.search), "tf32", types)


def recorded_ns(graph: Graph) -> np.ndarray:
    """Return by row of the trace what an operator call took: its device work's time, on a CPU its own."""
    calls = calls_of(graph.recorded)
    duration = graph.recorded["duration_ns"].astype(np.float64)
    device = calls.owner >= 0
    total = np.bincount(calls.owner[device], duration[device], len(duration))
    return np.where(calls.launches_work, total, duration)


COLUMNS = ("kernel", "op", "shapes", "dtype", "duration_ns", "before_ns", "phase")
PHASES = ("forward", "backward")
UNKNOWN_PAIR = (float("nan"), float("nan"))
NOTHING = (None, "")  # in a field of a row
CPU = "cpu"  # the device of a table that was measured on a CPU
InPlaceKey: TypeAlias = tuple[str, tuple[Shape, ...], str]
NUMBERS = {
    "before_ns": "int64",
    "duration_ns": "int64",
    "repeats": "int32",
}  # the other columns are texts
SCHEMA = 1
METADATA = b"daydream"  # the key that holds one JSON document, as in a trace


class KernelTable:
    """Measured times: `kernel(name)` and `call(op, shapes, dtype)` return ns, or None.

    `device` is what they were measured on: a GPU's name, `cpu`, or None where the file does not
    say. `answers` counts the times that were found. `in_place` holds calls that a change was made to:
    key -> ((before, after) forward, (before, after) backward), ns, NaN where it was not measured.
    """

    def __init__(self, rows: list[dict[str, Any]], device: str | None = None) -> None:
        self.device = device
        self.answers = 0
        self._kernels: dict[str, float] = {}
        self._calls: dict[tuple[str, str, str], float] = {}
        self.in_place: dict[InPlaceKey, list[tuple[float, float]]] = {}
        for row in rows:
            time = float(row["duration_ns"])
            op, shapes, dtype = (str(row.get(name) or "") for name in ("op", "shapes", "dtype"))
            if row.get("before_ns") not in NOTHING:
                call = self.key_in_place(op, shapes, dtype)
                pairs = self.in_place.setdefault(call, [UNKNOWN_PAIR, UNKNOWN_PAIR])
                pairs[PHASES.index(str(row["phase"]))] = (float(row["before_ns"]), time)
            elif row.get("kernel"):
                self._kernels[str(row["kernel"])] = time
            else:
                self._calls[bare_name(op), _plain(shapes), dtype] = time

    def __len__(self) -> int:
        return len(self._kernels) + len(self._calls) + len(self.in_place)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelTable:
        """Read a table. Raises `FileError` if the file is missing or has other columns."""
        try:
            rows, device = _read(path)
        except FileNotFoundError:
            raise FileError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{path} cannot be read as a table of times ({error})") from None
        for number, row in enumerate(rows, 2):
            named = row.get("kernel") or (row.get("op") and row.get("shapes"))
            before = row.get("before_ns")
            changed = before in NOTHING or (_is_time(before) and row.get("phase") in PHASES)
            if not named or not _is_time(row.get("duration_ns")) or not changed:
                raise FileError(
                    f"{path}, row {number}: a time needs `kernel,duration_ns` or "
                    "`op,shapes,dtype,duration_ns`, with ns of 0 or more; with `before_ns` also "
                    "`phase`, forward or backward"
                )
        if not rows:
            raise FileError(
                f"{path} holds no times; its columns should be among {', '.join(COLUMNS)}"
            )
        return cls(rows, device)

    def kernel(self, name: str | None) -> float | None:
        """Return the measured ns of a kernel."""
        return self._counted(self._kernels.get(name or ""))

    def call(
        self,
        op: str,
        shapes: str,
        dtype: str | None,
        hint: Shape | None = None,  # noqa: ARG002
    ) -> float | None:
        """Return the measured ns of an operator call's kernels together; `hint` is for those who measure."""
        return self._counted(self._calls.get((bare_name(op), _plain(shapes), dtype or "")))

    @staticmethod
    def key_in_place(op: str, shapes: str, dtype: str) -> InPlaceKey:
        """Return the key of a call that a change is made to: name, shapes of its tensors, element type."""
        return bare_name(op), tuple(all_tensors(parse_shapes(shapes) or [])), dtype

    def _counted(self, time: float | None) -> float | None:
        self.answers += time is not None
        return time


def _plain(shapes: str) -> str:
    try:
        return json.dumps(json.loads(shapes), separators=(",", ":"))
    except ValueError:
        return shapes


def _is_time(value: Any) -> bool:
    try:
        return 0 <= float(value) < float("inf")
    except (TypeError, ValueError):
        return False


def _read(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], str | None]:
    """Return the rows of a table, and the device that it was measured on."""
    check_regular(path)
    with open(path, "rb") as file:
        if Path(path).suffix == ".parquet" or file.read(4) == b"PAR1":
            return _read_parquet(path)
    import csv

    with open(path, newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text)), None


def _read_parquet(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], str | None]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            said = (file.schema_arrow.metadata or {}).get(METADATA, b"{}")
            there = [name for name in COLUMNS if name in names]
            rows = (
                file.read(there).to_pylist()
                if "duration_ns" in there and "kind" not in names
                else None
            )
    except ArrowException as error:
        raise FileError(f"{path} is not a readable parquet file ({error})") from None
    if rows is None:  # a trace, most likely
        raise FileError(
            f"{path} is not a table of times: its columns are {', '.join(names[:4])}, ...\n"
            f"       They should be among {', '.join(COLUMNS)}; `daydream calibrate` writes such a file."
        )
    try:
        device = json.loads(said).get("device")
    except (ValueError, AttributeError):  # somebody else's
        device = None
    return rows, device if isinstance(device, str) else None


NOT_MEASURED = (
    "what the new code takes is not known from this trace.\n"
    "       Time it in place: daydream calibrate --tool FILE.py SCRIPT, and give its file as --table."
)


@dataclass(frozen=True)
class InPlace:
    """Predicted durations of the work of changed calls, an entry a task of `tasks`.

    Attributes:
        tasks: all work of the calls, forward and backward, whose times were measured.
        duration_ns: their new durations, float64.
        before_ns: what they took when this was worked out, float64.
        calls: how many forward calls these are.
    """

    tasks: Selection
    duration_ns: np.ndarray
    before_ns: np.ndarray
    calls: int

    def words(self) -> str:
        """Return a sentence on what was taken from measurements."""
        before = float(self.before_ns.sum())
        return (
            f"Measured in place: {counted(self.calls, 'call')}, whose {before / 1e6:,.3f} ms become "
            f"{float(self.duration_ns.sum()) / 1e6:,.3f} ms."
        )


def in_place(graph: Graph, tasks: Selection | None = None) -> InPlace:
    """Return what the work of some operator calls takes with a change in place, where that was measured.

    Args:
        graph: the graph of the trace; its table of times is one of `daydream calibrate --tool`.
        tasks: work of the calls that change, of either pass; by default that of all calls in the table.

    Returns:
        `InPlace`; without tasks where the table says nothing of these calls, or there is none.
    """
    nothing = graph.tasks(np.empty(0, np.int64))
    table = graph.times
    if table is None or not len(graph.recorded) or not table.in_place:
        return InPlace(nothing, np.zeros(0), np.zeros(0), 0)
    entry = _entries(graph, table)
    device = graph.select(on="gpu")
    work = device if len(device) else graph.select(kind="cpu")
    call, backward = _calls(graph, work, entry)
    if tasks is not None:
        asked, _ = _calls(graph, graph.tasks(tasks.ids), entry)
        call = np.where(np.isin(call, asked[asked >= 0]), call, -1)
    times = np.array([*table.in_place.values()]).reshape(-1, 2, 2)
    before, after = times[entry[call], backward.astype(np.int64)].T
    found = np.flatnonzero((call >= 0) & np.isfinite(before) & np.isfinite(after))
    if not len(found):
        return InPlace(nothing, np.zeros(0), np.zeros(0), 0)
    before = before[found]
    after = after[found]
    mine = work.of(work.ids[found], "work of calls measured in place", ordered=True)
    old = mine.duration_ns.astype(np.float64)
    _, which = distinct_rows([call[found], backward[found], graph.repeat[mine.ids]])
    total = np.bincount(which, old)[which]
    new_total = np.where(
        after <= before, total * after / np.maximum(before, 1.0), total + after - before
    )
    share = np.where(total > 0, old / np.maximum(total, 1.0), 1 / np.bincount(which)[which])
    table.answers += 1
    return InPlace(mine, new_total * share, old, len(np.unique(call[found])))


def take_measured(graph: Graph, tasks: Selection) -> Selection:
    """Give work of operator calls its times measured in place; return what has some."""
    measured = in_place(graph, tasks)
    if len(measured.tasks):
        measured.tasks.set(duration_ns=measured.duration_ns)
        graph.note(measured.words())
    return measured.tasks


def replace_cost(graph: Graph, tasks: Selection, factor: float | None = None) -> None:
    """Give calls of operators the time of what replaces them: as measured in place, else by a factor.

    With a table of `daydream calibrate --tool` the calls that these tasks belong to take what was
    measured, forward and backward; tasks of other calls are scaled by `factor`. Notes say which.

    Args:
        graph: the graph of the trace.
        tasks: work of the operators that are replaced.
        factor: what the replacement takes of their time; None if it is not known.

    Raises:
        NotApplicableError: a time was not measured, and there is no factor.
    """
    measured = take_measured(graph, tasks)
    rest = tasks - measured
    if len(rest) and factor is None and not len(measured):
        raise NotApplicableError(NOT_MEASURED)
    if not len(rest):
        return
    if factor is None:
        graph.note(f"Not measured in place, so left as recorded: {counted(len(rest), 'task')}.")
        return
    rest.scale(factor)
    graph.note(
        f"Taken as {factor:g} times as long, which nothing measured: {counted(len(rest), 'task')}."
    )


def _entries(graph: Graph, table: KernelTable) -> np.ndarray:
    """Return for each row of the trace its place in the table, -1 for none; the last entry is no row."""
    trace = graph.recorded
    place = {key: number for number, key in enumerate(table.in_place)}
    names = {key[0] for key in place}
    wanted = of_rows(trace, "name", lambda name: bare_name(name) in names)
    rows = np.flatnonzero(wanted & trace.is_kind("operator"))
    columns = ("name", "shapes", "dtype")
    first, which = distinct_rows([trace[name][rows] for name in columns])
    texts = zip(*(trace.values(name, rows[first].tolist()) for name in columns), strict=True)
    keys = [table.key_in_place(*(text or "" for text in each)) for each in texts]
    found = np.full(len(trace) + 1, -1, np.int64)
    found[rows] = np.array([place.get(key, -1) for key in keys], np.int64)[which]
    return found


def _calls(graph: Graph, tasks: Selection, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each task's measured forward call, -1 for none; and whether it is backward work."""
    trace = graph.recorded
    own, which = distinct(graph.row[tasks.ids])
    around = enclosing(trace["parent"], entry >= 0, own, inner=False)
    maker = forward_rows(trace, np.maximum(own, 0))
    maker = np.where((own >= 0) & (around < 0), maker, -1)
    from_node = enclosing(trace["parent"], entry >= 0, maker, inner=False)
    return np.where(around >= 0, around, from_node)[which], (from_node >= 0)[which]
