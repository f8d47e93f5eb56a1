"""Graphs that are alike: they differ in durations and gaps only, so that one's plans serve the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.columns import OWN

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

TABLES = ("syncs", "waits", "links")
OF_RESULTS = ("texts", "steps", "facts", "resized", "times")  # what they say beside their times
OF_TIMES = ("closing",)  # in a plan's cache: what durations have a part in


def alike(graph: Graph, other: Graph) -> bool:
    """Tell whether two graphs are lowered to the same plan but for its durations and gaps."""
    if graph.scheduled or other.scheduled or graph.size != other.size:
        return False
    if graph.lanes != other.lanes or graph.queue_depth != other.queue_depth:
        return False
    pairs = [(graph.alive, other.alive)]
    pairs += [(graph.columns[name], other.columns[name]) for name in graph.columns if name not in OWN]
    for table in TABLES:
        mine, theirs = getattr(graph, table).columns, getattr(other, table).columns
        pairs += [(mine[name], theirs[name]) for name in mine]
    return all(one is two or np.array_equal(one, two) for one, two in pairs)


def same(graph: Graph, other: Graph) -> bool:
    """Tell whether two copies of a graph were changed in the same way: no prediction tells them apart."""
    if not alike(graph, other) or graph.overrides.keys() != other.overrides.keys():
        return False
    if any(getattr(graph, name) != getattr(other, name) for name in OF_RESULTS):
        return False
    mine, theirs = _written(graph), _written(other)
    return len(mine) == len(theirs) and all(map(np.array_equal, mine, theirs))


def _written(graph: Graph) -> list[np.ndarray]:
    """Return the arrays of a graph that an edit may write beside those that its plans are lowered from."""
    doubted = [each for pair in graph.doubted for each in pair]
    overrides = [graph.overrides[name] for name in sorted(graph.overrides)]
    return [*(graph.columns[name] for name in OWN), *graph.modelled, *doubted, *overrides]


def retimed(graph: Graph, duration_ns: np.ndarray, gap_ns: np.ndarray) -> Graph:
    """Return a copy of a graph whose tasks take other times: ns, int64, shape (ids,)."""
    twin = graph.copy()
    twin.columns["duration_ns"], twin.columns["gap_ns"] = duration_ns, gap_ns
    twin.touch()
    share_plans(twin, graph)
    return twin


def share_plans_of_one_alike(graph: Graph, others: Sequence[Graph]) -> Graph | None:
    """Give a graph the plans and columns of the first of some others that is alike, and return that one.

    A copy that kept its structure has them already.
    """
    for other in others:
        kept = graph._lowered is other._lowered
        if kept or alike(graph, other):
            if not kept:
                graph.columns.share(other.columns)
                share_plans(graph, other)
            return other
    return None


def share_plans(graph: Graph, other: Graph) -> None:
    """Give a graph the plans that one alike was lowered to: lowering it then takes a gather."""
    for (_, copies, window), lowered in other._lowered.items():
        kept = {name: value for name, value in lowered.plan.cache.items() if name not in OF_TIMES}
        plan = replace(lowered.plan, cache=kept)
        graph._lowered[graph._structure, copies, window] = replace(lowered, plan=plan)
    graph._ids = other._ids
