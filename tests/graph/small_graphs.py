"""Graphs made by hand, small enough to draw."""

from __future__ import annotations

from daydream import Graph, simulate
from daydream.graph.tables import ALL_LANES


def starts(graph: Graph, **options) -> dict[str, int]:
    """Return when each task starts, by name."""
    timeline = simulate(graph, **options)
    return dict(zip(timeline.column("name").tolist(), timeline.start_ns.tolist(), strict=True))


def lane(graph: Graph, name: str) -> list[str]:
    return graph.select(lane=name).name.tolist()


def thread(*tasks: tuple) -> Graph:
    """Return a graph with one thread of (name, duration, gap) tasks."""
    graph = Graph()
    for name, duration, gap in tasks:
        graph.insert(name, kind="cpu", lane="thread 1", duration_ns=duration, gap_ns=gap)
    return graph


def launched(*kernels: tuple, latency: int = 4, cost: int = 6, spacing: int = 1) -> Graph:
    """Return a graph whose thread launches (name, duration) kernels on stream 7, one call each."""
    graph = Graph()
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = latency, cost
    graph.insert("begin", kind="cpu", lane="thread 1", duration_ns=0)
    for name, duration in kernels:
        kernel = graph.insert(
            name, kind="kernel", lane="stream 7", duration_ns=duration, gap_ns=spacing,
            launch_after=graph.select(kind="cpu").last(),
        )  # fmt: skip
        graph.columns["name"][kernel.launches().ids] = graph.code("name", f"launch {name}")
    return graph


def with_sync(graph: Graph, lane: str | int = ALL_LANES, cost: int = 3) -> int:
    """Add a call at the end of the thread that waits for all work launched before it; return its id."""
    number = lane if isinstance(lane, int) else graph.lane_id(lane)
    sync = int(graph.insert("sync", kind="cpu", lane="thread 1", duration_ns=cost).ids[0])
    graph.syncs.add(task=sync, lane=number, point=sync, latency_ns=0)
    return sync
