"""Fused normalization: layer norm or RMS norm written out in small operators becomes one kernel."""

from __future__ import annotations

from daydream import Graph
from daydream.costs import say_evidence
from daydream.memory import Allocations, fuse
from daydream.model import find_chains, fuse_passes, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"compile"})  # it fuses these chains, and what is around them
CODE = "torch.nn.LayerNorm(size)  # or torch.nn.RMSNorm"

WORDS = {
    "U": r"^aten::(to|_to_copy)$",  # to 32 bits and back
    "P": r"^aten::(pow|square)_?$",
    "M": r"^aten::mean$",
    "V": r"^aten::(var|std)$",
    "A": r"^aten::(add|sub|rsub)_?$",
    "X": r"^aten::(mul|div)_?$",
    "R": r"^aten::(rsqrt|sqrt|reciprocal)_?$",
}
RMS = r"U?[PX]MA?R{1,2}X(?:U?X)?U?"  # x * rsqrt(mean(x ** 2) + eps) * weight
CENTERED = r"U?MA[PX]MA{0,2}R{1,2}A?X(?:U?X)?U?A?"  # mean((x - mean) ** 2)
VARIANCE = r"U?M?V(?:A{0,2}R{1,2}A?X(?:U?X)?U?A?|AXAXA?|A{1,2}XXA?)"  # by `var`, or by `std`
FUSED_OP = r"(layer|rms|group)_norm"
FUSED_KERNEL = r"(?i)(layer|rms|group)_?norm|ln_(fwd|bwd)"


def fused_norm(graph: Graph) -> None:
    """Predict normalizations that run as one kernel forward and one backward.

    Layer and RMS norms written out (mean, power, square root, product, sum, with casts to 32 bits
    around) become one kernel each that reads its input once and writes its output once; in the
    backward pass it reads gradient and input and writes the input's gradient. Time: these
    bytes at the bandwidth that the trace's own streaming work reaches, or that of the longest
    operator where shapes are unknown. The other launches and the CPU time of their operators
    go. On a CPU the chain of operators becomes one, as long as its longest at least.

    Memory: nothing between the operators is stored, but for an input that was not saved before.

    Not modelled: the parameters' gradients as kernels of their own; rounding that differs.
    """
    work = work_tasks(graph)
    chains = find_chains(graph, WORDS, f"{RMS}|{CENTERED}|{VARIANCE}")
    if not len(chains):
        if len(work.where(within=FUSED_OP) | work.where(name=FUSED_KERNEL)):
            graph.does_not_apply("every normalization runs as one operator already")
        graph.does_not_apply("no layer or RMS norm is written out in small operators in this trace")
    say_evidence(graph, chains.tasks.where(kind="kernel"))
    graph.note(fuse_passes(chains, "fused norm", forward=2, backward=3))


def memory(held: Allocations) -> None:
    """Store nothing between the calls of a chain."""
    fuse(held, find_chains(held.graph, WORDS, f"{RMS}|{CENTERED}|{VARIANCE}"), WORDS)
