"""What workers exchange gradients over: a cluster, or one bandwidth for all; and the cluster of a fake world."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.costs.devices import device_of
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster
from daydream.costs.network.nccl import POINT_TO_POINT, RINGS, Link, bytes_of_message, ring_ns
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.trace.trace import Trace

NO_EXPERTS = (
    "--imbalance is for experts between two all-to-alls of one group, there and back; the trace's are not "
    "like that. Record it without."
)
OWN = "^fake:"  # calls and waits that our process group of a fake world answered


@dataclass(frozen=True)
class Network:
    """Workers and what joins them.

    Attributes:
        workers: how many there are.
        cluster: the machines they are in, or None.
        link: what every step of a ring goes over, where there is no cluster.
    """

    workers: int
    cluster: Cluster | None
    link: Link | None

    def time_ns(self, collective: str, input_bytes: float) -> int:
        """Return how long a collective of all workers takes, ns.

        Args:
            collective: `all_reduce`, `reduce_scatter`, `all_gather`, ...
            input_bytes: bytes that a worker puts in.
        """
        nbytes = bytes_of_message(collective, round(input_bytes), self.workers)
        if self.cluster is not None:
            return self.cluster.time_ns(collective, nbytes, self.workers)
        assert self.link is not None  # noqa: S101 - one of the two is there
        return round(ring_ns(RINGS[collective], nbytes, self.workers, self.link))

    def send_ns(self, nbytes: float, sender: int, receiver: int) -> int:
        """Return how long a message between two workers takes, ns; they fill the nodes in their order.

        Args:
            nbytes: bytes of the message.
            sender: number of a worker, from 0.
            receiver: number of another one.
        """
        if self.cluster is not None:
            near = sender // self.cluster.gpus_per_node == receiver // self.cluster.gpus_per_node
            return self.cluster.time_ns("send_recv", nbytes, 2, per_node=2 if near else 1)
        assert self.link is not None  # noqa: S101 - one of the two is there
        return round(nbytes / self.link.bandwidth + self.link.latency_ns)

    def describe(self) -> str:
        """Return one sentence on where the times come from."""
        if self.cluster is not None:
            return self.cluster.describe()
        assert self.link is not None  # noqa: S101 - one of the two is there
        return (
            f"Collectives are rings of {self.workers} workers, each with {self.link.bandwidth:.4g} GB/s to "
            f"the next and {self.link.latency_ns / 1e3:.4g} us per step, as given."
        )


def network_of(
    graph: Graph,
    workers: int,
    *,
    cluster: str | None,
    bandwidth: float | None,
    latency_us: float = 0.0,
) -> Network:
    """Return the network that the options of an optimization mean.

    Args:
        graph: the graph of the trace.
        workers: how many there are.
        cluster: name of a cluster (`find_cluster`); by default machines of the trace's GPU, with as many
            nodes as the workers need.
        bandwidth: GB/s of each worker to the next in a ring, instead of a cluster.
        latency_us: us that a step of that ring costs besides.

    Raises:
        NotApplicableError: neither is given nor known.
        GraphError: both are given, or a value makes no sense.
    """
    if bandwidth is not None and cluster is not None:
        raise GraphError("cluster and bandwidth were both given; a network is one of the two")
    if bandwidth is not None:
        if bandwidth <= 0 or latency_us < 0:
            raise GraphError(
                f"bandwidth must be above 0 and latency_us 0 or more, not {bandwidth:g} and {latency_us:g}"
            )
        return Network(workers, None, Link(bandwidth, latency_us * 1e3))
    if latency_us:
        raise GraphError("latency_us goes with bandwidth; a cluster has its own latencies")
    return Network(workers, find_cluster(cluster or machine_of(graph)).holding(workers), None)


def machine_of(graph: Graph) -> str:
    """Return the name of the cluster that a fake world is meant for, else that the trace's GPU stands in as a rule.

    Raises:
        NotApplicableError: the GPU is unknown, or no machine is usual for it.
    """
    if (world := graph.recorded.metadata.get("fake_world")) and world.get("cluster"):
        return str(world["cluster"])
    try:
        device = device_of(graph)
    except NotApplicableError:
        raise NotApplicableError(
            "which network the workers have is not known; give --cluster or --bandwidth in GB/s"
        ) from None
    if device.machine is None:
        raise NotApplicableError(
            f"which network joins the workers of a {device.name} is not known: no machine is usual for it; "
            "give --cluster or --bandwidth in GB/s"
        )
    return device.machine


def cluster_of_world(trace: Trace) -> Cluster:
    """Return the cluster that a fake world is meant for.

    Raises `GraphError` if none is named, or it is too small.
    """
    world = trace.metadata["fake_world"]
    if world.get("cluster") is None:
        raise GraphError(
            f"recorded in a fake world of {world['world_size']:,} ranks, where collectives take no time; name "
            "their machines with --cluster, such as dgx-h100, or a file of your own; for a change that has an "
            "option of that name, when it is recorded"
        )
    return find_cluster(world["cluster"]).holding(world["world_size"])


def tasks_of_experts(graph: Graph) -> np.ndarray:
    """Return the tasks of a GPU, else of the CPU, between each all-to-all that sends tokens and the one back.

    Raises `GraphError` where all-to-alls are of no group or of several, or one of them has no way back.
    """
    sent = graph.select(kind="cpu", name="^fake:all_to_all$")
    work = graph.select(kind="kernel") or graph.select(kind="cpu")
    if len(sent) % 2 or len({*sent.group}) != 1:
        raise GraphError(NO_EXPERTS)
    begin = graph.measured_start_ns + graph.rank * (graph.measured_start_ns.max() + 1)
    begun = begin[np.where(work.launch >= 0, work.launch, work.ids)]
    found: np.ndarray = work.ids[np.searchsorted(np.sort(begin[sent.ids]), begun, "right") % 2 == 1]
    return found


def on_cluster(graph: Graph, cluster: Cluster | None) -> Graph:
    """Return the graph of a fake world whose collectives take their time on a cluster, none without one.

    Our own calls take none. Ranks fill the nodes in their order, and nobody comes late: what the other ranks
    do is not known. A message between two ranks that were both recorded goes when both have asked for it.
    """
    trace = graph.recorded
    duration = graph.duration_ns.copy()
    duration[graph.select(kind="cpu", name=OWN).ids] = 0
    tasks = graph.select(kind="collective")
    ranks_of = {group["name"]: group["ranks"] for group in trace.metadata.get("groups", ())}
    busier = trace.metadata["fake_world"].get("imbalance", 1.0)
    if busier > 1:
        experts = tasks_of_experts(graph)
        duration[experts] = np.round(duration[experts] * busier)
    keys = zip(
        tasks.collective,
        np.where(tasks.collective == "all_to_all", tasks.bytes * busier, tasks.bytes).tolist(),
        tasks.group,
        trace["peer"][tasks.row].tolist(),
        tasks.rank.tolist(),
        strict=True,
    )
    known: dict[tuple[Any, ...], int] = {}
    messages: dict[tuple[Any, ...], tuple[list[int], list[int]]] = {}  # sent and received
    for _, task, key in sorted(zip(tasks.row.tolist(), tasks.ids.tolist(), keys, strict=True)):
        operation, nbytes, group, peer, rank = key
        own = rank if "ranks" in trace.metadata else trace.metadata["fake_world"]["rank"]
        if operation in ("send", "recv"):
            pair = (own, peer) if operation == "send" else (peer, own)
            messages.setdefault((group, *pair), ([], []))[operation == "recv"].append(task)
        if key not in known and cluster is not None:
            ranks = [own, peer] if operation in POINT_TO_POINT else ranks_of.get(group)
            if not ranks:
                raise GraphError(f"the trace does not say which ranks are in group {group}")
            together = max(Counter(rank // cluster.gpus_per_node for rank in ranks).values())
            size = bytes_of_message(operation, max(nbytes, 0), len(ranks))
            known[key] = cluster.time_ns(operation, size, len(ranks), per_node=together)
        duration[task] = known.get(key, 0)
    found = graph.retimed(duration, graph.gap_ns)
    for (_, sender, receiver), ends in messages.items():
        sent, received = map(len, ends)
        if all(ends) and sent != received:
            raise GraphError(
                f"rank {sender} sends {sent} messages to rank {receiver}, which receives {received}: their "
                "stages were not recorded over the same steps"
            )
        for asked, other in (ends, ends[::-1]) if all(ends) else ():
            found.link(graph.launch[asked], other, cause=Cause.COMMUNICATION)
    return found
