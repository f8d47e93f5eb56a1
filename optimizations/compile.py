"""Compiled fusion: chains of element-wise kernels between matrix products become one kernel each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from daydream.optimizations._launches import LAUNCH_US, NODE_US, launch_as_graphs

from daydream import Graph, GraphError, Groups, Selection
from daydream.costs import (
    OVER_LINK,
    fused_chain_ns,
    fusible_chains,
    kernels_are,
    nodes_that,
    operators_that,
    work,
)
from daydream.model import (
    CompiledPart,
    breaks_of,
    call_rows,
    compile_cpu_calls,
    compiled_parts,
    fused_parts,
    in_replays,
    mostly_replayed,
    remove_breaks,
    remove_dispatch,
    remove_with_operators,
    unrecorded_launches,
)
from daydream.transforms import counted, stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

STAGE = stages.FUSION
CODE = "model = torch.compile(model)"

FUSIBLE = ("element-wise", "normalization", "softmax", "loss", "reduction", "copy")
# Kernels whose work is not known, as the trace has no shapes.
FUSIBLE_CLASSES = ("vectorized", "element-wise", "reduction", "norm", "batch norm", "softmax", "dropout")
# Of Inductor, and of ExecuTorch.
COMPILED_CALL = r"CompiledFxGraph|CompiledFunction|^Torch-Compiled Region|^Method::execute$"
COMPILED = r"^triton_|^triton(_\w+)?_fused_|CompiledFxGraph|CompiledFunction"
# One run of what XLA compiled launches all work of its program; run op by op, each program has one.
XLA_RUN = r"^(GpuExecutable::ExecuteThunks|PjRt\w*LoadedExecutable::Execute)$|:XLA GPU module$"


def compile(  # noqa: A001 - the command is `compile`
    graph: Graph,
    *,
    mode: Literal["default", "reduce-overhead", "max-autotune"] = "default",
    layers: str | None = None,
    graph_breaks: int | None = None,
    product_speedup: float = 1.03,
) -> None:
    """Predict torch.compile-like fusion of forward, loss and backward.

    Element-wise work, casts, normalizations, softmax, losses and reductions that follow each
    other on a stream, with no matrix product, copy or collective between them, become one
    kernel, across layers, but of no more than 64 (Inductor's `max_fusion_size`), of one pass, and with no
    wait between them. It moves the inputs of the first, what later ones read besides,
    and the output of the last: where shapes are recorded its time goes with those bytes, else
    it is that of its longest part. The fixed cost of the other kernels, their launches and
    the CPU time of their operators go. The optimizer is not compiled.

    With `layers`, a shell pattern as `blocks.*`, each outermost module that matches is compiled by itself,
    with fixed costs of its own; the loss and all else stay as they are. `graph_breaks` is how many breaks
    each compiled forward call has, by default the operators whose result's value or shape Python needs
    (`item`, `nonzero`, `unique`); with more of these than products it is refused. Each costs guards and
    Python once more, and a node in the backward pass, and on a CPU the mask of a ReLU in front of it, as
    likely there as elsewhere between two products; what would fuse across it is fused all the same. Of a
    trace that runs compiled code with graph breaks in it, the breaks are taken away. Programs of JAX that run
    several operators are compiled by XLA already, and refused.

    `mode` is torch's. `reduce-overhead` launches the compiled passes as CUDA graphs too, forward and backward
    apart, at the costs of `cuda-graphs`; on a CPU it is `default`. `max-autotune` does so as well, and
    products and convolutions become `product_speedup` times as fast: an assumption, for the middle of what is
    reported, from 1.00 (of 50 products the library's was the best each time, pytorch#180811) to 1.06
    (a product of triton-windows#169).

    Memory: what one call of the forward pass that is no product hands to the next is not stored. At the least
    nothing is kept for the backward pass but what products make and read, as where the partitioner computes
    all else again; at the most what is kept now.

    Not modelled: matrix
    products with fused ends, chains that cannot fuse (two reductions along other
    dimensions), compile time, what the pools of graphs hold.

    On a CPU the calls of matrix libraries stay and what lies between two of them becomes one
    loop, without operator dispatch, autograd's nodes and the traffic between its parts; the model's
    Python goes. Convolutions of images run channels last. What comes are the fixed costs of compiled
    code, as measured (daydream/model/compiled_calls.py): a small model may take longer. The loss is
    outside, as `apply` compiles the model. Modules that call torch's LSTM, GRU or RNN stay uncompiled,
    as Dynamo leaves them.

    Args:
        mode: Mode of torch.compile.
        layers (GLOB): Compile only these modules, by path: blocks.*.
        graph_breaks: Graph breaks of each compiled call.
        product_speedup: Speed-up of matrix products by max-autotune.
    """
    if (graph_breaks or 0) < 0 or product_speedup <= 0:
        raise GraphError(
            "graph_breaks must be 0 or more and product_speedup above 0, not "
            f"{graph_breaks} and {product_speedup:g}"
        )
    faster = product_speedup if mode == "max-autotune" else 1.0
    if faster != 1:
        graph.note(
            f"Assumed, not measured: autotuned products and convolutions are {faster:g} times as fast "
            "(--product-speedup)."
        )
    if not len(graph.select(on="gpu")):
        _compile_on_cpu(graph, mode, layers, graph_breaks, faster)
        return
    device = graph.select(on="gpu", phase=("forward", "loss", "backward"))
    device.need("device work in the forward or backward pass", lacks="device")
    device = device - device.where(within=r"AccumulateGrad$")  # runs behind the compiled backward pass
    replayed = in_replays(device)
    if mostly_replayed(device):
        graph.does_not_apply(
            "most device work of forward and backward runs inside CUDA graphs; what their kernels could "
            "fuse, and whether they are compiled already, cannot be told from a replay"
        )
    compiled = device.where(name=COMPILED) | device.where(within=COMPILED)
    compiled = compiled | device[fused_parts(graph)[device.ids]] | _by_xla(device)
    calls = graph.select(kind="cpu", phase=("forward", "backward"))
    in_compiled = calls.where(within=COMPILED_CALL).total("duration_ns")
    if len(compiled) > len(device) / 2 or 2 * in_compiled > calls.total("duration_ns") > 0:
        _without_breaks(graph, graph_breaks, "kernels")
        return
    graph_breaks = _data_dependent(graph) if graph_breaks is None else graph_breaks
    parts = compiled_parts(graph, device - compiled - replayed, layers)
    said: list[str] = []
    for part in parts:
        kernels = part.tasks.where(kind="kernel")
        family = work(graph, kernels).family.tolist()
        by_name = kernels[[each is None for each in family]].where(
            lambda kernels: kernels_are(kernels, *FUSIBLE_CLASSES)
        )
        fusible = kernels[[each in FUSIBLE for each in family]] | by_name
        products = kernels[[each in ("matmul", "convolution") for each in family]]
        if faster != 1 and len(products):
            products.scale(1 / faster)
        chains = fusible_chains(graph, fusible)
        if len(chains):
            said.append(_fuse(graph, chains))
    gone = remove_dispatch(graph, parts, graph_breaks)
    if not said and not gone:
        graph.does_not_apply("no two element-wise kernels follow each other on a stream")
    if len(said) > 1:
        said = [f"{len(said)} modules are compiled by themselves, the last one: {said[-1]}"]
    if gone:
        gone_ms = gone / max(len(device.group_by("step")), 1) / 1e6
        said.append(f"{gone_ms:,.2f} ms per step of module Python, views and dispatch go on the CPU")
    graph.note(f"{'; '.join(said)}; compiled code also checks its guards before each call.")
    if mode != "default":
        _capture(graph, parts, layers, graph_breaks)


def _data_dependent(graph: Graph) -> int:
    """Return how many operators of a forward pass break the graph, as Python needs what they find."""
    calls = graph.select(kind="cpu", phase="forward")
    passes = max(len(calls.group_by("step")), 1)
    # Python needs their value, or their shape is data: Dynamo breaks the graph there (torch's documentation).
    asks_for_values = operators_that(lambda op: "data-dependent" in op.traits)
    may_ask = rf"{asks_for_values}|^aten::(where|index)$"  # called by Python; others ask for themselves
    inside, asked, outer, products = (
        call_rows(graph, calls.ids, name)
        for name in (asks_for_values, may_ask, None, operators_that(lambda op: op.is_matrix))
    )
    asks, several = (sorted({*rows.tolist()} - {-1}) for rows in (inside[asked == outer], products))
    breaks = ceil(len(asks) / passes)
    products_of_pass = ceil(len(several) / passes)
    names = Counter(str(name).removeprefix("aten::") for name in graph.recorded.values("name", asks))
    listed = ", ".join(dict(names.most_common()))
    said = f"{counted(breaks, 'operator')} of a forward pass break the graph ({listed})"
    if breaks > products_of_pass:
        graph.does_not_apply(f"{said}, more than it has products: what is left to compile cannot be told")
    if breaks:
        graph.note(f"{said}.")
    return breaks


def _by_xla(device: Selection) -> Selection:
    """Return the device work of XLA programs of several operators: these were compiled together."""
    runs = device.where(within=XLA_RUN).group_by(within=XLA_RUN)
    several = [len(set(zip(run.op.tolist(), run.name.tolist(), strict=True))) > 1 for run in runs]
    return runs.where(several).tasks if any(several) else device[:0]


def _capture(graph: Graph, parts: list[CompiledPart], layers: str | None, breaks: int) -> None:
    """Launch the compiled passes as graphs, forward and backward apart."""
    compiled = graph.tasks(sorted(chain(*(part.tasks.ids.tolist() for part in parts))))
    alive = compiled.where(lambda tasks: graph.alive[tasks.ids])
    captured = alive.where(lambda tasks: tasks.launch >= 0) - alive.where(kind="memcpy", name=OVER_LINK)
    if not len(captured):
        return
    launch_as_graphs(
        graph,
        captured,
        graph.select(on="gpu") - captured,
        phases=("forward", "loss", "backward"),
        launch_us=(1 + breaks) * LAUNCH_US,
        node_us=NODE_US,
        layer=layers,
        apart=[["forward", "loss"], ["backward"]],
    )


def _without_breaks(graph: Graph, breaks: int | None, what: str) -> None:
    """Take the graph breaks of compiled code away, if it has any and none are asked for."""
    if breaks or not breaks_of(graph):
        graph.does_not_apply(f"forward and backward run compiled {what} already")
    graph.note(remove_breaks(graph))


def _fuse(graph: Graph, chains: Groups) -> str:
    """Fuse the chains, with the operators that launched the rest of each; return what to say of it."""
    count = len(chains.tasks)
    before = chains.total("duration_ns")
    after = fused_chain_ns(graph, chains)
    rest = chains.tasks - chains.first()
    chains.first().set(duration_ns=after, name="fused chain")
    remove_with_operators(rest)
    times = f"{before.sum() / 1e6:,.1f} ms become {len(chains):,} of {after.sum() / 1e6:,.1f} ms"
    return f"{count:,} kernels of {times}"


def _compile_on_cpu(graph: Graph, mode: str, layers: str | None, breaks: int | None, faster: float) -> None:
    if unrecorded_launches(graph):
        graph.does_not_apply("calls of this trace launched device work that was not recorded")
    calls = graph.select(kind="cpu", phase=("forward", "backward"))
    if len(calls.where(within=COMPILED_CALL)) or len(calls.where(lambda tasks: tasks.handle >= 0)):
        _without_breaks(graph, breaks, "code")
        return
    if len(calls) and not len(calls.where(op="^aten::")):
        graph.does_not_apply("no operators of torch were recorded; what a compiler would fuse is not known")
    breaks = _data_dependent(graph) if breaks is None else breaks
    graph.note(compile_cpu_calls(graph, layers=layers, breaks=breaks, product_speedup=faster))
    if mode != "default":
        graph.note("On a CPU there are no graphs to launch work by: this mode is as the default one there.")


def memory(held: Allocations, *, layers: str | None, **options: Any) -> None:
    """Store nothing between fused calls, and at the least nothing for the backward pass but of products."""
    forward = held.where(phase=("forward", "loss"))
    if layers is not None:
        forward = forward & (held.where(layer=layers) | held.where(layer=f"{layers}.*"))
    from daydream.memory import within

    fused = forward & ~within(held, operators_that(lambda op: op.is_matrix)) & (held["begin_row"] >= 0)
    saved = fused & held.where(kind="activation", end_phase="backward")
    saved &= ~held.where(end_op=nodes_that(lambda op: op.is_matrix))
    held.scale(fused & held.where(kind="temporary"), 0.0)
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
