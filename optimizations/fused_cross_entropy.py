"""Fused cross entropy: log-softmax and loss become one kernel forward and one backward."""

from __future__ import annotations

from daydream import Graph
from daydream.memory import Allocations, fuse
from daydream.model import find_chains, fuse_passes, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"compile"})
NEEDS_GPU = True  # Liger's kernels are Triton's
CODE = "liger_kernel.transformers.LigerCrossEntropyLoss()(logits, labels)"

WORDS = {
    "L": r"^aten::(log_softmax|_log_softmax)$",
    "N": r"^aten::(nll_loss\w*)$",
    "U": r"^aten::(to|_to_copy)$",
}
CHAIN = r"U{0,2}LN"
FUSED = r"(?i)cross_?entropy|xentropy|softmax_cross"


def fused_cross_entropy(graph: Graph) -> None:
    """Predict a cross entropy that never writes the logarithms of all probabilities.

    Log-softmax, the loss and a cast right before them become one kernel that reads the logits
    once; the backward pass becomes one that reads them again and writes their gradient. So 3 passes
    over the logits stand where torch makes 6: it writes the logarithms, fills a gradient with zeros,
    and reads both to write another. Time: bytes at the bandwidth that the trace's own
    streaming work reaches, or that of the longest operator where shapes are unknown. The
    other launches and the CPU time of their operators go. On a CPU the operators become
    one in each pass, as long as the longest at least.

    Memory: the logarithms and their gradient are never stored. Not modelled: fusion with the product that
    makes the logits, and the memory that saves.
    """
    work = work_tasks(graph)
    chains = find_chains(graph, WORDS, CHAIN)
    if not len(chains):
        if len(work.where(name=FUSED) | work.where(op=FUSED)) and not len(work.where(within=WORDS["L"])):
            graph.does_not_apply("the cross entropy runs as one kernel already")
        graph.does_not_apply("no log-softmax is followed by a negative log-likelihood loss in this trace")
    graph.note(fuse_passes(chains, "fused cross entropy", forward=1, backward=2))


def memory(held: Allocations) -> None:
    """Store nothing between the calls of a chain."""
    fuse(held, find_chains(held.graph, WORDS, CHAIN), WORDS)
