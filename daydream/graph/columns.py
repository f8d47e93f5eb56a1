"""Columns of tasks: the graph's own, and the trace's through the row behind each task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.trace import FIELDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

TEXT_COLUMNS = ("name", "op", "layer", "kind", "phase", "lane", "dtype", "shapes", "collective", "group")


def coded(graph: Graph, name: str, ids: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return a text column as codes (-1 for unknown) and the texts they point into."""
    from daydream.graph.graph import CODED, KINDS

    if name in CODED:
        return graph.columns[name][ids], graph.texts[name]
    if name == "kind":
        return graph.columns["kind"][ids], list(KINDS)
    if name == "phase":
        return graph.columns["phase"][ids], list(PHASES)
    if name == "lane":
        return graph.columns["lane"][ids], [lane.name for lane in graph.lanes]
    if graph.trace is None or name not in FIELDS:
        raise GraphError(f"tasks have no column {name!r}")
    return _of_trace(graph, name, ids), graph.trace.text(name)


def read_column(graph: Graph, name: str, ids: np.ndarray) -> np.ndarray:
    """Return a column for some tasks: integers (-1 for unknown), or an object array of texts."""
    if name in TEXT_COLUMNS or (name in FIELDS and FIELDS[name].type == "text"):
        codes, texts = coded(graph, name, ids)
        table = np.array([*texts, None], dtype=object)
        return table[codes]
    if name in graph.columns:
        return graph.columns[name][ids]
    if name == "measured_duration_ns":
        return _of_trace(graph, "duration_ns", ids)
    if name == "rank":
        return np.array([lane.rank for lane in graph.lanes], np.int64)[graph.columns["lane"][ids]]
    if name in FIELDS:
        return _of_trace(graph, name, ids)
    raise GraphError(f"tasks have no column {name!r}")


def _of_trace(graph: Graph, name: str, ids: np.ndarray) -> np.ndarray:
    rows = graph.columns["row"][ids]
    if graph.trace is None or not len(graph.trace):
        return np.full(len(ids), FIELDS[name].null, np.int64)
    values: Any = graph.trace[name][np.maximum(rows, 0)]
    return np.where(rows >= 0, values, FIELDS[name].null)
