"""A graph and its plan in the user's cache, as they were built.

What a folder of the user's own holds is taken as it was written, where its digest fits: see
`daydream.files.cache` and `daydream.files.cache`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from daydream.graph.graph import Graph
from daydream.graph.lower import Lowered, lower, plan_key
from daydream.graph.plan import Plan
from daydream.graph.tables import CODED, Facts, Lane

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from daydream.graph.lower import Window
    from daydream.trace.trace import Trace

TABLES = ("columns", "syncs", "waits", "links")
OF_PLAN = (
    "duration_ns",
    "gap_ns",
    "release_ns",
    "edge_src",
    "edge_dst",
    "edge_latency_ns",
    "edge_from_start",
    "edge_cause",
)


def is_plain(graph: Graph) -> bool:
    """Return whether a graph is as it was built, so that all of it is kept: no edits, no times of a user."""
    given = (graph.overrides, graph.scheduled, graph.modelled, graph.doubted, graph.resized)
    if graph.trace is None or any(given) or graph.recorded_ns is not None or graph.times is not None:
        return False
    as_read = graph.steps == graph.trace.metadata.get("steps")
    return as_read and bool(graph.alive.all()) and set(graph.texts) == set(CODED)


def graph_contents(graph: Graph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the document and the arrays of a graph that is plain."""
    assert graph.trace is not None  # noqa: S101 - it is plain
    arrays = {
        f"{table}.{name}": getattr(graph, table)[name] for table in TABLES for name in getattr(graph, table)
    }
    document = {
        "lanes": [list(lane) for lane in graph.lanes],
        "texts": {name: texts[len(graph.trace.text(name)) :] for name, texts in graph.texts.items()},
        "queue_depth": [list(pair) for pair in graph.queue_depth.items()],
        "facts": asdict(graph.facts),
    }
    return document, arrays


def cached_graph(trace: Trace, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Graph:
    """Return the graph of a trace from what is kept of it."""
    graph = Graph(trace)
    for table in TABLES:
        for name in getattr(graph, table):
            getattr(graph, table).put(name, arrays[f"{table}.{name}"])
    graph.texts = {name: [*trace.text(name), *document["texts"][name]] for name in graph.texts}
    for lane in document["lanes"]:
        graph.add_lane(Lane(*lane))
    graph.steps = [dict(step) for step in trace.metadata["steps"]]
    graph.queue_depth = dict(document["queue_depth"])
    graph.facts = Facts(**document["facts"])
    graph.freeze()
    return graph


def plan_arrays(graph: Graph, copies: int, window: Window | None) -> dict[str, np.ndarray]:
    """Return what is kept of a graph as it was lowered. Raises `KeyError` if a lane has a policy."""
    lowered = lower(graph, copies, window)
    if lowered.plan.scheduled:
        raise KeyError("a lane has a policy")
    arrays = {name: getattr(lowered.plan, name) for name in OF_PLAN}
    arrays |= {"task": lowered.task, "copy": lowered.copy, "gap_of": lowered.gap_of}
    return {f"plan.{name}": array for name, array in arrays.items()}


def cached_plan(
    graph: Graph, copies: int, window: Window | None, arrays: Mapping[str, np.ndarray]
) -> Lowered:
    """Return a graph as it was lowered, from what is kept of it; the graph has it from then on."""
    window = window if copies > 1 else None
    task, copy, gap_of = (arrays[f"plan.{name}"] for name in ("task", "copy", "gap_of"))
    plan = Plan.from_edges(graph.lane[task], *(arrays[f"plan.{name}"] for name in OF_PLAN))
    lowered = Lowered(plan, task, copy, gap_of, copies, window)
    graph.derived(plan_key(copies, window), lambda: lowered, structure=True)
    return lowered
