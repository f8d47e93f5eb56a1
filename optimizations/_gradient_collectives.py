"""Collectives that reduce gradients, as a trace of several ranks holds them."""

from __future__ import annotations

import numpy as np

from daydream import Graph, Selection
from daydream.model import joint_update

ARRIVAL = r"^arrival$"  # where a member of a collective stands until all peers are there
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # of gradients; others exchange activations


def transfers_of(collectives: Selection) -> Selection:
    """Return the collectives without what only waits for peers."""
    return collectives - collectives.where(name=ARRIVAL)


def waiting_ns(transfers: Selection) -> np.ndarray:
    """Return how much of each transfer may be waiting for peers, ns: all of it where ranks are missing.

    No network changes that. Where all ranks were recorded together waiting comes out of the simulation.
    """
    graph = transfers.graph
    size = graph.trace.metadata.get("world_size") if graph.trace is not None else None
    missing = isinstance(size, int) and len(set(transfers.rank.tolist())) < size
    apart = missing or not len(graph.select(kind="collective", name=ARRIVAL))
    found: np.ndarray = np.where(apart & (transfers.row >= 0), transfers.duration_ns, 0)
    return found


def doubt_waiting(transfers: Selection, waited_ns: np.ndarray) -> None:
    """Doubt what a change made of transfers that may have waited for peers, which it does not change.

    They may take so long instead: longer than a better network makes them, shorter than a worse one.
    """
    if waited_ns.any():
        now = transfers.duration_ns
        transfers.doubt(np.where(waited_ns > 0, waited_ns - now, 0) / np.maximum(now, 1))


def sized_all_reduces(graph: Graph) -> Selection:
    """Return the all-reduces of gradients whose size is known, or raise `NotApplicableError`."""
    reduced = graph.select(kind="collective", collective="all_reduce", phase="backward")
    reduced = transfers_of(reduced).need("all-reduce in the backward pass", lacks="ranks")
    return reduced.where(lambda tasks: tasks.bytes > 0).need("all-reduce of known size")


def move_to_compute(tasks: Selection, lane: str) -> None:
    """Let kernels run on the compute stream, unless they are there already."""
    if lane not in {
        name.removeprefix(f"rank {rank} ") for name, rank in zip(tasks.lane, tasks.rank, strict=True)
    }:
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
