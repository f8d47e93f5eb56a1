"""Calls: which call of an operator a task belongs to, by the rows that enclose its own.

A CPU task lies within the row it is a piece of, device work within the call that
launched it. Operators nest: `aten::layer_norm` calls `aten::native_layer_norm`,
which launches the kernel. So a task has an innermost call and an outermost one, and
any regular expression on operator names picks one between. What edits inserted
belongs to no call.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from daydream.arrays import unique
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.plan import stable_order
from daydream.graph.query.numbering import once
from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

MOST_NAMES = 4  # whose calls are kept


def call_rows(graph: Graph, ids: np.ndarray, name: str | None = None, *, inner: bool = False) -> np.ndarray:
    """Return the trace's row of the call of an operator that each task belongs to.

    Args:
        graph: the graph of the trace.
        ids: tasks, shape (tasks,), int64 (`selection.ids`).
        name: regular expression that the operator's name must match; ranges that the program named
            (`record_function`, NVTX) count only when they are asked for by name.
        inner: the innermost such call; else the outermost.

    Returns:
        shape (tasks,), int64; -1 for none.

    Raises:
        GraphError: the name is not a regular expression.
    """
    rows = graph.columns["row"][ids].astype(np.int64)
    trace = graph.trace
    if trace is None or not len(trace):
        return np.full(len(ids), -1)
    if name is None:
        return _operator_of_rows(graph, inner=inner)[rows].astype(np.int64)
    return _within_named(graph, name, inner=inner)[rows].astype(np.int64)


def _within_named(graph: Graph, name: str, *, inner: bool) -> np.ndarray:
    """Return the innermost (or outermost) call of a name around each row; the last entry is no row.

    The last few are kept with the trace: what one optimization asks for, the next one does, too.
    """
    assert graph.trace is not None  # noqa: S101 - only asked for rows of a trace
    trace, kept = graph.trace, graph._of_trace.setdefault("within", {})
    if (name, inner) in kept:
        kept[name, inner] = kept.pop((name, inner))  # the latest stands last
        return np.asarray(kept[name, inner])
    try:
        match = re.compile(name).search
    except re.error as error:
        raise GraphError(f"{name!r} is not a regular expression ({error})") from None
    fits = np.array([bool(match(text)) for text in trace.text("name")] + [False])
    wanted = trace.is_kind("operator", "annotation") & fits[trace["name"]]
    found = np.full(len(trace) + 1, -1, np.int32)
    found[:-1] = np.where(wanted, np.arange(len(trace), dtype=np.int32), -1)
    parent = _with_hand_offs(graph)
    for rows in _by_depth(graph):
        around = found[parent[rows]]
        if inner:
            found[rows] = np.where(found[rows] >= 0, found[rows], around)
        else:
            found[rows] = np.where(around >= 0, around, found[rows])
    while len(kept) >= MOST_NAMES:
        del kept[next(iter(kept))]
    kept[name, inner] = found
    return found


def _by_depth(graph: Graph) -> list[np.ndarray]:
    """Return the rows that lie in others, by how deep: each one's parent comes in a list before its own."""
    if "by_depth" not in graph._of_trace:
        parent = _with_hand_offs(graph)
        depth = np.zeros(len(parent), np.int16)
        inside = np.flatnonzero(parent >= 0)
        up = parent[inside]
        while len(inside):
            depth[inside] += 1
            up = parent[up]
            inside, up = inside[up >= 0], up[up >= 0]
        order = stable_order(depth, int(depth.max(initial=0)) + 1)
        bounds = np.cumsum(np.bincount(depth)).tolist()
        graph._of_trace["by_depth"] = [order[begin:end] for begin, end in pairwise(bounds)]
    found: list[np.ndarray] = graph._of_trace["by_depth"]
    return found


def _operator_of_rows(graph: Graph, *, inner: bool) -> np.ndarray:
    """Return the innermost (or outermost) operator around each row of the trace; the last entry is no row."""
    assert graph.trace is not None  # noqa: S101 - only asked for rows of a trace
    kept = "inner operator" if inner else "outer operator"
    if kept not in graph._of_trace:
        trace = graph.trace
        parent = np.asarray(trace["parent"], np.int64)
        rows = np.append(np.arange(len(trace)), -1)
        found = _enclosing(parent, trace.is_kind("operator"), rows, inner=inner)
        graph._of_trace[kept] = found.astype(np.int32)
    return np.asarray(graph._of_trace[kept])


def _with_hand_offs(graph: Graph) -> np.ndarray:
    """Return the row around each row; around what the autograd thread runs is the range that waits for it.

    A thread that calls `backward()` stands still until the autograd thread is done, so a range
    that the program put around the call holds that work, too.
    """
    assert graph.trace is not None  # noqa: S101 - only asked for rows of a trace
    if "hand_offs" not in graph._of_trace:
        trace = graph.trace
        parent = np.array(trace["parent"], np.int64)
        backward = [*trace.text("phase"), "backward"].index("backward")
        host = trace.is_kind("operator", "annotation", "runtime")
        ranges = np.flatnonzero(trace.is_kind("annotation"))
        ranks, tids, starts = (np.asarray(trace[name], np.int64) for name in ("rank", "tid", "start_ns"))
        ends = starts + np.asarray(trace["duration_ns"], np.int64)
        phase = np.asarray(trace["phase"])
        for rank in unique(ranks[ranges]).tolist():
            here = host & (ranks == rank)
            own = ranges[ranks[ranges] == rank]
            caller = np.flatnonzero(here & (phase >= 0) & (phase != backward))
            values, counts = np.unique(tids[caller if len(caller) else own], return_counts=True)
            main = int(values[counts.argmax()])
            waiting = own[tids[own] == main]
            top = np.flatnonzero(here & (phase == backward) & (parent < 0) & (tids != main))
            parent[top] = _innermost(starts[waiting], ends[waiting], waiting, starts[top])
        graph._of_trace["hand_offs"] = parent
    return np.asarray(graph._of_trace["hand_offs"])


