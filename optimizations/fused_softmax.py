"""Fused softmax: scale, mask and softmax of attention scores become one kernel."""

from __future__ import annotations

from daydream import Graph
from daydream.memory import Allocations, fuse
from daydream.model import find_chains, fuse_passes, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"compile", "flash-attention"})  # which leave no softmax to fuse with
CODE = "probabilities = torch.compile(masked_softmax)(scores, mask)"

WORDS = {
    "S": r"^aten::(softmax|_softmax|_safe_softmax)$",
    "U": r"^aten::(to|_to_copy)$",
    "F": r"^aten::(masked_fill|where)_?$",
    "A": r"^aten::(add|sub)_?$",
    "X": r"^aten::(mul|div)_?$",
}
CHAIN = r"[XU]{0,2}[AF]{0,2}U?SU?"
FUSED_OP = r"scaled_dot_product|flash_att|efficient_att|_masked_softmax|memory_efficient"


def fused_softmax(graph: Graph) -> None:
    """Predict scores that are scaled, masked and normalized by one kernel.

    A softmax and the scaling, mask (added or filled in) and casts right before it, or a cast
    after it, become one kernel that reads the scores once and writes the probabilities once; backward
    it reads gradient and probabilities and writes the scores' gradient. Time: these bytes at
    the bandwidth that the trace's own streaming work reaches, or that of the longest operator
    where shapes are unknown. The other launches and the CPU time of their operators go.
    On a CPU the chain of operators becomes one, as long as its longest at least.

    Memory: nothing between the operators is stored, but for an input that was not saved before.

    Not modelled: the mask's own bytes (most are small), dropout, attention that keeps no scores
    at all. A softmax that stands alone stays as it is.
    """
    work = work_tasks(graph)
    chains = find_chains(graph, WORDS, CHAIN)
    if not len(chains):
        if len(work.where(within=FUSED_OP)):
            graph.does_not_apply(
                "attention runs as one operator already; no other softmax has a mask or scale"
            )
        if len(work.where(within=WORDS["S"])):
            graph.does_not_apply("no scale, mask or cast comes right before or after a softmax")
        graph.does_not_apply("no softmax in this trace")
    graph.note(fuse_passes(chains, "fused softmax", forward=2, backward=3))


def memory(held: Allocations) -> None:
    """Store nothing between the calls of a chain."""
    fuse(held, find_chains(held.graph, WORDS, CHAIN), WORDS)
