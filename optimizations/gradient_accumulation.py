"""Gradient accumulation: several batches go forward and backward before one optimizer step."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError, Selection
from daydream.transforms import need_room, stages

STAGE = stages.WORK
CODE = "if step % batches == 0: optimizer.step(); optimizer.zero_grad()"

COMPUTING = ("forward", "loss", "backward")
PASSES = ("data", *COMPUTING)
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # of gradients; others exchange activations


def gradient_accumulation(graph: Graph, *, batches: int = 2) -> None:
    """Predict `batches` batches of the recorded size for each optimizer step.

    The forward pass, loss and backward pass of a step run `batches` times, and so does what the
    trace shows of loading a batch; the optimizer runs once. Gradients are reduced with the
    last batch only, as under `no_sync` of DistributedDataParallel; other collectives run with
    each batch. The passes of a batch run on the threads they were recorded on, and the next batch
    begins when all of them are done, as `backward()` returns then.

    Not modelled: the addition of a gradient to the one that is there already (the trace has
    the first of a step, which is stored); memory; convergence with the larger batch.
    """
    if batches < 2:
        raise GraphError(
            f"batches must be 2 or more, not {batches}: the trace has one batch per step already"
        )
    passes = graph.select(phase=PASSES)
    reductions = passes.where(kind="collective", phase="backward", collective=REDUCTIONS)
    passes = passes - reductions - reductions.launches()
    backward = passes.where(phase="backward").need("work in the backward pass")
    optimizer = graph.select(phase="optimizer").need("optimizer step; gradients may be accumulated already")
    trained = set(backward.group_by("rank", "step").keys) & set(optimizer.group_by("rank", "step").keys)
    groups = passes.group_by("rank", "step")
    groups = groups.where(np.array([key in trained for key in groups.keys], bool))
    if not len(groups):
        graph.does_not_apply("no step has both a backward pass and an optimizer step")
    need_room(len(groups.tasks) * (batches - 1), "batches", batches)
    computing = groups.tasks.where(phase=COMPUTING).group_by("rank", "step")
    place = {key: number for number, key in enumerate(computing.keys)}
    begin = computing.take(np.array([place[key] for key in groups.keys]))

    start = dict(zip(groups.keys, begin.first().ids.tolist(), strict=True))
    passed = groups.repeat(batches - 1, before=begin.first(), stay=True)
    _one_after_another(graph, passed, start)
    graph.note(
        f"A step now takes {batches} batches: for the throughput, compare its time with {batches} old steps."
    )
    if len(set(passes.rank.tolist())) > 1:
        graph.note("Repeated collectives do not wait for other ranks.")
    if not len(passes.where(phase="data")):
        graph.note(
            "The trace shows no loading of data; if it holds up the steps, it does so for every batch."
        )


def _one_after_another(graph: Graph, passed: Selection, begin: dict[tuple[int, int], int]) -> None:
    """Let each pass begin when all threads are done with the one before; `begin` is the recorded one's."""
    cpu = passed.where(kind="cpu")
    if not len(cpu):
        return
    computing = passed.where(phase=COMPUTING).group_by("rank", "step", "repeat")
    first = dict(zip(computing.keys, computing.first().ids.tolist(), strict=True))
    done = cpu.group_by("rank", "step", "repeat", "lane").last()
    which = zip(
        done.rank.tolist(), done.step.tolist(), graph.columns["repeat"][done.ids].tolist(), strict=True
    )
    behind = [first.get((rank, step, number + 1), begin[rank, step]) for rank, step, number in which]
    graph.link(done, graph.tasks(behind))