def _innermost(starts: np.ndarray, ends: np.ndarray, rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the row of the innermost of nested ranges (in order of start) around each time, -1 for none."""
    found = np.full(len(times), -1)
    order = np.argsort(times, kind="stable")
    open_: list[int] = []
    following = 0
    for place in order.tolist():
        while following < len(rows) and starts[following] <= times[place]:
            open_.append(following)
            following += 1
        while open_ and ends[open_[-1]] <= times[place]:
            open_.pop()
        found[place] = rows[open_[-1]] if open_ else -1
    return found


def _enclosing(parent: np.ndarray, wanted: np.ndarray, rows: np.ndarray, *, inner: bool) -> np.ndarray:
    """Return the outermost (or innermost) wanted row among each row and those around it, -1 for none."""
    found = np.full(len(rows), -1)
    active = np.flatnonzero(rows >= 0)
    up = rows[active]
    while len(active):
        hit = wanted[up]
        found[active[hit]] = up[hit]
        up = parent[up]
        going = (up >= 0) & ~hit if inner else up >= 0
        active, up = active[going], up[going]
    return found


def instances(graph: Graph, ids: np.ndarray, name: str | None = None, *, inner: bool = False) -> np.ndarray:
    """Return a number for the call each task belongs to, -1 for none; a repeated call has its own."""
    rows = call_rows(graph, ids, name, inner=inner)
    repeat = graph.columns["repeat"][ids].astype(np.int64)
    return np.where(rows >= 0, rows + repeat * (0 if graph.trace is None else len(graph.trace)), -1)


def operators(tasks: Selection) -> Selection:
    """Return the CPU tasks of the operator calls that did this work and no other.

    For device work: every call of an operator whose device work, that of its inner calls
    included, is all selected; with it go its inner calls, its launches and its
    synchronizations. An operator that also launched something else stays whole. For CPU
    tasks: the call that each is a piece of, inner calls included, under the same condition
    on its device work. Raises `NotApplicableError` where the trace records no operators.
    """
    graph = tasks.graph
    trace = graph.trace
    if trace is None or not trace.is_kind("operator").any():
        raise NotApplicableError("this trace records no operators, so whose CPU time goes is not known")
    columns = graph.columns
    parent = np.asarray(trace["parent"], np.int64)
    is_operator = trace.is_kind("operator")
    alive = np.flatnonzero(graph.alive)
    rows, repeat = columns["row"][alive].astype(np.int64), columns["repeat"][alive].astype(np.int64)
    known = rows >= 0
    alive, rows, repeat = alive[known], rows[known], repeat[known]
    device = columns["kind"][alive] != CPU
    chosen = np.isin(alive, tasks.ids)
    picked = np.zeros(len(alive), bool)
    for number in unique(repeat[chosen]).tolist():
        mine = repeat == number
        others = _around(parent, rows[mine & device & ~chosen], len(trace))
        own = _around(parent, rows[mine & device & chosen], len(trace))
        call = _enclosing(parent, is_operator, rows[mine & ~device & chosen], inner=True)
        own[call[call >= 0]] = True
        whole = is_operator & own & ~others
        cpu = np.flatnonzero(mine & ~device)
        picked[cpu] = _enclosing(parent, whole, rows[cpu], inner=True) >= 0  # the nearest is enough
    return tasks.of(alive[picked], f"operators of {tasks.words}")


def pieces_of(graph: Graph, calls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the other pieces of some runtime calls, and the place of each one's call among them.

    A blocking call is cut into the call and its return, a long one into the time before it
    submits its work and the rest; the pieces are CPU tasks of one row.
    """
    columns, trace = graph.columns, graph.trace
    if trace is None or not len(trace):
        return calls[:0], calls[:0]
    cut = _cut_rows(graph)
    if not cut[columns["row"][calls]].any():
        return calls[:0], calls[:0]
    key = columns["row"].astype(np.int64) * 2**16 + columns["repeat"]
    known = np.flatnonzero(cut[columns["row"][calls]])
    by_key = known[np.argsort(key[calls[known]])]
    keys = key[calls[by_key]]
    ids = np.flatnonzero(graph.alive & (columns["kind"] == CPU) & cut[columns["row"]])
    ids = ids[np.isin(key[ids], keys) & ~np.isin(ids, calls)]
    return ids, by_key[np.searchsorted(keys, key[ids])]


def _cut_rows(graph: Graph) -> np.ndarray:
    """Return a mask of the runtime calls that are cut into pieces, by row; the last entry is no row."""
    assert graph.trace is not None  # noqa: S101 - rows are rows of a trace
    if "cut_rows" not in graph._of_trace:
        columns = graph.columns
        pieces = columns["row"][(columns["kind"] == CPU) & (columns["row"] >= 0) & (columns["repeat"] == 0)]
        several = np.bincount(pieces, minlength=len(graph.trace)) > 1
        graph._of_trace["cut_rows"] = np.append(several & graph.trace.is_kind("runtime"), [False])
    return np.asarray(graph._of_trace["cut_rows"])


def _around(parent: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Return a mask of rows and of all that enclose them."""
    around = np.zeros(size, bool)
    up = once(rows, size)
    while len(up):
        around[up] = True
        up = parent[up]
        up = once(up[(up >= 0) & ~around[up]], size)
    return around
