"""NCCL's choice: the algorithm and protocol that a collective takes, and how long it lasts with them.

NCCL estimates each pair of algorithm and protocol by a fixed cost, a latency for every step, and the bytes
over a share of the bandwidth, and takes the fastest (src/graph/tuning.cc, version 2.28). `WAYS` has those
figures, as parts of what a step costs with `Simple` in a ring, which a cluster gives. `Simple` sends bare data
and synchronizes for each chunk. `LL` sends a flag with every word and needs no synchronization: a fraction of
the latency for a fraction of the bandwidth. `LL128` sends a flag with every 128 bytes, over NVLink alone. With
`NVLS` the switch adds up and hands on: a GPU sends its data once, and 1/n of the sum. `PAT` gathers along trees,
where each node has one member.

Where measured times differ from NCCL's estimate they count. By the all-reduces of 2 to 8 A100 and H100 in
aiconfigurator's tables (Apache-2.0) `LL` reaches 0.45 of the bandwidth, a ring with chunks lasts half a share
longer than its steps, so does an exchange of all with all, and `NVLS` takes as long as 18 steps before its
transfer. H200, B200, B300 and GB200, of which nothing was used but the latency of a step, judge it
(docs/distributed.md).

Units: bytes, GB/s (1e9 bytes a second, so bytes / (GB/s) is ns), ns. `nbytes` is always the larger of what a
member gives and what it gets, as nccl-tests counts: the whole gradient of an all-reduce, the gathered result of
an all-gather, the whole input of a reduce-scatter, all that a member sends in an all-to-all.

Sources of the formulas: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
in MPICH" (2005); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009) for the ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

from daydream.errors import DaydreamError

RINGS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}  # rounds of n-1 steps
CHAINS = ("broadcast", "reduce")
ROOTED = ("gather", "scatter")
POINT_TO_POINT = ("send_recv", "send", "recv")
COLLECTIVES = (*RINGS, *CHAINS, *ROOTED, "all_to_all", *POINT_TO_POINT, "barrier")


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


class Way(NamedTuple):
    """An algorithm with a protocol, as NCCL names them.

    Attributes:
        algorithm: ring, tree, NVLS or PAT.
        protocol: LL, LL128 or Simple.
        base_ns: fixed cost of a collective, ns.
        intra: what a step inside a node costs, of a link's latency.
        inter: what a step out of a node costs, likewise.
        bandwidth: part of a link's bandwidth, 0 to 1.
        tail: how many shares of the data the last step lasts longer: it takes data over, which overlaps with
            its transfer but for the last slice of the chunk.
    """

    algorithm: str
    protocol: str
    base_ns: float
    intra: float
    inter: float
    bandwidth: float
    tail: float = 0.0


LL_BANDWIDTH = 0.45  # of a link's
TAIL = 0.5  # a chunk is passed in two slices (ALLREDUCE_CHUNKSTEPS / SLICESTEPS)
NVLS_STEPS = 18.0  # that it lasts before its transfer
SIMPLE = Way("ring", "Simple", 8_400, 1.0, 1.0, 1.0, TAIL)
WAYS = (
    Way("ring", "LL", 6_600, 0.18, 0.19, LL_BANDWIDTH),
    Way("ring", "LL128", 14_000, 0.56, 0.29, 0.92, TAIL),
    SIMPLE,
    Way("tree", "LL", 6_800, 0.18, 0.36, 0.24),
    Way("tree", "LL128", 14_000, 0.37, 0.61, 0.86),
    Way("tree", "Simple", 8_400, 1.18, 1.0, 0.92),
    Way("NVLS", "Simple", 8_400, NVLS_STEPS, 1.0, 0.94),  # 15 of 16 channels
    Way("PAT", "Simple", 8_000, 0.0, 0.29, 0.75, TAIL),
)
LL_ACROSS = 20.0  # GB/s that LL reaches at most out of a node
PAT_MEMBER_NS = 2_800  # of each member, besides the depth
LL_MESSAGE = 16_384  # bytes of a message between two, at most


class Group(NamedTuple):
    """The members of a collective and what joins them.

    Attributes:
        members: how many there are.
        together: how many of them share a node.
        intra: link of a GPU to its peers in the node.
        inter: the members' way out of a node, of all that share it.
        nvls: part of the bandwidth at which the node's switch adds up; 0 where it does not.
        ll128: whether LL128 is safe on the links of a node.
    """

    members: int
    together: int
    intra: Link
    inter: Link
    nvls: float = 0.0
    ll128: bool = False

    @property
    def nodes(self) -> int:
        """On how many nodes they are."""
        return ceil(self.members / self.together)

    @property
    def slowest(self) -> float:
        """The bandwidth of the slowest link between them, GB/s."""
        links = [self.intra] * (self.together > 1) + [self.inter] * (self.nodes > 1)
        return min(link.bandwidth for link in links)


def choose(collective: str, nbytes: float, group: Group) -> tuple[float, Way]:
    """Return how long a collective of two or more members takes, ns, and the way that NCCL takes for it."""
    ways = [way for way in WAYS if way.protocol != "LL128" or group.ll128]
    times = [(_time_ns(way, collective, nbytes, group), way) for way in ways]
    return min((ns, way) for ns, way in times if ns is not None)


def _time_ns(way: Way, collective: str, nbytes: float, group: Group) -> float | None:
    """Return how long it takes one way; None where NCCL does not take it."""
    members, together, intra, inter, switch, _ = group
    nodes, rounds = group.nodes, RINGS.get(collective, 0)
    step, hop = way.intra * intra.latency_ns, way.inter * inter.latency_ns
    rate = group.slowest * way.bandwidth
    if way.protocol == "LL" and nodes > 1:
        rate = min(rate, LL_ACROSS)
    depth = ceil(log2(nodes))
    if way.algorithm == "ring":
        if not rounds:
            return _direct_ns(way, collective, nbytes, group, rate)
        steps, hops = rounds * (members - 1), rounds * (nodes - 1)
        latency = (steps - hops + 1) * step + hops * hop
        return way.base_ns + latency + (steps + way.tail) * nbytes / members / rate
    if way.algorithm == "tree" and collective == "all_reduce" and nodes > 1:
        return way.base_ns + 2 * ((together - 1) * step + depth * hop) + 2 * nbytes / rate
    if way.algorithm == "NVLS" and collective == "all_reduce" and switch and together > 2:
        moved = (1 + 1 / together) * nbytes / (intra.bandwidth * switch * way.bandwidth)
        if nodes > 1:  # a tree of nodes; two of them send both ways at once
            moved = max(
                moved, ring_ns(2, nbytes, members, Link(inter.bandwidth * (1 + (nodes == 2))))
            )
        return way.base_ns + step + 2 * depth * hop + moved
    if way.algorithm == "PAT" and rounds == 1 and nodes == members:
        latency = depth * hop + members * PAT_MEMBER_NS
        return way.base_ns + latency + (members - 1 + way.tail) / members * nbytes / rate
    return None


def _direct_ns(way: Way, collective: str, nbytes: float, group: Group, rate: float) -> float | None:
    """Return how long messages between pairs take, or a chain of members."""
    members, together, nodes = group.members, group.together, group.nodes
    intra = group.intra.scaled(way.bandwidth, way.intra)
    inter = group.inter.scaled(way.bandwidth, way.inter)
    last = intra if nodes == 1 else inter
    if collective in CHAINS:  # all data once, and a step to each member
        latency = (members - nodes) * intra.latency_ns + (nodes - 1) * inter.latency_ns
        return way.base_ns + latency + nbytes / rate
    message = nbytes if collective in POINT_TO_POINT else nbytes / members
    if way.protocol == "LL128" or (way.protocol == "LL" and message > LL_MESSAGE):
        return None
    if collective in POINT_TO_POINT:
        return way.base_ns + last.latency_ns + nbytes / last.bandwidth
    if collective in ROOTED:
        return way.base_ns + last.latency_ns + (members - 1) * message / rate
    inside = (together - 1 + way.tail) * message / intra.bandwidth + intra.latency_ns
    if nodes == 1:
        return way.base_ns + inside
    # A node's GPUs share its way out, through which (nodes-1)/nodes of all they hold must go.
    leaving = (nodes - 1) / nodes * together * nbytes / inter.bandwidth + inter.latency_ns
    return way.base_ns + max(inside, leaving)


def ring_ns(rounds: int, nbytes: float, world_size: int, link: Link) -> float:
    """Time of a ring: `rounds` (`RINGS`) of n-1 steps, each passing on 1/n of the data. Bandwidth optimal.

    An all-reduce is a reduce-scatter, of the input, and an all-gather, of the result.
    """
    return rounds * (world_size - 1) * (nbytes / world_size / link.bandwidth + link.latency_ns)


def bytes_of_message(collective: str, input_bytes: int, world_size: int) -> int:
    """Return the bytes that the times of a collective go by: the larger of what a member gives and gets.

    Args:
        collective: `all_gather`, `all_reduce`, ...
        input_bytes: bytes that a member puts in, as a trace's column `bytes` has them.
        world_size: how many members there are.
    """
    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes
