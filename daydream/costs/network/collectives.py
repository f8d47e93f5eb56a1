"""What a collective takes by its algorithm, from bytes, members, bandwidth and latency.

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

from dataclasses import dataclass

from daydream.errors import DaydreamError


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


def ring_all_reduce_ns(nbytes: float, world_size: int, link: Link) -> float:
    """Time of a ring all-reduce: 2(n-1) steps, each passing on 1/n of the data. Bandwidth optimal."""
    steps = 2 * (world_size - 1)
    return steps * (nbytes / world_size / link.bandwidth + link.latency_ns)


def ring_reduce_scatter_ns(nbytes: float, world_size: int, link: Link) -> float:
    """Time of a ring reduce-scatter: n-1 steps of 1/n of the input; the first half of an all-reduce."""
    return (world_size - 1) * (nbytes / world_size / link.bandwidth + link.latency_ns)


def ring_all_gather_ns(nbytes: float, world_size: int, link: Link) -> float:
    """Time of a ring all-gather: n-1 steps of 1/n of the result; the second half of an all-reduce."""
    return ring_reduce_scatter_ns(nbytes, world_size, link)


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
    inside = ring_reduce_scatter_ns(nbytes, per_node, intra) + ring_all_gather_ns(
        nbytes, per_node, intra
    )
    return inside + ring_all_reduce_ns(nbytes, nodes, inter)


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
