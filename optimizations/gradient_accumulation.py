"""Gradient accumulation: several batches go forward and backward before one optimizer step."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.transforms import stages

STAGE = stages.WORK

PASSES = ("data", "forward", "loss", "backward")
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # of gradients; others exchange activations
WAIT = r"^wait for thread$"  # for another thread of the passes: needless where they run on one


def gradient_accumulation(graph: Graph, *, steps: int = 2) -> None:
    """Predict `steps` batches of the recorded size for each optimizer step.

    The forward pass, loss and backward pass of a step run `steps` times, and so does what the
    trace shows of loading a batch; the optimizer runs once. Gradients are reduced with the
    last batch only, as under `no_sync` of DistributedDataParallel; other collectives run with
    each batch. The repeated backward work runs on the thread of the forward pass, as
    `backward()` returns when it is done.

    Not modelled: the addition of a gradient to the one that is there already (the trace has
    the first of a step, which is stored); memory; convergence with the larger batch.
    """
    if steps < 1:
        raise GraphError(f"steps must be 1 or more, not {steps}")
    passes = graph.select(phase=PASSES)
    reductions = passes.where(kind="collective", phase="backward", collective=REDUCTIONS)
    passes = passes - reductions - reductions.launches() - passes.where(name=WAIT)
    backward = passes.where(phase="backward").need("work in the backward pass")
    optimizer = graph.select(phase="optimizer").need("optimizer step; gradients may be accumulated already")
    trained = set(backward.group_by("rank", "step").keys) & set(optimizer.group_by("rank", "step").keys)
    groups = passes.group_by("rank", "step")
    groups = groups.where(np.array([key in trained for key in groups.keys], bool))
    if not len(groups):
        graph.does_not_apply("no step has both a backward pass and an optimizer step")
    computing = groups.tasks.where(phase=("forward", "loss", "backward")).group_by("rank", "step")
    place = {key: number for number, key in enumerate(computing.keys)}
    begin = computing.take(np.array([place[key] for key in groups.keys]))

    groups.repeat(steps - 1, before=begin.first())
    graph.note(
        f"A step now takes {steps} batches: for the throughput, compare its time with {steps} old steps."
    )
    if len(set(passes.rank.tolist())) > 1:
        graph.note("Repeated collectives do not wait for other ranks.")
    if not len(passes.where(phase="data")):
        graph.note(
            "The trace shows no loading of data; if it holds up the steps, it does so for every batch."
        )
