"""Batch size: every batch holds more or fewer samples."""

from __future__ import annotations

from daydream import Graph, GraphError
from daydream.costs import (
    Resizing,
    grow_copies,
    grown_time,
    growth_by_grids,
    growth_of,
    is_feature_size,
    leave_grown,
    need_batch,
    need_shapes,
    only_grids_tell,
    recorded_batch,
    resized_time,
    scaled_time,
    shares_of_growth,
)
from daydream.memory import Allocations, resize_input
from daydream.transforms import stages

STAGE = stages.WORK
CODE = "DataLoader(dataset, batch_size=batch_size)"


def batch_size(graph: Graph, *, factor: float, recorded: int | None = None) -> None:
    """Predict a batch with `factor` times as many samples.

    The work of the forward pass, the loss and the backward pass is computed again from the recorded
    shapes with the new batch in them: parameters, and what is done with them alone, stay.
    `recorded` is the size of the trace's batch, by default the one that most calls show; one that no
    recorded shape has in its place is refused.
    Kernels keep their fixed cost and fill idle units of the device first; on a trace without device
    work, operator calls keep their overhead. Work without shapes is assumed to grow by `factor`, which
    over-predicts work on parameters: so where it is most of the time, inference is refused, which may
    read its weights whatever the batch. What is combined with this sees the new sizes.

    Assumes that the loading of data on the CPU and the copying of data take `factor` times as long.
    The optimizer, collectives and the CPU work of launching stay. Not modelled:
    other kernels that libraries pick for other sizes, convergence.

    Memory: inputs, activations and temporaries grow by the shapes of the operator that asked for them, so
    gradients of parameters and what is computed of parameters alone stay. What no shape tells
    is expected to grow by `factor`, and may stay.

    Args:
        factor: How many times as many samples a batch has.
        recorded: Batch size of the trace, if unclear.
    """
    if not factor > 0:
        raise GraphError(f"factor must be more than 0, not {factor:g}")
    if factor == 1:
        graph.does_not_apply("a factor of 1 leaves the batch as it is")
    kernels = graph.select(kind="kernel")
    passes = graph.select(on="gpu" if len(kernels) else "cpu", phase=("forward", "loss", "backward"))
    work = passes.where(kind=("kernel", "cpu"))
    work.need("work in the forward or backward pass")
    copies = passes.where(kind=("memcpy", "memset"))
    loaded = graph.select(kind=("memcpy", "memset"), phase="data")
    loading = graph.select(kind="cpu", phase="data")
    size = recorded_batch(graph) if recorded is None else recorded

    by_grids = only_grids_tell(graph)
    if by_grids:
        loaded = loaded | copies
        time, said = grown_time(work, growth_by_grids(graph, work), factor, squares=False)
    elif size is None:
        loaded = loaded | copies
        retimed = scaled_time(graph, work, factor)
        time, shares = retimed.duration_ns, shares_of_growth(work, retimed)
        need_shapes(graph, shares)
        said = "The trace's shapes do not show its batch: all work of the passes grows by the factor."
    else:
        need_batch(graph, size)
        new = round(size * factor)
        if new < 1 or abs(new - size * factor) > 1e-6 * new:
            raise GraphError(f"{factor:g} times a batch of {size} is not a whole number of samples")
        work = work | copies
        retimed = resized_time(graph, work, size, new)
        shares = shares_of_growth(work, retimed, growth_of(graph, work, size, new).known)
        said = f"The batch goes from {size:,} to {new:,}, {shares.words()}. {retimed.words()}"
        if is_feature_size(graph, size):
            graph.note(f"The model has features of size {size} too: shapes do not show which of them grow.")
        time = retimed.duration_ns
        need_shapes(graph, shares)
    work.set(duration_ns=time)
    leave_grown(graph, Resizing(factor, None if by_grids else size, every=False, on_device=len(kernels) > 0))
    graph.note(said)
    grow_copies(work | loaded, factor)
    if len(loaded):
        loaded.scale(factor)
    if len(loading):
        loading.scale(factor)
    graph.note(
        f"A step now covers {factor:g} times the samples: for the throughput, divide its time by {factor:g}."
    )
    if len(graph.select(kind="collective", phase=("forward", "loss"))):
        graph.note("Collectives keep their time, those that exchange activations too.")


def memory(held: Allocations, *, factor: float, recorded: int | None = None) -> None:
    """Let what holds samples hold `factor` times as many."""
    resize_input(held, recorded_batch(held.trace) if recorded is None else recorded, factor)
