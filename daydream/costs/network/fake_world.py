"""The step of a job whose trace was recorded in a fake world: its collectives take what a cluster's model says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster, bytes_of_message
from daydream.errors import GraphError
from daydream.graph.graph import Graph
from daydream.trace.trace import Trace

OWN = "^fake:"  # calls and waits that our process group answered
MESSAGES = ("send", "recv")


def cluster_of_world(trace: Trace) -> Cluster:
    """Return the cluster that a fake world is meant for.

    Raises `GraphError` if none is named, or it is too small.
    """
    world: dict[str, Any] = trace.metadata["fake_world"]
    if world.get("cluster") is None:
        raise GraphError(
            f"recorded in a fake world of {world['world_size']:,} ranks, where collectives take no time; name "
            f"their machines with --cluster, such as dgx-h100, or a file of your own"
        )
    return find_cluster(world["cluster"]).holding(int(world["world_size"]))


def on_cluster(graph: Graph, cluster: Cluster | None) -> Graph:
    """Return the graph of a fake world whose collectives take their time on a cluster, none without one.

    Our own calls take none. Ranks fill the nodes in their order, and nobody comes late: what the other ranks
    do is not known.
    """
    trace = graph.recorded
    duration = graph.duration_ns.copy()
    duration[graph.select(kind="cpu", name=OWN).ids] = 0
    tasks = graph.select(kind="collective")
    if cluster is None or not len(tasks):
        return graph.retimed(duration, graph.gap_ns)
    own = int(trace.metadata["fake_world"]["rank"])
    ranks_of = {group["name"]: group["ranks"] for group in trace.metadata["groups"]}
    columns = (
        tasks.collective,
        tasks.bytes.tolist(),
        tasks.group,
        trace["peer"][tasks.row].tolist(),
    )
    known: dict[tuple[Any, ...], int] = {}
    for task, key in zip(tasks.ids.tolist(), zip(*columns, strict=True), strict=True):
        if key not in known:
            operation, nbytes, group, peer = key
            ranks = [own, peer] if operation in MESSAGES else ranks_of[group]
            together = max(Counter(rank // cluster.gpus_per_node for rank in ranks).values())
            size = bytes_of_message(operation, max(nbytes, 0), len(ranks))
            known[key] = cluster.time_ns(operation, size, len(ranks), per_node=together)
        duration[task] = known[key]
    return graph.retimed(duration, graph.gap_ns)
