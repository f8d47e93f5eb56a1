"""Times of changed operators, measured in place: `daydream calibrate --tool` ran the new code in the script.

A call of an operator (name, shapes, element type) was timed as it is and with the change, on the tensors
of the run, forward and backward. What became cheaper keeps its ratio, so that what measurement and
training step do not share cancels; what became dearer pays the difference, as added code does not
take longer because the operator beside it was recorded slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.costs.device.table import KernelTable
from daydream.costs.operators import bare_name
from daydream.costs.workload.calls import forward_rows
from daydream.errors import NotApplicableError
from daydream.graph.calls import enclosing
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.text import counted

FORWARD, BACKWARD = "forward", "backward"
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
    work = _work(graph)
    call, backward = _calls(graph, work, entry)
    if tasks is not None:
        asked, _ = _calls(graph, graph.tasks(tasks.ids), entry)
        call = np.where(np.isin(call, asked[asked >= 0]), call, -1)
    times = np.array([[*table.in_place[each]] for each in table.in_place]).reshape(-1, 2, 2)
    found = np.flatnonzero(call >= 0)
    pair = times[entry[call[found]], backward[found].astype(np.int64)]
    found, pair = found[np.isfinite(pair).all(axis=1)], pair[np.isfinite(pair).all(axis=1)]
    if not len(found):
        return InPlace(nothing, np.zeros(0), np.zeros(0), 0)
    mine = work.of(work.ids[found], "work of calls measured in place", ordered=True)
    old = mine.duration_ns.astype(np.float64)
    repeat = graph.repeat[mine.ids].astype(np.int64)
    keys = np.stack([call[found], backward[found].astype(np.int64), repeat])
    which = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    total = np.bincount(which, old)[which]
    before, after = pair[:, 0], pair[:, 1]
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
        graph.note(f"Not measured in place, so left as recorded: {_share(rest)}.")
        return
    rest.scale(factor)
    graph.note(f"Taken as {factor:g} times as long, which nothing measured: {_share(rest)}.")


def _share(tasks: Selection) -> str:
    return counted(len(tasks), "task")


def _work(graph: Graph) -> Selection:
    device = graph.select(on="gpu")
    return device if len(device) else graph.select(kind="cpu")


def _entries(graph: Graph, table: KernelTable) -> np.ndarray:
    """Return for each row of the trace its place in the table, -1 for none; the last entry is no row."""
    trace = graph.recorded
    place = {key: number for number, key in enumerate(table.in_place)}
    names = {key[0] for key in place}
    found = np.full(len(trace) + 1, -1, np.int64)
    wanted = np.array([*(bare_name(text) in names for text in trace.text("name")), False])
    rows = np.flatnonzero(wanted[trace["name"]] & trace.is_kind("operator"))
    known: dict[tuple[int, int, int], int] = {}
    columns = (np.asarray(trace[name])[rows].tolist() for name in ("name", "shapes", "dtype"))
    texts = [[*trace.text(name), ""] for name in ("name", "shapes", "dtype")]
    for row, codes in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
        if codes not in known:
            op, shapes, dtype = (text[code] for text, code in zip(texts, codes, strict=True))
            known[codes] = place.get(table.key_in_place(op, shapes, dtype), -1)
        found[row] = known[codes]
    return found


def _calls(graph: Graph, tasks: Selection, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each task's measured forward call, -1 for none; and whether it is backward work."""
    trace = graph.recorded
    rows = graph.row[tasks.ids].astype(np.int64)
    own, which = np.unique(rows, return_inverse=True)
    which = which.reshape(-1)
    around = enclosing(trace["parent"], entry >= 0, own, inner=False)
    maker = forward_rows(trace, np.maximum(own, 0))
    maker = np.where((own >= 0) & (around < 0), maker, -1)
    from_node = enclosing(trace["parent"], entry >= 0, maker, inner=False)
    return np.where(around >= 0, around, from_node)[which], (from_node >= 0)[which]
