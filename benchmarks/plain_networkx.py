"""Algorithm 1 as most people would write it: a networkx graph and a heap."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

    from daydream.graph.plan import Plan


def to_digraph(plan: Plan) -> nx.DiGraph:
    """Return the plan as a networkx graph: a node a task, an edge a dependency, lane order included."""
    import networkx as nx

    graph = nx.DiGraph()
    columns = (plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns)
    for task, (lane, duration, gap, release) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        graph.add_node(task, lane=lane, duration=duration, gap=gap, release=release)
    edges = (plan.edge_src, plan.edge_dst, plan.edge_latency_ns, plan.edge_from_start)
    for src, dst, latency, from_start in zip(*(e.tolist() for e in edges), strict=True):
        if graph.has_edge(src, dst):
            if graph[src][dst]["from_start"] != from_start:
                raise ValueError(f"{src} -> {dst} both from its start and its end: not told in one edge")
            graph[src][dst]["latency"] = max(latency, graph[src][dst]["latency"])
        else:
            graph.add_edge(src, dst, latency=latency, from_start=from_start)
    for task, following in enumerate(plan.next_on_lane().tolist()):
        if following >= 0 and not graph.has_edge(task, following):
            graph.add_edge(task, following, latency=0, from_start=False)
    return graph


def simulate(graph: nx.DiGraph) -> dict[int, int]:
    """Return the start of every task: run the ready task with the least time, release its children."""
    missing = {task: graph.in_degree(task) for task in graph}
    ready = {task: graph.nodes[task]["release"] for task in graph}
    progress: dict[int, int] = {}
    start: dict[int, int] = {}
    heap = [(ready[task], task) for task in graph if missing[task] == 0]
    heapq.heapify(heap)
    while heap:
        at, task = heapq.heappop(heap)
        node = graph.nodes[task]
        begin = start[task] = max(at, progress.get(node["lane"], 0))
        end = begin + node["duration"]
        progress[node["lane"]] = end + node["gap"]
        for child, edge in graph[task].items():
            ready[child] = max(ready[child], (begin if edge["from_start"] else end) + edge["latency"])
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(heap, (ready[child], child))
    return start
