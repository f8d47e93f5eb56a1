"""What torch's `fully_shard` costs besides transfers and copies: padding, and calls on the CPU."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from daydream import Graph, Selection
from daydream.model import ACCUMULATE, Gradients, call_rows, shapes_in

LISTS = re.compile(r"^aten::_(foreach|fused)_")


class Calls(NamedTuple):
    """CPU time that the calls around a unit take, and those around each of its parameters, ns."""

    unit: int
    parameter: int

    def of(self, parameters: np.ndarray) -> np.ndarray:
        """Return the time of units with so many parameters, ns."""
        each: np.ndarray = self.unit + self.parameter * parameters
        return each


# Hooks and calls of torch 2.13.0 on an x86 server CPU, one thread: what `benchmarks/sharding_calls.py` finds
# on parameters of 16 values. On a GPU the calls of streams and events come on top.
FORWARD, BACKWARD = Calls(370_000, 21_000), Calls(205_000, 13_000)  # with a gather, before either pass
SCATTER = Calls(270_000, 21_000)
# An update calls operators on sharded parameters (`DTensor`): with all in one call so much a parameter, else
# so much a call (114 us a parameter in the 8 calls of Adam).
UPDATE_IN_LISTS, UPDATE_CALL = 13_500, 14_000


def padded_bytes(gradients: Gradients, workers: int) -> np.ndarray:
    """Return the bytes of each gradient when its first size is filled up to a multiple of the workers.

    So torch divides parameters (2.13.0, `_get_dim0_padded_size`). As they are where shapes are not known.
    """
    found = gradients.nbytes.copy()
    graph = gradients.nodes.graph
    rows = call_rows(graph, gradients.nodes.ids, ACCUMULATE.pattern)
    if graph.trace is None:
        return found
    known = np.flatnonzero(rows >= 0)
    for place, text in zip(known.tolist(), graph.trace.values("shapes", rows[known].tolist()), strict=True):
        shapes = shapes_in(text) if text is not None else []
        if shapes and shapes[0][0]:
            first = shapes[0][0]
            found[place] = found[place] // first * (-(-first // workers) * workers)
    return found


def dispatch_ns(graph: Graph, calls: Selection, gradients: Gradients) -> np.ndarray:
    """Return how much longer each CPU task of an update takes on sharded parameters, ns.

    By the operators that Python calls; those that others call know nothing of shards.
    """
    found = np.zeros(len(calls), np.int64)
    rows = call_rows(graph, calls.ids, r"^aten::(?!item$)")
    if graph.trace is None or not (rows >= 0).any():
        return found
    called, first = np.unique(rows, return_index=True)
    called, first = called[called >= 0], first[called >= 0]
    names = graph.trace.values("name", called.tolist())
    lists = np.array([bool(LISTS.match(name or "")) for name in names], bool)
    found[first] = np.where(lists, 0, UPDATE_CALL)
    if lists.any():
        parameters = np.bincount(gradients.nodes.step, minlength=int(calls.step.max()) + 1)
        _, opens = np.unique(calls.step[first[lists]], return_index=True)
        opens = first[lists][opens]
        found[:] = 0
        found[opens] = UPDATE_IN_LISTS * parameters[calls.step[opens]]
    return found
