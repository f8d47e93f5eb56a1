"""To networkx and back, for a user's own algorithms on the graph of causes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream import lazy
from daydream.errors import GraphError
from daydream.graph.lower import lower
from daydream.graph.plan import Cause
from daydream.graph.tables import ORDER_STEP, code_of, kind_code, nanoseconds, phase_code

if TYPE_CHECKING:
    import networkx as nx

    from daydream.graph.graph import Graph

OF_NODES = ("lane", "kind", "name", "duration_ns", "gap_ns", "release_ns", "step", "phase", "layer")
TIMES = ("duration_ns", "gap_ns", "release_ns")


def to_networkx(graph: Graph) -> nx.DiGraph[Any]:
    """Return the lowered graph: a node a task, an edge a cause.

    Nodes are task ids in a topological order, with `lane`, `kind`, `name`, `duration_ns`,
    `gap_ns`, `release_ns` (earliest start), `step`, `phase` and `layer` (None for unknown).
    Edges have `cause`, `latency_ns`, `from_start`, and `delay_ns`: from the start of the
    task to the earliest start of the next, the weight for path algorithms. The order on a
    lane is edges of cause "lane" whose latency is the gap. Where several causes tie the
    same two tasks, the one that holds longest is kept. Lanes with a policy keep the order
    that it gives now.

    Raises `GraphError` if the graph has a cycle.
    """
    import networkx as nx

    lowered = lower(graph)
    plan = lowered.plan
    tasks = lowered.task
    if plan.scheduled:
        plan, ran = lazy.ask("fixed_order", plan)
        tasks = tasks[ran]
    digraph: nx.DiGraph[Any] = nx.DiGraph(steps=[dict(step) for step in graph.steps])
    columns = {name: graph.column(name, tasks).tolist() for name in OF_NODES}
    columns["step"] = [step if step >= 0 else None for step in columns["step"]]
    ids = tasks.tolist()
    for task, *values in zip(ids, *columns.values(), strict=True):
        digraph.add_node(task, **dict(zip(columns, values, strict=True)))

    before = plan.before_on_lane()
    later = np.flatnonzero(before >= 0)
    earlier = before[later]
    gap = plan.gap_ns[earlier]
    delay = plan.duration_ns[earlier] + gap
    edges = (
        plan.edge_src, plan.edge_dst, plan.edge_delay_ns,
        plan.edge_cause, plan.edge_latency_ns, plan.edge_from_start,
    )  # fmt: skip
    on_lanes = np.broadcast_arrays(earlier, later, delay, Cause.LANE, gap, False)
    src, dst, delay, cause, latency, from_start = map(np.append, edges, on_lanes)
    longest_last = np.lexsort((-cause, delay, src, dst))
    for edge in longest_last.tolist():
        digraph.add_edge(
            ids[src[edge]],
            ids[dst[edge]],
            cause=Cause(cause[edge]).name.lower(),
            delay_ns=int(delay[edge]),
            latency_ns=int(latency[edge]),
            from_start=bool(from_start[edge]),
        )
    return digraph


def from_networkx(cls: type[Graph], digraph: nx.DiGraph[Any]) -> Graph:
    """Return a graph with a task for each node and a link for each edge.

    Nodes need `lane` and `duration_ns`, and may have `kind` ("cpu"), `gap_ns` (0),
    `release_ns` (0), `name` (the node as text), `phase` and `layer`. Edges may have
    `latency_ns` (0), `from_start` (False) and `cause` ("user"). Tasks of a lane run in the
    order of the nodes, as far as the edges allow; edges of cause "lane" give that order
    and nothing else.

    Raises `GraphError` for a cycle, an attribute that is missing, or a negative time.
    """
    import networkx as nx

    if not digraph.is_directed():
        raise GraphError("a graph of causes needs directed edges: give a networkx.DiGraph")
    place = {node: number for number, node in enumerate(digraph)}
    try:
        nodes = list(nx.lexicographical_topological_sort(digraph, key=place.__getitem__))
    except nx.NetworkXUnfeasible:
        node = nx.find_cycle(digraph)[0][0]
        raise GraphError(f"the graph has a cycle: node {node!r} waits for itself") from None

    graph = cls()
    graph.steps = [dict(step) for step in digraph.graph.get("steps", [])]
    rows = []
    for node in nodes:
        given = {"kind": "cpu", "name": node, "gap_ns": 0, "release_ns": 0, **digraph.nodes[node]}
        with _naming(f"node {node!r}"):
            for name in ("lane", "duration_ns"):
                if given.get(name) is None:
                    raise GraphError(f"it has no {name}; nodes need a lane and a duration_ns")
            step = given.get("step") if graph.steps else None
            rows.append({
                "kind": kind_code(given["kind"]),
                "lane": graph.lane_id(str(given["lane"]), on_device=given["kind"] != "cpu"),
                "name": graph.code("name", str(given["name"])),
                "phase": phase_code(given.get("phase")),
                "layer": graph.code("layer", given.get("layer")),
                "step": -1 if step is None else int(step),
                **{name: nanoseconds(given[name], name) for name in TIMES},
            })  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    graph.add(len(nodes), order=np.arange(len(nodes)) * ORDER_STEP, **columns)

    at = {node: task for task, node in enumerate(nodes)}
    links = []
    for src, dst, given in digraph.edges(data=True):
        with _naming(f"edge {src!r} -> {dst!r}"):
            cause = code_of(
                str(given.get("cause", "user")), "cause", [each.name.lower() for each in Cause]
            )
            latency = nanoseconds(given.get("latency_ns", 0), "latency_ns", negative=True)
        if cause != Cause.LANE:
            links.append((at[src], at[dst], latency, bool(given.get("from_start", False)), cause))
    if links:
        links.sort(key=itemgetter(4))
        graph.links.add(**dict(zip(graph.links, zip(*links, strict=True), strict=True)))
    graph.freeze()
    return graph


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Say of an error in which node or edge it is."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"{what}: {error}") from None
