"""Batch size: every batch holds more or fewer samples."""

from __future__ import annotations

from daydream import Graph, GraphError
from daydream.costs import scaled_time
from daydream.transforms import stages

STAGE = stages.WORK


def batch_size(graph: Graph, *, factor: float) -> None:
    """Predict a batch with `factor` times as many samples.

    The work of the forward pass, the loss and the backward pass grows by `factor`: kernels keep their
    fixed cost and fill idle units of the device first; on a trace without device work, operator
    calls keep their overhead (see `daydream.costs.scaled_time`). Copies of these phases and the
    loading of data take `factor` times as long. The optimizer, the collectives of
    gradients and the CPU work of launching stay, as the parameters do.

    Assumes that all work of these phases grows with the batch. Work on parameters alone (casts of
    weights, accumulation of gradients) does not, and is over-predicted when the batch grows. Not modelled:
    memory, other kernels that libraries pick for other sizes, convergence.
    """
    if not factor > 0:
        raise GraphError(f"factor must be more than 0, not {factor:g}")
    device = graph.select(on="gpu")
    passes = graph.select(on="gpu" if len(device) else "cpu", phase=("forward", "loss", "backward"))
    work = passes.where(kind=("kernel", "cpu"))
    work.need("work in the forward or backward pass")
    loading = graph.select(kind="cpu", phase="data")
    copies = graph.select(kind=("memcpy", "memset"), phase=("data", "forward", "loss", "backward"))

    work.set(duration_ns=scaled_time(graph, work, factor).duration_ns)
    if len(copies):
        copies.scale(factor)
    if len(loading):
        loading.scale(factor)
    graph.note(
        f"A step now covers {factor:g} times the samples: for the throughput, divide its time by {factor:g}."
    )
    if len(graph.select(kind="collective", phase=("forward", "loss"))):
        graph.note("Collectives keep their time, those that exchange activations too.")
