"""Collectives that reduce gradients, as a trace of several ranks holds them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from daydream import Graph, NotApplicableError, Selection
from daydream.model import joint_update, repeated_blocks

ARRIVAL = r"^arrival$"  # where a member of a collective stands until all peers are there
FAKE_WORLD = (
    "The program's own division: record it as one of {0} ranks, `daydream collect --world {0} SCRIPT`."
)
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # of gradients; others exchange activations


def refuse_ranks(graph: Graph) -> None:
    """Refuse to divide among GPUs what ranks share already."""
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")


def families_of_blocks(graph: Graph) -> list[list[str]]:
    """Return the blocks that the model repeats, a list a family, or raise `NotApplicableError`."""
    graph.select(layer="*").need("layers, by which blocks are found; they are recorded by `daydream collect`")
    families = repeated_blocks(graph)
    if not families:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    return families


def transfers_of(collectives: Selection) -> Selection:
    """Return the collectives without what only waits for peers."""
    return collectives - collectives.where(name=ARRIVAL)


def modelled(graph: Graph) -> bool:
    """Return whether the times of transfers are a network model's, of a trace from a fake world."""
    return "fake_world" in graph.recorded.metadata


def waiting_ns(transfers: Selection) -> Any:
    """Return how much of each transfer may be waiting for peers, ns: all of it where ranks are missing.

    No network changes that. Where all ranks were recorded together waiting comes out of the simulation.
    """
    graph = transfers.graph
    size = graph.recorded.metadata.get("world_size")
    missing = isinstance(size, int) and len(set(transfers.rank.tolist())) < size
    apart = missing or not len(graph.select(kind="collective", name=ARRIVAL))
    return transfers.duration_ns * ((apart and not modelled(graph)) & (transfers.row >= 0))


def doubt_waiting(transfers: Selection, waited_ns: Iterable[float]) -> None:
    """Doubt what a change made of transfers that may have waited for peers, which it does not change.

    They may take so long instead: longer than a better network makes them, shorter than a worse one.
    """
    pairs = list(zip(waited_ns, transfers.duration_ns.tolist(), strict=True))
    if any(waited for waited, _ in pairs):
        off = [(waited - now) / max(now, 1) if waited > 0 else 0 for waited, now in pairs]
        transfers.doubt(off, waiting=True)


def sized_all_reduces(graph: Graph) -> Selection:
    """Return the all-reduces of gradients whose size is known, or raise `NotApplicableError`."""
    reduced = graph.select(kind="collective", collective="all_reduce", phase="backward")
    reduced = transfers_of(reduced).need("all-reduce in the backward pass", lacks="ranks")
    return reduced.where(lambda tasks: tasks.bytes > 0).need("all-reduce of known size")


def move_to_compute(tasks: Selection, lane: str) -> None:
    """Let kernels run on the compute stream, unless they are there already."""
    here = zip(tasks.lane, tasks.rank, strict=True)
    if lane not in {name.removeprefix(f"rank {rank} ") for name, rank in here}:
        tasks.move(lane, follows=False)


def resize_parameters(graph: Graph, how: str, tensors: float, elements: float) -> Selection:
    """Let updates and reductions of gradients be of so many times the parameters; return the joint updates.

    `tensors` counts parameters, `elements` their numbers; `how` says that they grow or shrink.
    """
    joint, time = joint_update(graph, tensors, elements)
    reductions = transfers_of(graph.select(kind="collective", phase="backward", collective=REDUCTIONS))
    if len(joint):
        joint.set(duration_ns=time)
    if len(reductions):
        reductions.scale(elements)
        graph.note(f"Reductions of gradients {how} with the gradients, waiting for peers included.")
    return joint
