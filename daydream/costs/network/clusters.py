"""Clusters: GPUs in nodes, what joins them, and what a collective takes on them.

A `Cluster` is one that people name (`dgx-a100:4` is four nodes), one described in a small file
(`cluster_names`), or either of these fitted to measurements (`fitting`); it says which in `source`. How a
collective goes is NCCL's choice (`nccl`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

from daydream.costs.network.nccl import COLLECTIVES, SIMPLE, Group, Link, choose, ring_ns
from daydream.errors import DaydreamError, GraphError
from daydream.text import counted

BARRIER_BYTES = 4  # NCCL has no barrier; torch reduces one element


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs, which tell how long collectives take.

    Attributes:
        name: what it is called.
        nodes: how many there are.
        gpus_per_node: GPUs of each.
        intra: link of a GPU to its peers in the node.
        inter: link of a whole node to the others.
        source: a sentence on where the figures come from, for the notes of a result.
        nodes_given: the number of nodes was given: there are no more.
        nvls: part of the bandwidth at which a node's switch adds up, 0 where it does not.
        ll128: whether LL128 is safe on the links of a node.
    """

    name: str
    nodes: int
    gpus_per_node: int
    intra: Link
    inter: Link
    source: str
    nodes_given: bool = field(default=False, compare=False)
    nvls: float = 0.0
    ll128: bool = False

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise DaydreamError(
                f"cluster {self.name!r} was given {self.nodes} nodes of {self.gpus_per_node} GPUs; "
                "a whole number of 1 or more is needed"
            )

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node

    def holding(self, world_size: int) -> Cluster:
        """Return this cluster, with more nodes if it has not enough for so many GPUs.

        Raises:
            GraphError: it has not enough, and the number of nodes was given.
        """
        if self.nodes_given and world_size > self.world_size:
            raise GraphError(
                f"{world_size:,} workers do not fit: cluster {self.name!r} was given "
                f"{counted(self.nodes, 'node')} of {counted(self.gpus_per_node, 'GPU')}. Give it "
                f"{ceil(world_size / self.gpus_per_node):,} nodes, or no number for as many as are needed."
            )
        return replace(self, nodes=max(self.nodes, ceil(world_size / self.gpus_per_node)))

    def scaled(self, *, bandwidth: float = 1.0, latency: float = 1.0) -> Cluster:
        """Return this cluster with all its links' bandwidths and latencies multiplied."""
        return replace(
            self,
            intra=self.intra.scaled(bandwidth, latency),
            inter=self.inter.scaled(bandwidth, latency),
        )

    def describe(self) -> str:
        """Return one sentence: size, bandwidths, and where the figures come from."""
        beyond = f", {self.inter.bandwidth:.4g} GB/s out of a node" if self.nodes > 1 else ""
        return (
            f"Collectives are those of {self.name}, {counted(self.nodes, 'node')} of "
            f"{counted(self.gpus_per_node, 'GPU')}: {self.intra.bandwidth:.4g} GB/s between the GPUs of a "
            f"node{beyond}; {self.source}."
        )

    def time_ns(
        self,
        collective: str,
        nbytes: float,
        world_size: int | None = None,
        *,
        per_node: int | None = None,
    ) -> int:
        """Return how long a collective takes when all members are there, ns; one member takes no time.

        A group with fewer members in a node than the node has GPUs leaves others their share of the way out.

        Args:
            collective: `all_reduce`, `reduce_scatter`, `all_gather`, `broadcast`, `all_to_all`, `send_recv`,
                ...
            nbytes: the larger of what a member gives and what it gets, bytes (`bytes_of_message`).
            world_size: members of the group; all GPUs if not given.
            per_node: how many of them share a node; as many as fit if not given.

        Raises:
            DaydreamError: no cost is known for this collective, or the group makes no sense.
        """
        if collective not in COLLECTIVES:
            raise DaydreamError(
                f"no cost is known for the collective {collective!r}; known are {', '.join(COLLECTIVES)}"
            )
        if collective == "barrier":
            collective, nbytes = "all_reduce", BARRIER_BYTES
        group = self.group(nbytes, world_size, per_node)
        return round(choose(collective, nbytes, group)[0]) if group.members > 1 else 0

    def all_reduce_ns(self, nbytes: float, world_size: int | None = None) -> int:
        """Return how long an all-reduce of so many bytes takes, ns."""
        return self.time_ns("all_reduce", nbytes, world_size)

    def hierarchical_all_reduce_ns(self, nbytes: float, world_size: int | None = None) -> int:
        """Return how long an all-reduce inside the nodes, across them and back inside takes, ns.

        After Cho et al., "BlueConnect" (2019). Every GPU of a node reduces its own share across the nodes at the
        same time as the others, so the node's whole bandwidth carries the data once.
        """
        group = self.group(nbytes, world_size)
        stages = (group.together > 1) * 2 + (group.nodes > 1)
        inside = ring_ns(2, nbytes, group.together, group.intra)
        across = ring_ns(2, nbytes, group.nodes, group.inter)
        return round(inside + across + stages * SIMPLE.base_ns)

    def group(self, nbytes: float, world_size: int | None, per_node: int | None = None) -> Group:
        """Return the members of a collective of so many bytes as NCCL sees them.

        Raises `DaydreamError` if they make no sense, or do not fit.
        """
        members = self.world_size if world_size is None else world_size
        together = min(members, self.gpus_per_node) if per_node is None else per_node
        if nbytes < 0 or members < 1 or not 1 <= together <= self.gpus_per_node:
            raise DaydreamError(
                f"a collective of {nbytes:g} bytes among {members} GPUs, {together} in a node of "
                f"{self.gpus_per_node}, makes no sense"
            )
        if ceil(members / together) > self.nodes:
            raise DaydreamError(
                f"cluster {self.name!r} has {counted(self.nodes, 'node')} of "
                f"{counted(self.gpus_per_node, 'GPU')}; {members} GPUs do not fit. "
                f"Name more nodes, as in {self.name}:{ceil(members / together)}."
            )
        way_out = self.inter.scaled(bandwidth=min(together / self.gpus_per_node, 1.0))
        return Group(members, together, self.intra, way_out, self.nvls, self.ll128)
