"""Columns of tasks: the graph's own, the trace's through the row behind each task, and derived ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.graph.query.calls import instances
from daydream.graph.query.gradients import gradient_bytes, layer_order
from daydream.graph.query.shapes import product, shape_codes, shapes_in
from daydream.graph.tables import CODED, KINDS, UNSET
from daydream.text import closest
from daydream.trace.schema import FIELDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection


def _input_elements(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return how many elements the inputs of the innermost call have in all, -1 for unknown."""
    codes, texts = coded(graph, "shapes", ids)
    return np.array([*(sum(map(product, shapes_in(text))) for text in texts), -1], np.int64)[codes]


DERIVED: dict[str, Callable[[Graph, np.ndarray], np.ndarray]] = {
    "layer_index": layer_order,
    "grad_bytes": gradient_bytes,
    "instance": instances,
    "call": lambda graph, ids: instances(graph, ids, inner=True),
    "input_elements": _input_elements,
}


def is_text(name: str) -> bool:
    """Tell whether a column holds texts."""
    return name in (*CODED, "kind", "phase", "lane") or (name in FIELDS and FIELDS[name].type == "text")


def coded(graph: Graph, name: str, ids: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return a text column as codes (-1 for unknown) and the texts they point into."""
    if name in CODED:
        return graph.columns[name][ids], graph.texts[name]
    if name == "kind":
        return graph.columns["kind"][ids], list(KINDS)
    if name == "phase":
        return graph.columns["phase"][ids], list(PHASES)
    if name == "lane":
        return graph.columns["lane"][ids], [lane.name for lane in graph.lanes]
    if name not in FIELDS:
        raise GraphError(f"tasks have no column {name!r}")
    texts = graph.texts.get(name)
    if texts is None:
        texts = [] if graph.trace is None else graph.trace.text(name)
    recorded = shape_codes(graph, ids) if name == "shapes" else None
    return _of_trace(graph, name, ids, recorded), texts


def read_column(graph: Graph, name: str, ids: np.ndarray) -> np.ndarray:
    """Return a column for some tasks: integers (-1 for unknown), or an object array of texts."""
    if is_text(name):
        codes, texts = coded(graph, name, ids)
        return np.array([*texts, None], dtype=object)[codes]
    if name in graph.columns:
        return graph.columns[name][ids]
    if name == "measured_duration_ns":
        return _of_trace(graph, "duration_ns", ids)
    if name == "rank":
        return np.array([lane.rank for lane in graph.lanes], np.int64)[graph.columns["lane"][ids]]
    if name in DERIVED:
        return DERIVED[name](graph, ids)
    if name in FIELDS:
        return _of_trace(graph, name, ids)
    known = ("kind", "phase", "lane", "rank", "measured_duration_ns", *graph.columns, *DERIVED, *FIELDS)
    near = closest(name, known)
    raise GraphError(f"tasks have no column {name!r}" + (f". Did you mean {near[0]!r}?" if near else ""))


def keep_durations(graph: Graph) -> None:
    """Keep what tasks took before the first edit of any duration: rates of the machine are read off that."""
    if graph.recorded_ns is None:
        graph.recorded_ns = graph.columns["duration_ns"].copy()


def lanes_named(graph: Graph, name: str) -> list[int]:
    """Return the lanes of this name, that of each rank where names begin with a rank (`rank 0 stream 7`)."""
    exact = [number for number, lane in enumerate(graph.lanes) if lane.name == name]
    if exact:
        return exact
    return [number for number, lane in enumerate(graph.lanes) if lane.name == f"rank {lane.rank} {name}"]


def priorities(
    graph: Graph, lane: int, key: str | Callable[[Selection], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks of a scheduled lane and the key of each, a whole number."""
    tasks = graph.select(lane=graph.lanes[lane].name)
    values = np.asarray(key(tasks) if callable(key) else read_column(graph, key, tasks.ids))
    if values.shape != (len(tasks),) or values.dtype.kind not in "iub":
        raise GraphError(
            f"the key of lane {graph.lanes[lane].name!r} must give a whole number for each of its "
            f"{len(tasks)} tasks, not {values.dtype} {values.shape}"
        )
    return tasks.ids, values.astype(np.int64)


def _of_trace(graph: Graph, name: str, ids: np.ndarray, recorded: np.ndarray | None = None) -> np.ndarray:
    """Return a column of the trace (or what was `recorded` instead), with what edits gave the tasks."""
    rows = graph.columns["row"][ids]
    found: Any = recorded
    if recorded is None and (graph.trace is None or not len(graph.trace)):
        found = np.full(len(ids), FIELDS[name].null, np.int64)
    elif recorded is None and graph.trace is not None:
        values: Any = graph.trace[name][np.maximum(rows, 0)]
        found = np.where(rows >= 0, values, FIELDS[name].null)
    if name in graph.overrides:
        own = graph.override(name)[ids]
        found = np.where(own == UNSET, found, own)
    return np.asarray(found)
