"""The forward call behind backward work: autograd numbers the nodes it makes, and they run by that number."""

from __future__ import annotations

import re

import numpy as np

from daydream.trace.trace import Trace

NODE = re.compile(r"Backward\d*$|AccumulateGrad$")  # autograd nodes; a Python function's has no number


def nodes(trace: Trace) -> np.ndarray:
    """Return a mask of the rows that are autograd nodes."""
    fits = np.array([*(bool(NODE.search(text)) for text in trace.text("name")), False])
    found: np.ndarray = fits[trace["name"]] & trace.is_kind("operator", "annotation")
    return found


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
    is_node = nodes(trace)
    rank, sequence = np.asarray(trace["rank"], np.int64), np.asarray(trace["sequence"], np.int64)
    span = int(sequence.max(initial=0)) + 2
    key = (rank - rank.min(initial=0)) * span + sequence
    makers = np.flatnonzero(~is_node & trace.is_kind("operator") & (sequence >= 0))
    makers = makers[nodes_above(trace, makers) < 0]
    order = np.lexsort((makers, key[makers]))
    keys = key[makers][order]
    last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.zeros(0, bool)
    keys, of_key = keys[last], makers[order][last]
    found = np.full(len(rows), -1, np.int64)
    around = innermost_makers(trace, rows)
    there = np.flatnonzero((around >= 0) & is_node[around] & (sequence[around] >= 0))
    place = np.minimum(np.searchsorted(keys, key[around[there]]), max(len(keys) - 1, 0))
    if len(keys):
        same = keys[place] == key[around[there]]
        found[there[same]] = of_key[place[same]]
    return found


def nodes_above(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the nearest node around each row, -1 for none."""
    is_node = nodes(trace)
    parent = np.asarray(trace["parent"], np.int64)
    up = parent[rows]
    while (climbing := (up >= 0) & ~is_node[up]).any():
        up = np.where(climbing, parent[up], up)
    return up
