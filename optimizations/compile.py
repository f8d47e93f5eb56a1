"""Compiled fusion: chains of element-wise kernels between matrix products become one kernel each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from daydream import Graph, Groups
from daydream.costs import fused_chain_ns, fusible_chains, work
from daydream.memory import Allocations, within
from daydream.model import (
    compile_cpu_calls,
    fused_parts,
    in_replays,
    mostly_replayed,
    remove_dispatch,
    unrecorded_launches,
)
from daydream.transforms import stages

STAGE = stages.FUSION
CODE = "model = torch.compile(model)"

FUSIBLE = ("element-wise", "normalization", "softmax", "loss", "reduction", "copy")
# Kernels whose work is not known, as the trace has no shapes.
FUSIBLE_KERNEL = r"(?i)elementwise|reduce_kernel|layer_?norm|softmax|batch_norm|bn_(fw|bw)|dropout"
MATRIX = r"^aten::(_?conv\w*|addmm|mm|bmm|baddbmm|linear|matmul|\w*attention\w*|lstm|gru|\w*rnn\w*)$"
MATRIX_NODE = r"(Addmm|Mm|Bmm|Baddbmm|Linear|[Cc]onv\w*|\w*Attention\w*|\w*Rnn\w*)Backward"
ACCUMULATE = r"AccumulateGrad$"
# Of Inductor, and of ExecuTorch.
COMPILED_CALL = r"CompiledFxGraph|CompiledFunction|^Torch-Compiled Region|^Method::execute$"
TORCH = r"^aten::"
COMPILED = r"^triton_|^triton(_\w+)?_fused_|CompiledFxGraph|CompiledFunction"


def compile(graph: Graph) -> None:  # noqa: A001 - the command is `compile`
    """Predict torch.compile-like fusion of forward, loss and backward.

    Element-wise work, casts, normalizations, softmax, losses and reductions that follow each
    other on a stream, with no matrix product, copy or collective between them, become one
    kernel, across layers, but of no more than 64 (Inductor's `max_fusion_size`), of one pass, and with no
    wait between them. It moves the inputs of the first, what later ones read besides,
    and the output of the last: where shapes are recorded its time goes with those bytes, else
    it is that of its longest part. The fixed cost of the other kernels, their launches and
    the CPU time of their operators go. The optimizer is not compiled.

    Memory: what one call of the forward pass that is no product hands to the next is not stored. At the least
    nothing is kept for the backward pass but what products make and read, as where the partitioner computes
    all else again; at the most what is kept now.

    Not modelled: matrix
    products with fused ends, chains that cannot fuse (two reductions along other
    dimensions), compile time, CUDA graphs (see cuda-graphs).

    On a CPU the calls of matrix libraries stay and what lies between two of them becomes one
    loop, without operator dispatch, autograd's nodes and the traffic between its parts; the model's
    Python goes. What comes are the fixed costs of compiled code, as measured
    (daydream/model/compiled_calls.py): a small model may take longer. The loss is outside, as `apply`
    compiles the model. Modules that call torch's LSTM, GRU or RNN stay uncompiled, as Dynamo leaves them.
    """
    if not len(graph.select(on="gpu")):
        _compile_on_cpu(graph)
        return
    device = graph.select(on="gpu", phase=("forward", "loss", "backward"))
    device.need("device work in the forward or backward pass", lacks="device")
    device = device - device.where(within=ACCUMULATE)  # runs behind the compiled backward pass
    replayed = in_replays(device)
    if mostly_replayed(device):
        graph.does_not_apply(
            "most device work of forward and backward runs inside CUDA graphs; what their kernels could "
            "fuse, and whether they are compiled already, cannot be told from a replay"
        )
    compiled = device.where(name=COMPILED) | device.where(within=COMPILED)
    compiled = compiled | graph.tasks(device.ids[fused_parts(graph)[device.ids]])
    calls = graph.select(kind="cpu", phase=("forward", "backward"))
    in_compiled = calls.where(within=COMPILED_CALL).total("duration_ns")
    if len(compiled) > len(device) / 2 or 2 * in_compiled > calls.total("duration_ns") > 0:
        graph.does_not_apply("forward and backward run compiled kernels already")
    kernels = device.where(kind="kernel") - compiled - replayed
    family = work(graph, kernels).family.astype(str)
    by_name = graph.tasks(kernels.ids[family == "None"]).where(name=FUSIBLE_KERNEL)
    fusible = graph.tasks(kernels.ids[np.isin(family, FUSIBLE)]) | by_name
    chains = fusible_chains(graph, fusible)
    said = _fuse(graph, chains) if len(chains) else []
    gone = remove_dispatch(graph, device - compiled - replayed)
    if not said and not gone:
        graph.does_not_apply("no two element-wise kernels follow each other on a stream")
    if gone:
        steps = max(len(device.group_by("step")), 1)
        said.append(
            f"{gone / steps / 1e6:,.2f} ms per step of module Python, views and dispatch go on the CPU"
        )
    graph.note(f"{'; '.join(said)}; compiled code also checks its guards before each call.")


def _fuse(graph: Graph, chains: Groups) -> list[str]:
    """Fuse the chains, with the operators that launched the rest of each; return what to say of it."""
    count, before, after = len(chains.tasks), chains.total("duration_ns"), fused_chain_ns(graph, chains)
    rest = chains.tasks - chains.first()
    operators = rest.operators() if len(rest.where(lambda tasks: tasks.op != None)) else rest.launches()  # noqa: E711

    chains.fuse("fused chain", duration_ns=after)
    still_there = operators & graph.select(kind="cpu")
    if len(still_there):
        still_there.remove()
    times = f"{before.sum() / 1e6:,.1f} ms become {len(chains):,} of {after.sum() / 1e6:,.1f} ms"
    return [f"{count:,} kernels of {times}"]


def _compile_on_cpu(graph: Graph) -> None:
    if unrecorded_launches(graph):
        graph.does_not_apply("calls of this trace launched device work that was not recorded")
    calls = graph.select(kind="cpu", phase=("forward", "backward"))
    if len(calls.where(within=COMPILED_CALL)) or len(calls.where(lambda tasks: tasks.handle >= 0)):
        graph.does_not_apply("forward and backward run compiled code already")
    if len(calls) and not len(calls.where(op=TORCH)):
        graph.does_not_apply("no operators of torch were recorded; what a compiler would fuse is not known")
    graph.note(compile_cpu_calls(graph))


def memory(held: Allocations) -> None:
    """Store nothing between fused calls, and at the least nothing for the backward pass but of products."""
    forward = held.where(phase=("forward", "loss"))
    fused = forward & ~within(held, MATRIX) & (held["begin_row"] >= 0)
    ends = np.array(
        [re.search(MATRIX_NODE, text or "") is not None for text in held.texts("op", at="end")], bool
    )
    temporary = fused & held.where(kind="temporary")
    saved = fused & held.where(kind="activation", end_phase="backward") & ~ends
    held.scale(temporary, 0.0)
    held.scale(saved, held.among(0.0, 1.0, 1.0))


@contextmanager
def apply(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: the model's forward call is compiled; its first steps take long."""
    before = model.forward
    import torch

    model.forward = torch.compile(before)
    try:
        yield
    finally:
        model.forward = before
