"""Clusters: GPUs in nodes, what joins them, and what a collective takes on them.

A `Cluster` is one that people name (`dgx-a100:4` is four nodes), one described in a small file
(`cluster_names`), or either of these fitted to measurements (`calibration`); it says which in
`source`. Of the algorithms and protocols that NCCL has for a collective it takes the one that is
fastest by these models, as NCCL itself chooses by models of this form.

What a step costs is split as in NCCL's tuning model (src/graph/tuning.cc, versions 2.8 to 2.19): a
fixed cost of the protocol, a latency for every step, and the bytes over the bandwidth of the
slowest link in the ring. `Simple` sends bare data and synchronizes for each chunk. `LL` sends a flag
with every word and needs no synchronization: a fraction of the latency for a fraction of the
bandwidth. (LL128 is left out: by NCCL's own figures it would beat Simple up to several MB, but
measured all-reduces of A100s take longer than its model says.)

What a collective takes by its algorithm, from bytes, members, bandwidth and latency.

Units: bytes, GB/s (1e9 bytes a second, so bytes / (GB/s) is ns), ns. `nbytes` is always the
larger of what a member gives and what it gets, as nccl-tests counts: the whole gradient of an
all-reduce, the gathered result of an all-gather, the whole input of a reduce-scatter, all that a
member sends in an all-to-all. One member moves nothing and takes no time.

Sources of the formulas: Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH" (2005) for latency and bandwidth terms; Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms" (2009) for the ring; Cho et al., "BlueConnect" (2019)
for the hierarchical all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import TYPE_CHECKING

from daydream.errors import DaydreamError, GraphError
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.costs.network.fitting import StepCurve

RINGS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}  # rounds of n-1 steps
CHAINS = ("broadcast", "reduce")
ROOTED = ("gather", "scatter")
POINT_TO_POINT = ("send_recv", "send", "recv")
COLLECTIVES = (*RINGS, *CHAINS, *ROOTED, "all_to_all", *POINT_TO_POINT, "barrier")
BARRIER_BYTES = 4  # NCCL has no barrier; torch reduces one element
TREE_BANDWIDTH = 0.9  # of a ring's; NCCL's tuning.cc


@dataclass(frozen=True)
class Protocol:
    """How data is passed on: a fixed cost, and its share of a link's latency and bandwidth.

    The last of a ring's steps only takes data over. It overlaps with its transfer but for the last
    slice of the chunk.

    Attributes:
        name: as NCCL names it.
        base_ns: fixed cost of a collective, ns.
        latency: part of a link's latency, 0 to 1.
        bandwidth: part of a link's bandwidth, 0 to 1.
        tail: the last slice's part of the chunk, 0 to 1.
    """

    name: str
    base_ns: float
    latency: float
    bandwidth: float
    tail: float


PROTOCOLS = (
    # baseLat of the ring; a chunk is passed in two slices (ALLREDUCE_CHUNKSTEPS / SLICESTEPS).
    Protocol("Simple", 8_400, 1.0, 1.0, 0.5),
    # hwLat of LL over that of Simple is 0.18 for NVLink, PCI and network alike; llMaxBws over the
    # ring bandwidth of the same machine is 39 / 120 for V100, 87.7 / 240 for A100, 141 / 371 for H100.
    Protocol("LL", 6_600, 0.18, 0.35, 0.0),
)


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
        curve: times that were measured inside a node, for one that was fitted.
        nodes_given: the number of nodes was given: there are no more.
    """

    name: str
    nodes: int
    gpus_per_node: int
    intra: Link
    inter: Link
    source: str
    curve: StepCurve | None = field(default=None, compare=False)
    nodes_given: bool = field(default=False, compare=False)

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
            curve=None if self.curve is None else self.curve.scaled(bandwidth, latency),
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
        """Return how long a collective takes when all members are there, ns.

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
        members = self.world_size if world_size is None else world_size
        together = min(members, self.gpus_per_node) if per_node is None else per_node
        self._check(collective, nbytes, members, together)
        if members == 1:
            return 0
        if collective == "barrier":
            collective, nbytes = "all_reduce", BARRIER_BYTES
        nodes = ceil(members / together)
        if collective in RINGS and nodes == 1 and self.curve is not None:
            return round(self.curve.time_ns(RINGS[collective], nbytes, members))
        return round(self.modelled_ns(collective, nbytes, members, together))

    def modelled_ns(self, collective: str, nbytes: float, members: int, per_node: int) -> float:
        """Return the time by the formulas alone, of the fastest protocol and algorithm, ns."""
        return min(
            self._protocol_ns(collective, nbytes, members, per_node, way) for way in PROTOCOLS
        )

    def all_reduce_ns(self, nbytes: float, world_size: int | None = None) -> int:
        """Return how long an all-reduce of so many bytes takes, ns."""
        return self.time_ns("all_reduce", nbytes, world_size)

    def hierarchical_all_reduce_ns(self, nbytes: float, world_size: int | None = None) -> int:
        """Return how long an all-reduce inside the nodes, across them and back inside takes, ns.

        After Cho et al., "BlueConnect" (2019).
        """
        members = self.world_size if world_size is None else world_size
        together = min(members, self.gpus_per_node)
        self._check("all_reduce", nbytes, members, together)
        stages = (together > 1) * 2 + (members > together)
        times = hierarchical_all_reduce_ns(
            nbytes, together, ceil(members / together), self.intra, self._way_out(together)
        )
        return round(times + stages * PROTOCOLS[0].base_ns)

    def _way_out(self, per_node: int) -> Link:
        """Return the link out of a node for a group with so many members in it."""
        return self.inter.scaled(bandwidth=min(per_node / self.gpus_per_node, 1.0))

    def _protocol_ns(
        self, collective: str, nbytes: float, members: int, together: int, way: Protocol
    ) -> float:
        nodes = ceil(members / together)
        intra = self.intra.scaled(way.bandwidth, way.latency)
        inter = self._way_out(together).scaled(way.bandwidth, way.latency)
        slowest = min([intra.bandwidth] * (together > 1) + [inter.bandwidth] * (nodes > 1))
        whole = Link(slowest)
        if collective in POINT_TO_POINT:
            return way.base_ns + chain_broadcast_ns(nbytes, 2, intra if nodes == 1 else inter)
        if collective == "all_to_all":
            return way.base_ns + hierarchical_all_to_all_ns(nbytes, together, nodes, intra, inter)
        hops = nodes - 1  # steps of a round that leave a node
        if collective in CHAINS:
            latency = (members - 1 - hops) * intra.latency_ns + hops * inter.latency_ns
            return way.base_ns + latency + chain_broadcast_ns(nbytes, members, whole)
        if collective in ROOTED:
            last = intra if nodes == 1 else inter
            return way.base_ns + last.latency_ns + direct_all_to_all_ns(nbytes, members, whole)
        rounds = RINGS[collective]
        latency = rounds * hops * inter.latency_ns
        latency += (rounds * (members - 1 - hops) + 1) * intra.latency_ns
        moved = ring_ns(rounds, nbytes, members, whole)
        ring = way.base_ns + latency + moved + way.tail * nbytes / members / slowest
        if collective != "all_reduce" or nodes == 1:
            return ring
        depth = (together - 1) * intra.latency_ns + ceil(log2(nodes)) * inter.latency_ns
        return min(ring, way.base_ns + 2 * depth + 2 * nbytes / (TREE_BANDWIDTH * slowest))

    def _check(self, collective: str, nbytes: float, members: int, together: int) -> None:
        if collective not in COLLECTIVES:
            raise DaydreamError(
                f"no cost is known for the collective {collective!r}; known are {', '.join(COLLECTIVES)}"
            )
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


@dataclass(frozen=True)
class Link:
    """What joins neighbours.

    Attributes:
        bandwidth: GB/s (1e9 B/s) in one direction.
        latency_ns: ns that one step of an algorithm costs besides.

    Raises:
        DaydreamError: the bandwidth is not above 0, or the latency below it.
    """

    bandwidth: float
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or self.latency_ns < 0:
            raise DaydreamError(
                f"a link of {self.bandwidth:g} GB/s and {self.latency_ns:g} ns was described; "
                "a positive bandwidth and a latency of 0 or more are needed"
            )

    def scaled(self, bandwidth: float = 1.0, latency: float = 1.0) -> Link:
        """Return this link with its bandwidth and its latency multiplied."""
        return Link(self.bandwidth * bandwidth, self.latency_ns * latency)


def ring_ns(rounds: int, nbytes: float, world_size: int, link: Link) -> float:
    """Time of a ring: `rounds` (`RINGS`) of n-1 steps, each passing on 1/n of the data. Bandwidth optimal.

    An all-reduce is a reduce-scatter, of the input, and an all-gather, of the result.
    """
    return rounds * (world_size - 1) * (nbytes / world_size / link.bandwidth + link.latency_ns)


def chain_broadcast_ns(nbytes: float, world_size: int, link: Link) -> float:
    """Time of a pipelined broadcast (or reduce) along a chain: all data once, and a step to each member."""
    if world_size == 1:
        return 0.0
    return nbytes / link.bandwidth + (world_size - 1) * link.latency_ns


def direct_all_to_all_ns(nbytes: float, world_size: int, link: Link) -> float:
    """Time of an all-to-all in which all pairs talk at once: a member sends (n-1)/n of its data."""
    if world_size == 1:
        return 0.0
    return (world_size - 1) / world_size * nbytes / link.bandwidth + link.latency_ns


def hierarchical_all_reduce_ns(
    nbytes: float, per_node: int, nodes: int, intra: Link, inter: Link
) -> float:
    """Time of reduce-scatter inside the nodes, all-reduce across them, all-gather inside.

    Every GPU of a node reduces its own share across the nodes at the same time as the others, so the
    node's whole bandwidth (`inter.bandwidth`) carries the data once.
    """
    return ring_ns(2, nbytes, per_node, intra) + ring_ns(2, nbytes, nodes, inter)


def hierarchical_all_to_all_ns(
    nbytes: float, per_node: int, nodes: int, intra: Link, inter: Link
) -> float:
    """Time of a direct all-to-all over several nodes: the slower of what stays inside and what leaves.

    A node's GPUs share its way out, through which (nodes-1)/nodes of all they hold must go.
    """
    world_size = per_node * nodes
    inside = (per_node - 1) / world_size * nbytes / intra.bandwidth + intra.latency_ns
    if nodes == 1:
        return direct_all_to_all_ns(nbytes, world_size, intra)
    leaving = (nodes - 1) / nodes * per_node * nbytes / inter.bandwidth + inter.latency_ns
    return max(inside, leaving)


def bytes_of_message(collective: str, input_bytes: int, world_size: int) -> int:
    """Return the bytes that the times of a collective go by: the larger of what a member gives and gets.

    Args:
        collective: `all_gather`, `all_reduce`, ...
        input_bytes: bytes that a member puts in, as a trace's column `bytes` has them.
        world_size: how many members there are.
    """
    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes
