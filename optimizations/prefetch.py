"""Prefetch: the next batch is copied to the device on a stream of its own while a step computes."""

from __future__ import annotations

import numpy as np
from daydream.optimizations.pinned_memory import pinned_memory

from daydream import Graph
from daydream.costs import PAGEABLE, TO_DEVICE
from daydream.memory import Allocations
from daydream.transforms import stages

STAGE = stages.INPUT
CODE = 'with torch.cuda.stream(copies): following = batch.to("cuda", non_blocking=True)'

STREAM = "prefetch stream"


def prefetch(graph: Graph, *, least_kb: float = 64.0) -> None:
    """Predict inputs that are copied one step ahead on their own stream.

    Copies to the device of at least `least_kb` that share a stream with kernels move to a
    stream of their own, and no kernel waits for them: the batch of a step was copied during
    the one before. So they cost nothing until they take longer than a step. That needs pinned
    memory and `non_blocking=True`: copies from pageable memory change as by pinned-memory.
    Smaller copies are assumed to be scalars and indices of the computation.

    Memory: a batch is on the device from when the one before it is.

    Not modelled: kernels that the link's traffic slows.
    """
    copies = graph.select(kind="memcpy", name=TO_DEVICE, phase=("data", "forward", "other", "optimizer"))
    copies.need("copies to the device before the backward pass", lacks="device")
    copies = copies.on_lanes_of(graph.select(kind="kernel"))
    if not len(copies):
        graph.does_not_apply("copies to the device have a stream of their own already")
    copies = copies.where(lambda tasks: tasks.bytes >= least_kb * 1024)
    copies.need(f"copies to the device of {least_kb:g} KiB or more on a stream with kernels")
    if len(copies.where(name=PAGEABLE)):
        pinned_memory(graph)
    copies.move(STREAM, follows=False, held_for=False)
    megabytes = copies.total("bytes") / max(len(copies.group_by("step")), 1) / 1e6
    graph.note(f"{megabytes:,.3g} MB per step are copied ahead.")


def memory(held: Allocations, *, least_kb: float = 64.0) -> None:
    """Let inputs be on the device from when those of the step before are."""
    rows = np.flatnonzero(held.where(kind="input", on="gpu") & (held["recorded_bytes"] >= least_kb * 1024))
    begin, step = held["begin"][rows], held["step"][rows]
    for rank in np.unique(held["rank"][rows]).tolist():
        own = rows[held["rank"][rows] == rank]
        first = {
            one: begin[(step == one) & (held["rank"][rows] == rank)].min()
            for one in set(held["step"][own].tolist())
        }
        held["begin"][own] = [first.get(one - 1, -np.inf) for one in held["step"][own].tolist()]
