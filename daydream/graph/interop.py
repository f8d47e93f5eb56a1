"""To networkx and back, for a user's own algorithms on the graph of causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream import lazy
from daydream.errors import GraphError
from daydream.graph.lower import lower
from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS, ORDER_STEP, phase_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    import networkx as nx

    from daydream.graph.graph import Graph

OF_NODES = ("lane", "kind", "name", "duration_ns", "gap_ns", "release_ns", "step", "phase", "layer")


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

    following = plan.next_on_lane()
    earlier = np.flatnonzero(following >= 0)
    gap = plan.gap_ns[earlier]
    delay = plan.duration_ns[earlier] + gap
    edges = (
        plan.edge_src, plan.edge_dst, plan.edge_delay_ns,
        plan.edge_cause, plan.edge_latency_ns, plan.edge_from_start,
    )  # fmt: skip
    on_lanes = np.broadcast_arrays(earlier, following[earlier], delay, Cause.LANE, gap, False)
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
    rows = [_task(graph, node, digraph.nodes[node], in_steps=bool(graph.steps)) for node in nodes]
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    graph.add(len(nodes), order=np.arange(len(nodes)) * ORDER_STEP, **columns)

    at = {node: task for task, node in enumerate(nodes)}
    links = [
        (at[src], at[dst], *_edge(f"edge {src!r} -> {dst!r}", edge))
        for src, dst, edge in digraph.edges(data=True)
        if edge.get("cause") != "lane"
    ]
    if links:
        links.sort(key=lambda link: link[4])
        graph.links.add(**dict(zip(graph.links, zip(*links, strict=True), strict=True)))
    graph.freeze()
    return graph


def _task(graph: Graph, node: Any, given: Mapping[str, Any], *, in_steps: bool) -> dict[str, int]:
    what = f"node {node!r}"
    for name in ("lane", "duration_ns"):
        if given.get(name) is None:
            raise GraphError(f"{what} has no {name}; nodes need a lane and a duration_ns")
    kind = given.get("kind", KINDS[0])
    if kind not in KINDS:
        raise GraphError(f"{what} has kind {kind!r}; the kinds are {', '.join(KINDS)}")
    step = given.get("step")
    return {
        "lane": graph.lane_id(str(given["lane"]), on_device=kind != "cpu"),
        "kind": KINDS.index(kind),
        "name": graph.code("name", str(given.get("name", node))),
        "duration_ns": _time(what, "duration_ns", given),
        "gap_ns": _time(what, "gap_ns", given),
        "release_ns": _time(what, "release_ns", given),
        "phase": phase_code(given.get("phase")),
        "layer": graph.code("layer", given.get("layer")),
        "step": int(step) if in_steps and step is not None else -1,
    }


def _edge(what: str, given: Mapping[str, Any]) -> tuple[int, bool, int]:
    name = str(given.get("cause", "user")).upper()
    if name not in Cause.__members__:
        known = ", ".join(cause.lower() for cause in Cause.__members__)
        raise GraphError(f"{what} has cause {name.lower()!r}; the causes are {known}")
    latency = _time(what, "latency_ns", given, negative=True)
    return latency, bool(given.get("from_start", False)), int(Cause[name])


def _time(what: str, name: str, given: Mapping[str, Any], *, negative: bool = False) -> int:
    value = given.get(name, 0)
    try:
        whole = round(value)
    except (TypeError, ValueError, OverflowError):
        raise GraphError(f"{what} has {name} {value!r}; times are numbers of nanoseconds") from None
    if whole < 0 and not negative:
        raise GraphError(f"{what} has {name} {value}; it must not be negative")
    return int(whole)
