"""A lowered graph in the user's cache: its plan, without what follows from the graph's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.cached_graph import INT64, need, need_range
from daydream.graph.layout import Repeats
from daydream.graph.lower import Lowered
from daydream.graph.plan import Cause, Plan
from daydream.graph.tables import LONGEST_NS
from daydream.graph.windows import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daydream.graph.graph import Graph
    from daydream.graph.windows import Window

PLAN = "plan."  # begins the names of its arrays

TASKS = {
    "task": INT64, "copy": np.dtype(np.int32), "duration_ns": INT64, "gap_ns": INT64, "release_ns": INT64,
}  # fmt: skip
EDGES = {
    "src": np.dtype(np.int32), "dst": INT64, "latency_ns": INT64, "from_start": np.dtype(bool),
    "cause": np.dtype(np.int8),
}  # fmt: skip
SEAMS = {"end": INT64, "leading": INT64}
REPEATS = {"repeats": INT64}  # its fields


def plan_arrays(graph: Graph, copies: int, window: Window | None) -> dict[str, np.ndarray]:
    """Return what is kept of a graph as it was lowered last. Raises `KeyError` if it was not lowered so."""
    lowered = graph._lowered[_key(graph, copies, window)]
    plan = lowered.plan
    if plan.scheduled:
        raise KeyError("a lane has a policy")
    arrays = {
        "task": np.asarray(lowered.task, np.int64), "copy": lowered.copy, "duration_ns": plan.duration_ns,
        "gap_ns": plan.gap_ns, "release_ns": plan.release_ns,
        "src": plan.edge_src, "dst": plan.edge_dst, "latency_ns": plan.edge_latency_ns,
        "from_start": plan.edge_from_start, "cause": plan.edge_cause,
        "end": lowered.seams[0], "leading": lowered.seams[1],
        "repeats": np.array([lowered.repeats.ahead, lowered.repeats.block, lowered.repeats.copies]),
    }  # fmt: skip
    return {PLAN + name: array for name, array in arrays.items()}


def cached_plan(
    graph: Graph, copies: int, window: Window | None, arrays: Mapping[str, np.ndarray]
) -> Lowered:
    """Return a graph as it was lowered, from what is kept of it; the graph has it from then on.

    Raises `ValueError`, `KeyError` or `GraphError` where that is no plan of this graph.
    """
    kinds = (TASKS, EDGES, SEAMS, REPEATS)
    parts = [{name: arrays[PLAN + name] for name in dtypes} for dtypes in kinds]
    for columns, dtypes in zip(parts, kinds, strict=True):
        need(columns, dtypes)
    tasks, edges, seams, given = parts
    repeats = Repeats(*given["repeats"].tolist())
    fits = min(repeats.ahead, repeats.block, repeats.copies - 1) >= 0 and len(repeats) == len(tasks["task"])
    if not fits or (repeats.copies > 1 and not np.array_equal(repeats.numbers(), tasks["copy"])):
        raise ValueError("a window that is not that of the plan")
    need_range(tasks["task"], 0, len(graph) - 1)
    need_range(tasks["copy"], 0, copies - 1)
    need_range(edges["cause"], 0, max(Cause))
    for name in ("duration_ns", "gap_ns", "release_ns"):
        need_range(tasks[name], 0, LONGEST_NS)
    need_range(edges["latency_ns"], -LONGEST_NS, LONGEST_NS)
    for ends in seams.values():
        need_range(ends, 0, len(tasks["task"]) - 1)
    plan = Plan.from_edges(
        graph.columns["lane"][tasks["task"]], tasks["duration_ns"], tasks["gap_ns"], tasks["release_ns"],
        edges["src"], edges["dst"], edges["latency_ns"], edges["from_start"], edges["cause"],
    )  # fmt: skip
    lowered = Lowered(plan, tasks["task"], tasks["copy"], (seams["end"], seams["leading"]), repeats)
    graph._lowered[_key(graph, copies, window)] = lowered
    return lowered


def _key(graph: Graph, copies: int, window: Window | None) -> tuple[int, int, object]:
    """Return what `lower` remembers it under."""
    return graph._structure, copies, key_of(window) if copies > 1 else None
