"""Chains of small operators that become one kernel: norms, softmax, cross entropy, bias and activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from daydream import Graph
from daydream.costs import operators_that, say_evidence
from daydream.memory import Allocations, fuse
from daydream.model import find_chains, fuse_passes, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = {"compile"}  # it fuses these chains, and what is around them


class Chain(NamedTuple):
    """Operators that one kernel replaces: `pattern` is a regular expression over their letters.

    `forward` and `backward` are how many tensors that kernel reads and writes. Where there is no chain,
    `absent` says why: the first reason of those whose column of the work matches, else `none`.
    """

    kernel: str
    operators: Mapping[str, str | Callable[[], str]]  # called for, what the table of operators says
    pattern: str
    absent: tuple[tuple[str, Any, str], ...]
    none: str
    forward: int = 2
    backward: int = 3


CAST = r"^aten::(to|_to_copy)$"
POWER = r"^aten::(pow|square)_?$"
SCALE = r"^aten::(mul|div)_?$"
SOFTMAX = r"^aten::(softmax|_softmax|_safe_softmax)$"
LOG_SOFTMAX = r"^aten::(log_softmax|_log_softmax)$"
TANH = r"^aten::tanh_?$"
PRODUCT = partial(
    operators_that, lambda op: op.family in ("matmul", "convolution") and "composite" not in op.traits
)
ACTIVATION = partial(operators_that, lambda op: "activation" in op.traits)
FUSED_ATTENTION = r"scaled_dot_product|flash_att|efficient_att|_masked_softmax|memory_efficient"
FUSED_LOSS = r"(?i)cross_?entropy|xentropy|softmax_cross"
FUSED_BIAS = r"(?i)addmm_activation|bias_?(gelu|relu|act|swish)|gelu_?bias|epilogue\w*_(relu|gelu)"

FUSED_NORM = "every normalization runs as one operator already"
NORMS = Chain(
    "fused norm",
    {
        "U": CAST,  # to 32 bits and back
        "P": POWER,
        "M": r"^aten::mean$",
        "V": r"^aten::(var|std)$",
        "A": r"^aten::(add|sub|rsub)_?$",
        "X": SCALE,
        "R": r"^aten::(rsqrt|sqrt|reciprocal)_?$",
    },
    r"U?[PX]MA?R{1,2}X(?:U?X)?U?"  # x * rsqrt(mean(x ** 2) + eps) * weight
    r"|U?MA[PX]MA{0,2}R{1,2}A?X(?:U?X)?U?A?"  # mean((x - mean) ** 2)
    r"|U?M?V(?:A{0,2}R{1,2}A?X(?:U?X)?U?A?|AXAXA?|A{1,2}XXA?)",  # by `var`, or by `std`
    (
        ("within", r"(layer|rms|group)_norm", FUSED_NORM),
        ("name", r"(?i)(layer|rms|group)_?norm|ln_(fwd|bwd)", FUSED_NORM),
    ),
    "no layer or RMS norm is written out in small operators in this trace",
)
SCORES = Chain(
    "fused softmax",
    {
        "S": SOFTMAX,
        "U": CAST,
        "F": r"^aten::(masked_fill|where)_?$",
        "A": r"^aten::(add|sub)_?$",
        "X": SCALE,
    },
    r"[XU]{0,2}[AF]{0,2}U?SU?",
    (
        (
            "within",
            FUSED_ATTENTION,
            "attention runs as one operator already; no other softmax has a mask or scale",
        ),
        ("within", SOFTMAX, "no scale, mask or cast comes right before or after a softmax"),
    ),
    "no softmax in this trace",
)
NO_LOSS = "no log-softmax is followed by a negative log-likelihood loss in this trace"
LOSSES = Chain(
    "fused cross entropy",
    {"L": LOG_SOFTMAX, "N": r"^aten::(nll_loss\w*)$", "U": CAST},
    r"U{0,2}LN",
    (
        ("within", LOG_SOFTMAX, NO_LOSS),
        *((column, FUSED_LOSS, "the cross entropy runs as one kernel already") for column in ("name", "op")),
    ),
    NO_LOSS,
    forward=1,
    backward=2,
)
ACTIVATIONS = Chain(
    "fused activation",
    {
        "C": PRODUCT,
        "G": ACTIVATION,
        "T": TANH,
        "E": r"^aten::erf_?$",
        "P": POWER,
        "A": r"^aten::add_?$",
        "X": SCALE,
    },
    r"(?:(?<=C)A)?(?:X?PXAXTAX|X{2,4}AXTAX|XXEAX)"  # GELU by tanh, with a power or with products; by erf
    r"|(?<=C)A[GT]",
    (
        *((column, FUSED_BIAS, "bias and activation run as one kernel already") for column in ("name", "op")),
        *(
            ("within", one, "each activation runs as one operator with no separate bias before it")
            for one in (ACTIVATION, TANH)
        ),
    ),
    "no activation after a matrix product in this trace",
)


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
    _fuse(graph, NORMS)


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
    _fuse(graph, SCORES)


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
    _fuse(graph, LOSSES)


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
    _fuse(graph, ACTIVATIONS)


def _fuse(graph: Graph, chain: Chain) -> None:
    """Let one kernel run each chain forward, and one backward."""
    chains = find_chains(graph, _words(chain), chain.pattern)
    if not len(chains):
        work = work_tasks(graph)
        for column, pattern, reason in chain.absent:
            if len(work.where(**{column: pattern() if callable(pattern) else pattern})):
                graph.does_not_apply(reason)
        graph.does_not_apply(chain.none)
    say_evidence(graph, chains.tasks.where(kind="kernel"))
    graph.note(fuse_passes(chains, chain.kernel, forward=chain.forward, backward=chain.backward))


def _store_nothing_between(held: Allocations, *, chain: Chain) -> None:
    words = _words(chain)
    fuse(held, find_chains(held.graph, words, chain.pattern), words)


def _words(chain: Chain) -> dict[str, str]:
    return {letter: each() if callable(each) else each for letter, each in chain.operators.items()}


COMMANDS = {
    "fused-norm": {
        "CODE": "torch.nn.LayerNorm(size)  # or torch.nn.RMSNorm",
        "memory": partial(_store_nothing_between, chain=NORMS),
    },
    "fused-softmax": {
        "CODE": "probabilities = torch.compile(masked_softmax)(scores, mask)",
        "EXCLUDES": {"compile", "flash-attention"},  # which leave no softmax to fuse with
        "memory": partial(_store_nothing_between, chain=SCORES),
    },
    "fused-cross-entropy": {
        "CODE": "liger_kernel.transformers.LigerCrossEntropyLoss()(logits, labels)",
        "NEEDS_GPU": True,  # Liger's kernels are Triton's
        "memory": partial(_store_nothing_between, chain=LOSSES),
    },
    "fused-bias-act": {
        "CODE": "block = torch.compile(block)",
        "memory": partial(_store_nothing_between, chain=ACTIVATIONS),
    },
}
