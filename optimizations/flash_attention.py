"""Flash attention: the chain of kernels of each attention call becomes one, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from daydream import Graph
from daydream.memory import Allocations, drop_scores
from daydream.model import FUSED_ATTENTION_KERNEL, FUSED_ATTENTION_OP, attention_chains, fused_attention_ns
from daydream.transforms import counted, stages

STAGE = stages.WORK
CODE = "torch.nn.functional.scaled_dot_product_attention(q, k, v)"


def flash_attention(graph: Graph) -> None:
    """Predict attention that never writes its scores: one kernel a call and direction.

    Product of queries and keys, scale, mask, softmax, dropout and product with the values become
    one kernel, as `scaled_dot_product_attention` runs it; so do the two gradients of each
    product around the softmax's gradient. Its time: two products forward, five backward (it
    computes the scores again) at the FLOP rate of the trace's own products, or queries, keys, values, mask
    and output at its own bandwidth. Without recorded shapes: as long as the chain's products alone,
    backward 5/4 of them. Launches and CPU time of the other operators go.

    Not modelled: the half of the scores that a causal mask would skip, copies of heads that fused
    attention does not need, what a kernel loses on short sequences or wide heads. In float32, or with a
    mask of its own, torch runs its memory-efficient kernel, which works the same way.

    Refused where it is found in the backward pass alone, as of compiled code: fused attention needs what its
    own forward pass keeps.

    Memory: scores are never stored, but for one value of 32 bits a row. They are told by their shapes;
    where heads are as wide as a sequence is long, queries, keys and values look the same, and what is
    left is too little.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels; on a CPU the fused attention is not modelled", lacks="device")
    fused = kernels.where(op=FUSED_ATTENTION_OP) | kernels.where(name=FUSED_ATTENTION_KERNEL)
    if len(fused):
        graph.does_not_apply(f"attention runs in fused kernels already ({len(fused):,} of them)")
    both = dict(zip(("forward", "backward"), attention_chains(graph), strict=True))
    if not len(both["forward"]) and not len(both["backward"]):
        graph.does_not_apply(
            "no attention found: no softmax with a batched matrix product before and after it"
        )
    if not len(both["forward"]) and len(kernels.where(phase="forward")):
        graph.does_not_apply(
            "attention was found in the backward pass alone: forward it lies in kernels that do more, "
            "and fused attention replaces both"
        )
    times = {name: fused_attention_ns(graph, both[name], backward=name == "backward") for name in both}
    with_operators = bool((kernels.op != None).any())  # noqa: E711 - an array, compared one by one
    for direction, chains in both.items():
        if not len(chains):
            if len(kernels.where(phase=direction)):
                graph.note(f"No attention was found in the {direction} pass; it stays as it is.")
            continue
        before = int(chains.tasks.duration_ns.sum())
        time, known = times[direction]
        rest = chains.tasks - chains.first()
        cpu = rest.operators() if with_operators else rest.launches()
        chains.fuse("flash attention", duration_ns=time, op="aten::_scaled_dot_product_flash_attention")
        still_there = cpu & graph.select(kind="cpu")
        if len(still_there):
            still_there.remove()
        graph.note(
            f"{counted(len(chains), 'chain')} of attention {direction}: {before / 1e6:,.2f} ms become "
            f"{time.sum() / 1e6:,.2f} ms; {known:,} by shapes, the others by the time of their own products."
        )


def memory(held: Allocations) -> None:
    """Store no scores of attention."""
    drop_scores(held)


@contextmanager
def apply(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real where `scaled_dot_product_attention` is called: it runs fused kernels only."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        yield
