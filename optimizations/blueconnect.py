"""BlueConnect: an all-reduce as reduce-scatters and all-gathers over the levels of the network."""

from __future__ import annotations

from math import ceil

import numpy as np
from daydream.optimizations._gradient_collectives import sized_all_reduces

from daydream import Graph
from daydream.costs import find_cluster, machine_of, workers_of
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
EXCLUDES = frozenset({"compression", "dgc"})
CODE = "dist.reduce_scatter_tensor(part, grads, group=node); dist.all_reduce(part, group=across)"
memory = unchanged

BETWEEN = "between nodes"


def blueconnect(graph: Graph, *, cluster: str | None = None, workers: int | None = None) -> None:
    """Predict hierarchical all-reduces (Cho et al., 2019; Daydream, section 5.2).

    Each all-reduce becomes a reduce-scatter inside the nodes, one between them, an all-gather between
    them and one inside, each with its launch. Every GPU of a node takes its share across, so that the
    way out of a node carries the data once. The two levels are lanes of their own: a bucket
    may cross the network while another is summed inside the nodes.

    The parts share the time of the all-reduce as their times stand to that of a plain all-reduce of
    the same size on `cluster` (machines of the trace's GPU if not given). `workers` is the job's
    if the trace shows it. Waiting for peers in the trace of one rank is scaled like the transfer.

    Args:
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        workers: Number of GPUs, if the trace does not show it.
    """
    reduced = sized_all_reduces(graph)
    members = workers_of(graph, workers)
    machines = find_cluster(cluster or machine_of(graph)).holding(members)
    inside = min(members, machines.gpus_per_node)
    nodes = ceil(members / inside)
    if nodes == 1 or inside == 1:
        graph.does_not_apply(
            f"{members} workers on machines of {machines.gpus_per_node} GPUs have one level of network only"
        )
    sizes, which = np.unique(reduced.bytes, return_inverse=True)
    parts_ns, plain_ns = [], []
    for nbytes in sizes.tolist():
        parts_ns.append([
            machines.time_ns("reduce_scatter", nbytes, inside),
            machines.time_ns("reduce_scatter", nbytes / inside, nodes, per_node=1),
            machines.time_ns("all_gather", nbytes / inside, nodes, per_node=1),
            machines.time_ns("all_gather", nbytes, inside),
        ])  # fmt: skip
        plain_ns.append(machines.time_ns("all_reduce", nbytes, members))
    shares = (np.array(parts_ns) / np.array(plain_ns)[:, None])[which.reshape(-1)]
    times, nbytes = reduced.duration_ns[:, None] * shares, reduced.bytes
    streams = list(dict.fromkeys(reduced.lane.tolist()))

    parts = reduced.split(4, launched=True).ids.reshape(-1, 4)
    names = ("reduce-scatter inside", "reduce-scatter across", "all-gather across", "all-gather inside")
    operations = ("reduce_scatter", "reduce_scatter", "all_gather", "all_gather")
    moved = (nbytes, nbytes / inside, nbytes / members, nbytes / inside)  # a member's input
    for part, name, operation, time, size in zip(parts.T, names, operations, times.T, moved, strict=True):
        graph.tasks(part).set(name=name, duration_ns=time, collective=operation, bytes=size)
    graph.tasks(np.sort(parts[:, 1:3].reshape(-1))).move(BETWEEN)
    for stream in streams:
        if (graph.select(lane=stream).kind == "collective").all():
            graph.schedule(
                stream, key=lambda tasks: np.zeros(len(tasks), np.int64)
            )  # first come, first served
    graph.note(machines.describe())
