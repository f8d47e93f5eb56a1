"""Restructured batch normalization: its passes move into the convolution before and the activation behind."""

from __future__ import annotations

from daydream import Graph, Groups
from daydream.costs import Operator, counted_kind, nodes_that, operators_that, say_evidence
from daydream.memory import Allocations, fuse
from daydream.model import backward_chains, find_chains, remove_with_operators, work_tasks
from daydream.transforms import stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"compile"})
PAPER_ONLY = True  # a compiler fuses these passes with its own kernels: see compile

CHAIN = r"CBR"
COUNTER = r"^aten::add_?$"  # counts the batches that a layer has seen


def _is_norm(op: Operator) -> bool:
    return op.family == "normalization" and "batch_norm" in op.name


def _is_activation(op: Operator) -> bool:
    return "activation" in op.traits or op.name in ("clamp", "threshold")


def _words() -> dict[str, str]:
    return {
        "C": operators_that(lambda op: op.family == "convolution" and "_backward" not in op.name),
        "B": operators_that(_is_norm),
        "R": operators_that(_is_activation),
    }


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
    work.where(within=operators_that(_is_norm)).need("batch normalization")
    chains = _chains(graph)
    if not len(chains):
        graph.does_not_apply("no batch normalization is between a convolution and an activation")
    backward = backward_chains(chains)
    norms = chains.tasks.where(within=operators_that(_is_norm)) | backward.tasks.where(
        within=nodes_that(_is_norm)
    )
    activations = chains.tasks.where(within=operators_that(_is_activation)) | backward.tasks.where(
        within=nodes_that(_is_activation)
    )
    every = len(work.group_by(within=operators_that(_is_norm)))

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
    fuse(held, _chains(held.graph), _words(), first_stays=True)


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
    return find_chains(graph, _words(), CHAIN, unseen=counters, one_kernel=False)
