"""Input shapes of the work: those recorded with the task, else with the operator around it."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def shapes_in(text: str) -> list[list[int]]:
    """Return the shapes of tensors in a recorded text, those within lists of tensors too.

    `[[32, 64], [64], []]` holds a matrix, a vector, and an argument that is no tensor (or a scalar).
    """
    return [*_shapes_in(text)]


@lru_cache(maxsize=1 << 14)  # a few thousand texts make a trace, and every optimization reads them
def _shapes_in(text: str) -> list[list[int]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return _flat(found) if isinstance(found, list) else []


def product(shape: list[int]) -> int:
    """Return the number of elements of a shape."""
    count = 1
    for size in shape:
        count *= size
    return count


def _flat(found: list[Any]) -> list[list[int]]:
    shapes: list[list[int]] = []
    for each in found:
        if not isinstance(each, list) or not each:
            continue
        if all(isinstance(size, int) for size in each):
            shapes.append(each)
        else:
            shapes += _flat(each)
    return shapes


def shape_codes(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return the code of the shapes of each task, or of the innermost call that recorded any; else -1."""
    trace = graph.trace
    if trace is None or not len(trace):
        return np.full(len(ids), -1)
    rows = shape_rows(graph, ids)
    return np.where(rows >= 0, np.asarray(trace["shapes"], np.int64)[rows], -1)


def shape_rows(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return the row of each task, or of the innermost call around it, that recorded shapes; else -1."""
    trace = graph.trace
    if trace is None or not len(trace):
        return np.full(len(ids), -1)
    parent, shapes = np.asarray(trace["parent"], np.int64), np.asarray(trace["shapes"], np.int64)
    up = graph.columns["row"][ids].astype(np.int64)
    while (climb := (up >= 0) & (shapes[up] < 0)).any():
        up[climb] = parent[up[climb]]
    return up
