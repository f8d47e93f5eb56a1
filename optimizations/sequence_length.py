"""Sequence length: every sample of a transformer holds more or fewer tokens."""

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
    need_shapes,
    need_size,
    only_grids_tell,
    recorded_length,
    resized_time,
    shares_of_growth,
)
from daydream.memory import Allocations, resize_input
from daydream.transforms import stages

STAGE = stages.WORK
CODE = "tokenizer(texts, truncation=True, max_length=max_length)"


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
    products of an attention) and how work grows; see daydream/costs/device/launch_grids.py.

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
    kernels = graph.select(kind="kernel")
    passes = graph.select(on="gpu" if len(kernels) else "cpu", phase=("forward", "loss", "backward"))
    work = passes - passes.where(kind="collective")
    work.need("work in the forward or backward pass")
    if only_grids_tell(graph):
        old = _by_grids(graph, work, length, recorded)
    else:
        old = _by_shapes(graph, work, length, recorded)
    loading = graph.select(kind="cpu", phase="data")
    copies = graph.select(kind=("memcpy", "memset"), phase="data")
    for tasks in (loading, copies):
        if len(tasks):
            tasks.scale(length / old)
    grow_copies(work | copies, length / old)
    if len(graph.select(kind="collective", phase=("forward", "loss"))):
        graph.note("Collectives keep their time, those that exchange activations too.")


def memory(held: Allocations, *, length: int, recorded: int | None = None) -> None:
    """Let what holds tokens hold those of sequences of `length`."""
    old = recorded_length(held.trace) if recorded is None else recorded
    if old is None:
        raise NotApplicableError("the trace has no shapes that show its sequence length; give --recorded")
    resize_input(held, old, length / old, every=True)


def _by_shapes(graph: Graph, work: Selection, length: int, recorded: int | None) -> int:
    """Let the work grow as the recorded shapes say; return the length that it had."""
    old = need_size(recorded_length(graph) if recorded is None else recorded, "sequence length")
    _refuse_the_same(graph, length, old)
    if is_feature_size(graph, old):
        if is_channel_size(graph, old):
            graph.does_not_apply(
                f"the model has channels of size {old} too, which by shape look like the length.\n"
                "       Record it with a length that occurs nowhere else."
            )
        graph.note(f"The model has features of size {old} too: tokens are recognized by their position.")
    retimed = resized_time(graph, work, old, length, every=True)
    shares = shares_of_growth(work, retimed, growth_of(graph, work, old, length, every=True).known)
    need_shapes(graph, shares)
    on_device = str(work.kind[0]) != "cpu"
    work.set(duration_ns=retimed.duration_ns)
    leave_grown(graph, Resizing(length / old, old, every=True, on_device=on_device))
    graph.note(f"Sequences go from {old:,} to {length:,} tokens, {shares.words()}. {retimed.words()}")
    return old


def _by_grids(graph: Graph, work: Selection, length: int, recorded: int | None) -> int:
    """Let the work grow as the grids of kernels say, without shapes; return the length that it had."""
    growth = growth_by_grids(graph, work, recorded)
    if recorded is not None and growth.length is None:
        seen = growth_by_grids(graph, work).length
        if seen is not None:
            raise GraphError(f"recorded is {recorded}, but the grids of attention show sequences of {seen}")
    old = need_size(growth.length if recorded is None else recorded, "sequence length")
    _refuse_the_same(graph, length, old)
    time, told = grown_time(work, growth, length / old)
    work.set(duration_ns=time)
    leave_grown(graph, Resizing(length / old, None, every=True, on_device=True))
    graph.note(f"Sequences go from {old:,} to {length:,} tokens. {told}")
    return old


def _refuse_the_same(graph: Graph, length: int, old: int) -> None:
    if length == old:
        graph.does_not_apply(f"the trace was recorded with sequences of {old:,} tokens already")
