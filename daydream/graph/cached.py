"""A graph in the user's cache, as it was built.

What a folder of the user's own holds is taken as it was written, where its digest fits: see
`daydream.files.cache`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from daydream.graph.graph import Graph
from daydream.graph.tables import TABLES, Facts, Lane

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from daydream.trace.trace import Trace


def graph_contents(graph: Graph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the document and the arrays of a graph that nobody edited."""
    arrays = {
        f"{table}.{name}": getattr(graph, table)[name]
        for table in TABLES
        for name in getattr(graph, table)
    }
    document = {
        "lanes": [list(lane) for lane in graph.lanes],
        "texts": {
            name: texts[len(graph.recorded.text(name)) :] for name, texts in graph.texts.items()
        },
        "queue_depth": [list(pair) for pair in graph.queue_depth.items()],
        "facts": asdict(graph.facts),
    }
    return document, arrays


def cached_graph(
    trace: Trace, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Graph:
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
