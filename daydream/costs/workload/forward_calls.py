"""The forward call behind backward work: autograd numbers the nodes it makes, and they run by that number."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from daydream.lazy import regex
from daydream.trace.trace import Trace

NODE = regex(r"Backward\d*$|AccumulateGrad$")  # autograd nodes; a Python function's has no number


_nodes: WeakKeyDictionary[Trace, np.ndarray] = WeakKeyDictionary()
_makers: WeakKeyDictionary[Trace, tuple[np.ndarray, np.ndarray, np.ndarray]] = WeakKeyDictionary()


def nodes(trace: Trace) -> np.ndarray:
    """Return a mask of the rows that are autograd nodes, worked out once: bool, not to be written to."""
    if trace not in _nodes:
        fits = np.array([*(bool(NODE.search(text)) for text in trace.text("name")), False])
        _nodes[trace] = fits[trace["name"]] & trace.is_kind("operator", "annotation")
        _nodes[trace].flags.writeable = False
    return _nodes[trace]


def innermost_makers(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the innermost row around each (itself included) that is a node or makes one, -1 for none.

    A node's own calls make no nodes, so have no sequence number; those of a forward
    pass that a checkpoint runs again inside a node have one.
    """
    decides = nodes(trace) | (np.asarray(trace["sequence"], np.int64) >= 0)
    parent = np.asarray(trace["parent"], np.int64)
    up = np.asarray(rows, np.int64)
    while (climbing := (up >= 0) & ~decides[up]).any():
        up = np.where(climbing, parent[up], up)
    return up


def forward_rows(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the forward operator whose gradient each row computes, -1 where it is not known.

    Of several with the same number (`linear` calls `addmm`) the last to begin, which does the work.
    """
    if trace not in _makers:
        _makers[trace] = _last_makers(trace)
    key, keys, of_key = _makers[trace]
    found = np.full(len(rows), -1, np.int64)
    around = innermost_makers(trace, rows)
    there = np.flatnonzero((around >= 0) & nodes(trace)[around] & (trace["sequence"][around] >= 0))
    place = np.minimum(np.searchsorted(keys, key[around[there]]), max(len(keys) - 1, 0))
    if len(keys):
        same = keys[place] == key[around[there]]
        found[there[same]] = of_key[place[same]]
    return found


def _last_makers(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a key of rank and number for each row, the keys that makers of nodes have, and their last rows.

    All int64: of shape (rows,), and twice of one shape, in order of keys.
    """
    rank, sequence = np.asarray(trace["rank"], np.int64), np.asarray(trace["sequence"], np.int64)
    span = int(sequence.max(initial=0)) + 2
    key = (rank - rank.min(initial=0)) * span + sequence
    makers = np.flatnonzero(~nodes(trace) & trace.is_kind("operator") & (sequence >= 0))
    makers = makers[nodes_above(trace, makers) < 0]
    order = np.lexsort((makers, key[makers]))
    keys = key[makers][order]
    last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.zeros(0, bool)
    return key, keys[last], makers[order][last]


def nodes_above(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the nearest node around each row, -1 for none."""
    is_node = nodes(trace)
    parent = np.asarray(trace["parent"], np.int64)
    up = parent[rows]
    while (climbing := (up >= 0) & ~is_node[up]).any():
        up = np.where(climbing, parent[up], up)
    return up
