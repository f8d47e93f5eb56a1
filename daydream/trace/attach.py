"""Joining a map of debug handles to the rows of a trace, and what a row takes over from its handles.

| `by` | a row has the identifier ... |
|---|---|
| `name` | ... of its name; with several, `NAME:1` and `NAME:2`, of its place among the calls of that name |
| `order` | ... of its place among the device work (on a CPU: of the rows given) of its step |
| `graph node id` | ... of its node of a CUDA graph, `NODE` or `GRAPH:NODE` |

Calls are counted in each step for itself. Where they are no whole number of rounds through the
identifiers, which is whose cannot be told, and the rows stay without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import HandleError
from daydream.lazy import regex
from daydream.trace.handle_map import DebugHandleMap
from daydream.trace.schema import DEVICE_KINDS, HOST_KINDS, UNKNOWN

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

WAYS = ("name", "order", "graph node id")
NUMBERED = regex(r"(.+):(\d+)", re.ASCII | re.DOTALL)


def join(handles: DebugHandleMap, trace: Trace, by: str, rows: Any = None) -> np.ndarray:
    """Return the place of each row's identifier in the map, -1 for none: int32, shape (rows of the trace,).

    Args:
        handles: the map.
        trace: the rows.
        by: one of the ways at the head of this module.
        rows: numbers of the rows that may have a handle, in the order of their calls; by default all device
            work in the order of its start, or all operators and annotations where there is none.

    Raises:
        HandleError: the way is unknown, or no row has any of the identifiers.

    """
    if by not in WAYS:
        raise HandleError(f"unknown way to join handles, {by!r:.60}; choose {', '.join(WAYS)}")
    found = candidates(trace) if rows is None else _rows(trace, rows)
    codes = np.full(len(trace), UNKNOWN, np.int32)
    if by == "graph node id":
        _by_node(handles, trace, found, codes)
    elif by == "order":
        for group in _groups(trace, found):
            _in_rounds(codes, group, np.arange(len(handles)))
    else:
        _by_name(handles, trace, found, codes)
    if not (codes >= 0).any():
        raise HandleError(_nothing_joined(handles, trace, found, by))
    return codes


def candidates(trace: Trace) -> np.ndarray:
    """Return the rows that can have handles: device work, or on a CPU operators and annotations; int64."""
    device = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    return device if len(device) else np.flatnonzero(trace.is_kind("operator", "annotation"))


def take_over(trace: Trace, handles: DebugHandleMap, codes: np.ndarray) -> None:
    """Set `handle` of the rows, and operator, layer and phase as the handle with the largest share says.

    What lies within a row that has a handle, on its thread or launched from it, has that handle too. What a
    handle does not say stays as it was.
    """
    codes = _of_ancestors(trace, np.asarray(codes, np.int32))
    mains = []
    for identifier in handles:
        owners = handles[identifier]
        mains.append(owners[int(np.argmax(handles.shares(identifier)))])
    trace.columns["handle"] = codes
    rows = np.flatnonzero(codes >= 0)
    for column, name in (("op", "operator"), ("layer", "layer"), ("phase", "phase")):
        texts = list(trace.text(column))
        code_of = {text: code for code, text in enumerate(texts)}
        new = np.array(
            [
                code_of.setdefault(text, len(code_of)) if (text := getattr(one, name)) else UNKNOWN
                for one in mains
            ],
            np.int32,
        )
        if not (new >= 0).any():
            continue
        values = np.array(trace[column], np.int32)
        values[rows] = np.where(new[codes[rows]] >= 0, new[codes[rows]], values[rows])
        trace.columns[column] = values
        trace.texts[column] = list(code_of)


def matched(trace: Trace, handles: DebugHandleMap, by: str) -> str:
    """Say how much of the device work (on a CPU: of the outermost operators' time) has a handle."""
    rows = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    codes = trace["handle"]
    duration = trace["duration_ns"]
    if len(rows):
        mine = rows[codes[rows] >= 0]
    else:
        parent = trace["parent"]
        host = trace.is_kind("operator")  # a range around them is none of the code
        if not host.any():
            host = trace.is_kind("annotation")
        inner = (parent >= 0) & host[np.maximum(parent, 0)]
        rows = np.flatnonzero(host & ~inner)
        has = codes >= 0
        mine = np.flatnonzero(host & has & ~((parent >= 0) & has[np.maximum(parent, 0)]))
    met = len(np.unique(codes[codes >= 0]))
    share = int(duration[mine].sum()) / max(int(duration[rows].sum()), 1)
    return (
        f"{len(mine):,} of {len(rows):,} rows, {share:.1%} of their time, have debug handles (joined "
        f"by {by}; {met:,} of {len(handles):,} identifiers were met)"
    )


def _rows(trace: Trace, rows: Any) -> np.ndarray:
    given = np.asarray(rows)
    if given.dtype == bool and given.shape == (len(trace),):
        return np.flatnonzero(given)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not len(given):
        raise HandleError("rows are numbers of rows of the trace, or a mask of them")
    if int(given.min()) < 0 or int(given.max()) >= len(trace):
        raise HandleError(f"a row is out of range; the trace has {len(trace):,}")
    if len(np.unique(given)) < len(given):
        raise HandleError("a row is given twice; once was needed")
    return given.astype(np.int64)


def _by_name(handles: DebugHandleMap, trace: Trace, rows: np.ndarray, codes: np.ndarray) -> None:
    by_name: dict[str, list[tuple[int, int]]] = {}  # name -> (number of the call, place in the map)
    names = set(trace.text("name"))
    for place, identifier in enumerate(handles):
        text = str(identifier)
        numbered = None if text in names else NUMBERED.fullmatch(text)
        name, number = (numbered.group(1), int(numbered.group(2))) if numbered else (text, 0)
        by_name.setdefault(name, []).append((number, place))
    column = trace["name"][rows]
    for name, places in by_name.items():
        mine = rows[column == trace.code("name", name)]
        order = np.array([place for _, place in sorted(places)])
        for group in _groups(trace, mine):
            _in_rounds(codes, group, order)


def _by_node(handles: DebugHandleMap, trace: Trace, rows: np.ndarray, codes: np.ndarray) -> None:
    node, graph = (np.asarray(trace[name], np.int64)[rows] for name in ("graph_node", "graph_id"))
    places = {str(identifier): place for place, identifier in enumerate(handles)}
    pairs, inverse = np.unique(np.stack([graph, node]), axis=1, return_inverse=True)
    alone = len(np.unique(graph[node >= 0])) <= 1
    found = [
        UNKNOWN
        if one < 0
        else places.get(f"{of}:{one}", places.get(str(one), UNKNOWN) if alone else UNKNOWN)
        for of, one in pairs.T.tolist()
    ]
    codes[rows] = np.array(found, np.int32)[inverse.reshape(-1)]


def _groups(trace: Trace, rows: np.ndarray) -> Iterable[np.ndarray]:
    """Yield the rows of each rank and step, in the order they are given."""
    if not len(rows):
        return
    rank, step = (np.asarray(trace[name], np.int64)[rows] for name in ("rank", "step"))
    order = np.lexsort((step, rank))
    cut = np.flatnonzero((np.diff(rank[order]) != 0) | (np.diff(step[order]) != 0)) + 1
    for part in np.split(order, cut):
        yield rows[np.sort(part)]


def _in_rounds(codes: np.ndarray, rows: np.ndarray, places: np.ndarray) -> None:
    """Give rows the places in turn, if they are a whole number of rounds."""
    if len(places) and len(rows) % len(places) == 0:
        codes[rows] = np.tile(places, len(rows) // len(places))


def _of_ancestors(trace: Trace, codes: np.ndarray) -> np.ndarray:
    """Return the codes with those of enclosing (or launching) rows where a row has none of its own."""
    parent = np.asarray(trace["parent"], np.int64)
    around = parent.copy()
    host = np.append(trace.is_kind(*HOST_KINDS), False)
    while True:
        open_rows = np.flatnonzero((codes < 0) & (around >= 0) & host[around])
        if not len(open_rows):
            return codes
        codes = codes.copy()
        codes[open_rows] = codes[around[open_rows]]
        around[open_rows] = np.where(codes[open_rows] >= 0, -1, parent[around[open_rows]])


def _nothing_joined(handles: DebugHandleMap, trace: Trace, rows: np.ndarray, by: str) -> str:
    first = handles.identifiers[0] if len(handles) else None
    if first is None:
        return "the map of debug handles is empty; nothing can be joined"
    if by == "graph node id" and not (trace["graph_node"][rows] >= 0).any():
        return "no row has a graph node id; record the capture and join by it, or join by name or order"
    if by == "order":
        return (
            f"no step has a whole number of rounds through the {len(handles):,} identifiers ({len(rows):,} "
            "rows in all); the map is of another program, or rows= has to name its rows"
        )
    return (
        f"no row joins any of the {len(handles):,} identifiers by {by}; the first is {first!r:.60}, and "
        "the map may be of another program"
    )
