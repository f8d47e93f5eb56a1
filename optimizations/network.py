"""A faster or slower network: the transfers of the recorded collectives by a factor."""

from __future__ import annotations

from daydream.optimizations._gradient_collectives import doubt_waiting, transfers_of, waiting_ns

from daydream import Graph, GraphError
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
memory = unchanged


def network(graph: Graph, *, bandwidth_factor: float = 1.0, latency_ns: float = 0.0) -> None:
    """Predict the step time on a network of another bandwidth or latency.

    The transfer of each collective takes 1/`bandwidth_factor` of its time, and `latency_ns`
    more. Waiting for peers is not scaled where the ranks were recorded together: it comes out
    of the simulation. Waiting for ranks that were not recorded cannot be told from the transfer and is
    scaled with it, so that the gain of a faster network is an upper bound there; the range reaches to
    where all of it was waiting.

    Assumes that collectives are bound by bandwidth: the latency that is in the recorded times
    is scaled too. Not modelled: another algorithm that the library would choose.

    Args:
        bandwidth_factor: How many times the bandwidth.
        latency_ns (ns): Latency to add to each collective.
    """
    if bandwidth_factor <= 0 or latency_ns < 0:
        raise GraphError(
            f"bandwidth_factor must be above 0 and latency_ns 0 or more, "
            f"not {bandwidth_factor:g} and {latency_ns:g}"
        )
    collectives = graph.select(kind="collective")
    collectives.need("collectives", lacks="ranks")
    transfers = transfers_of(collectives)
    transfers.need("transfers of collectives")
    if bandwidth_factor == 1 and latency_ns == 0:
        graph.does_not_apply("a bandwidth_factor of 1 and no latency leave the network as it is")
    waited_ns = waiting_ns(transfers)
    transfers.set(duration_ns=transfers.duration_ns / bandwidth_factor + latency_ns)
    doubt_waiting(transfers, waited_ns)
    if waited_ns.any():
        graph.note(
            "Not all ranks were recorded together: what transfers took may be waiting for peers; "
            "the range reaches to that."
        )
