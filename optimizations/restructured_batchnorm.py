"""Restructured batch normalization: its passes move into the convolution before and the activation behind."""

from __future__ import annotations

from daydream import Graph, Groups
from daydream.costs import counted_kind, say_evidence
from daydream.memory import Allocations, fuse
from daydream.model import backward_chains, find_chains, remove_with_operators, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"compile"})
PAPER_ONLY = True  # a compiler fuses these passes with its own kernels: see compile

WORDS = {
    "C": r"^aten::(conv\d?d|_?convolution|conv_transpose\dd|(cudnn|miopen|mkldnn)_convolution\w*)$",
    "B": r"^aten::((cudnn_|native_|miopen_)?batch_norm|_batch_norm_(impl_index|with_update))$",
    "R": r"^aten::(relu6?|clamp_min|hardtanh|leaky_relu|silu|hardswish|elu)_?$",
}
CHAIN = r"CBR"
COUNTER = r"^aten::add_?$"  # counts the batches that a layer has seen
NORM_BACKWARD = r"BatchNorm\w*Backward\d*$"
ACTIVATION_BACKWARD = r"(Relu|Threshold|ClampMin|Clamp|Hardtanh|LeakyRelu|Silu|Hardswish|Elu)\w*Backward\d*$"


def restructured_batchnorm(graph: Graph) -> None:
    """Predict batch normalization that is split and fused with its neighbours (Daydream, section 5.2).

    Its first half, the statistics, goes into the convolution before it, its second half into the
    activation and the convolution after. So in every chain of convolution, normalization and
    activation, forward and backward, the activation's kernels go with their launches and the
    CPU time of their operators, and those of the normalization take half: they move half the
    bytes. A normalization with anything else on either side (a sum of branches, say) stays.

    Memory: what a normalization hands to its activation is not stored.

    Not modelled: what the convolutions lose by doing this besides, and the copies that real
    implementations make: the paper found its own prediction too good. On a CPU the same holds.
    """
    work = work_tasks(graph)
    work.where(within=WORDS["B"]).need("batch normalization")
    chains = _chains(graph)
    if not len(chains):
        graph.does_not_apply("no batch normalization is between a convolution and an activation")
    backward = backward_chains(chains)
    norms = chains.tasks.where(within=WORDS["B"]) | backward.tasks.where(within=NORM_BACKWARD)
    activations = chains.tasks.where(within=WORDS["R"]) | backward.tasks.where(within=ACTIVATION_BACKWARD)
    every = len(work.group_by(within=WORDS["B"]))

    say_evidence(graph, norms.where(kind="kernel"))
    by_counters = counted_kind(graph, norms)
    # Half the bytes are half the time of what moves bytes; counters may tell otherwise.
    halved = graph.tasks(norms.ids[(by_counters != "compute") & (by_counters != "latency")])
    stay = len(norms) - len(halved)
    if len(halved):
        halved.scale(0.5)
    remove_with_operators(activations)
    graph.note(f"{len(chains):,} of {every:,} batch normalizations are between convolution and activation.")
    if stay:
        graph.note(f"Normalization that counters show not to be bound by memory stays: {stay:,} kernels.")
    if not len(graph.select(phase="backward")):
        graph.note("Without a backward pass a normalization can be folded into its convolution altogether.")
    elif not len(backward):
        graph.note("Which backward work is theirs is not known (no sequence numbers), so it stays.")


def memory(held: Allocations) -> None:
    """Store nothing between a normalization and its activation."""
    fuse(held, _chains(held.graph), WORDS, first_stays=True)


def _chains(graph: Graph) -> Groups:
    """Return the work of convolutions with a normalization and an activation behind them."""
    counters = (
        work_tasks(graph)
        .where(op=COUNTER)
        .where(
            lambda tasks: (
                (tasks.dtype == "int64") | ((tasks.input_elements >= 0) & (tasks.input_elements <= 2))
            )
        )
    )
    return find_chains(graph, WORDS, CHAIN, unseen=counters, one_kernel=False)
