"""Fused bias and activation: what follows a matrix product element by element becomes one kernel."""

from __future__ import annotations

from daydream import Graph
from daydream.costs import operators_that
from daydream.memory import Allocations, fuse
from daydream.model import find_chains, fuse_passes, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"compile"})
CODE = "block = torch.compile(block)"

WRITTEN_OUT = r"X?PXAXTAX|X{2,4}AXTAX|XXEAX"  # GELU by tanh, with a power or with products; by erf
CHAIN = rf"(?:(?<=C)A)?(?:{WRITTEN_OUT})|(?<=C)A[GT]"
FUSED = r"(?i)addmm_activation|bias_?(gelu|relu|act|swish)|gelu_?bias|epilogue\w*_(relu|gelu)"


def words() -> dict[str, str]:
    """Return the operators of a chain by their letters."""
    products = ("matmul", "convolution")
    return {
        "C": operators_that(lambda op: op.family in products and "composite" not in op.traits),
        "G": operators_that(lambda op: "activation" in op.traits),
        "T": r"^aten::tanh_?$",
        "E": r"^aten::erf_?$",
        "P": r"^aten::(pow|square)_?$",
        "A": r"^aten::add_?$",
        "X": r"^aten::(mul|div)_?$",
    }


def fused_bias_act(graph: Graph) -> None:
    """Predict a bias and an activation after a matrix product that run as one kernel.

    Behind a product or convolution, the addition of the bias and the activation become one
    kernel that reads and writes the tensor once; a GELU written out in eight operators likewise, with
    its bias or without. In the backward pass their gradients become one that reads gradient and
    input and writes the input's gradient. Time: these bytes at the bandwidth that the trace's
    own streaming work reaches, or that of the longest operator where shapes are unknown.
    The other launches and the CPU time of their operators go. On a CPU the chain of
    operators becomes one, as long as its longest at least.

    Memory: nothing between the operators is stored, but for an input that was not saved before.

    Not modelled: the activation inside the product itself; the bias's gradient as a kernel of its own.
    A bias that the product adds already leaves nothing but the activation, which stays as it is.
    """
    work = work_tasks(graph)
    chains = find_chains(graph, words(), CHAIN)
    if not len(chains):
        if len(work.where(name=FUSED) | work.where(op=FUSED)):
            graph.does_not_apply("bias and activation run as one kernel already")
        if len(work.where(within=(words()["G"], words()["T"]))):
            graph.does_not_apply("each activation runs as one operator with no separate bias before it")
        graph.does_not_apply("no activation after a matrix product in this trace")
    graph.note(fuse_passes(chains, "fused activation", forward=2, backward=3))


def memory(held: Allocations) -> None:
    """Store nothing between the calls of a chain."""
    fuse(held, find_chains(held.graph, words(), CHAIN), words())
