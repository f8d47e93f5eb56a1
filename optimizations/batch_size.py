"""Sizes of the input: batches of more or fewer samples, samples of more or fewer tokens."""

from __future__ import annotations

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import (
    Resizing,
    grow_copies,
    grown_time,
    growth_by_grids,
    growth_of,
    is_channel_size,
    is_feature_size,
    leave_grown,
    need_batch,
    need_shapes,
    need_size,
    only_grids_tell,
    recorded_batch,
    recorded_length,
    resized_time,
    scaled_time,
    shares_of_growth,
)
from daydream.memory import Allocations, resize_input
from daydream.transforms import stages

STAGE = stages.WORK

COPIES = ("memcpy", "memset")


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
    work = _work(graph)
    loaded = graph.select(kind=COPIES, phase="data")
    size = recorded_batch(graph) if recorded is None else recorded
    if only_grids_tell(graph) or size is None:
        copies = work.where(kind=COPIES)
        loaded = loaded | copies
        work = work - copies
    if only_grids_tell(graph):
        time, said = grown_time(work, growth_by_grids(graph, work), factor, squares=False)
        work.set(duration_ns=time)
        _leave(graph, work, factor)
        graph.note(said)
    elif size is None:
        retimed = scaled_time(graph, work, factor)
        need_shapes(graph, shares_of_growth(work, retimed))
        work.set(duration_ns=retimed.duration_ns)
        _leave(graph, work, factor)
        graph.note("The trace's shapes do not show its batch: all work of the passes grows by the factor.")
    else:
        need_batch(graph, size)
        new = round(size * factor)
        if new < 1 or abs(new - size * factor) > 1e-6 * new:
            raise GraphError(f"{factor:g} times a batch of {size} is not a whole number of samples")
        if is_feature_size(graph, size):
            graph.note(f"The model has features of size {size} too: shapes do not show which of them grow.")
        _by_shapes(graph, work, size, new, f"The batch goes from {size:,} to {new:,}", factor=factor)
    graph.covers(factor)
    _resize_the_rest(graph, work, loaded, factor)


def sequence_length(graph: Graph, *, length: int, recorded: int | None = None) -> None:
    """Predict the step with sequences of `length` tokens.

    The work of the forward pass, the loss and the backward pass is computed again from the recorded
    shapes with the new length in them: work by token grows in proportion, attention scores
    and what is done with them as the square. Parameters and their update stay.
    `recorded` is the length in the trace, by default the one that most calls of attention,
    softmax and embedding show. Kernels keep their fixed cost and fill idle units first; on a trace
    without device work, operator calls keep their overhead. Inference most of whose time has no
    shapes is refused. What is combined with this sees the new sizes.

    Where no shapes were recorded, the grids of kernels tell the length (element-wise kernels between the two
    products of an attention) and how work grows; see daydream/costs/device/input_sizes.py.

    Assumes that loading and copying of data, and kernels of unknown work, grow in proportion.
    Collectives and the CPU work of launching stay. Not modelled: positions that a learned table
    does not hold, packing, other kernels that libraries pick, convergence.

    Memory: inputs, activations and temporaries grow by the shapes of the operator that asked for them, those
    of attention scores as the square. What no shape tells is expected to grow in proportion, and may stay;
    without shapes scores are not told apart, so that they come out too small.

    Args:
        length: New number of tokens of a sequence.
        recorded: Recorded sequence length, if unclear.
    """
    if length < 1:
        raise GraphError(f"length must be 1 or more, not {length}")
    if recorded is not None and recorded < 1:
        raise GraphError(f"recorded must be 1 or more, not {recorded}")
    work = _work(graph)
    by_grids = only_grids_tell(graph)
    if by_grids:
        growth = growth_by_grids(graph, work, recorded)
        if recorded is not None and growth.length is None:
            seen = growth_by_grids(graph, work).length
            if seen is not None:
                raise GraphError(
                    f"recorded is {recorded}, but the grids of attention show sequences of {seen}"
                )
        found = growth.length
    else:
        found = recorded_length(graph) if recorded is None else recorded
    old = need_size(found if recorded is None else recorded, "sequence length")
    if length == old:
        graph.does_not_apply(f"the trace was recorded with sequences of {old:,} tokens already")
    said = f"Sequences go from {old:,} to {length:,} tokens"
    if by_grids:
        time, told = grown_time(work, growth, length / old)
        work.set(duration_ns=time)
        _leave(graph, work, length / old, every=True)
        graph.note(f"{said}. {told}")
    else:
        if is_feature_size(graph, old):
            if is_channel_size(graph, old):
                graph.does_not_apply(
                    f"the model has channels of size {old} too, which by shape look like the length.\n"
                    "       Record it with a length that occurs nowhere else."
                )
            graph.note(f"The model has features of size {old} too: tokens are recognized by their position.")
        _by_shapes(graph, work, old, length, said, factor=length / old, every=True)
    _resize_the_rest(graph, work, graph.select(kind=COPIES, phase="data"), length / old)
    graph.covers(length / old, "tokens")


def _work(graph: Graph) -> Selection:
    """Return what the passes do: the device's work where there is any."""
    on = "gpu" if len(graph.select(kind="kernel")) else "cpu"
    passes = graph.select(on=on, phase=("forward", "loss", "backward"))
    return (passes - passes.where(kind="collective")).need("work in the forward or backward pass")


def _by_shapes(
    graph: Graph, work: Selection, old: int, new: int, said: str, *, factor: float, every: bool = False
) -> None:
    """Let the work grow as the recorded shapes say."""
    retimed = resized_time(graph, work, old, new, every=every)
    shares = shares_of_growth(work, retimed, growth_of(graph, work, old, new, every=every).known)
    need_shapes(graph, shares)
    work.set(duration_ns=retimed.duration_ns)
    _leave(graph, work, factor, old, every=every)
    graph.note(f"{said}, {shares.words()}. {retimed.words()}")


def _leave(
    graph: Graph, work: Selection, factor: float, old: int | None = None, *, every: bool = False
) -> None:
    leave_grown(graph, Resizing(factor, old, every=every, on_device=str(work.kind[0]) != "cpu"))


def _resize_the_rest(graph: Graph, work: Selection, loaded: Selection, factor: float) -> None:
    """Let copies and the loading of data grow in proportion."""
    grow_copies(work | loaded, factor)
    for tasks in (loaded, graph.select(kind="cpu", phase="data")):
        if len(tasks):
            tasks.scale(factor)
    if len(graph.select(kind="collective", phase=("forward", "loss"))):
        graph.note("Collectives keep their time, those that exchange activations too.")


def _hold_samples(held: Allocations, *, factor: float, recorded: int | None = None) -> None:
    resize_input(held, recorded_batch(held.trace) if recorded is None else recorded, factor)


def _hold_tokens(held: Allocations, *, length: int, recorded: int | None = None) -> None:
    old = recorded_length(held.trace) if recorded is None else recorded
    if old is None:
        raise NotApplicableError("the trace has no shapes that show its sequence length; give --recorded")
    resize_input(held, old, length / old, every=True)


COMMANDS = {
    "batch-size": {"CODE": "DataLoader(dataset, batch_size=batch_size)", "memory": _hold_samples},
    "sequence-length": {
        "CODE": "tokenizer(texts, truncation=True, max_length=max_length)",
        "memory": _hold_tokens,
    },
}
