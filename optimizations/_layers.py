"""Layers that are added, removed or no longer trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daydream.optimizations._gradient_collectives import resize_parameters

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import (
    Argument,
    Shape,
    calls_of,
    nodes_that,
    operator,
    operators_that,
    parameter_shapes,
    parse_shapes,
)
from daydream.memory import (
    Allocations,
    Moved,
    block_of_rows,
    calls_that_made,
    in_phase,
    input_of_parts,
    parts_of,
    place_before,
    repeat,
    scale_owned,
    used_until,
)
from daydream.model import autograd_node_count, repeated_blocks, scale_autograd_walks, trained_parameters
from daydream.transforms import counted, listed, need_room, stages

STAGE = stages.WORK


def add_layers(graph: Graph, *, count: int = 1, layers: str | None = None) -> None:
    """Predict a model with `count` more layers, copies of those it has.

    The blocks whose path matches `layers` are copied in turn until there are `count` more: of
    `blocks.*` with 4 blocks and a count of 4 each one is there twice. By default the middle one
    of the blocks that the model repeats is copied; where modules take turns, as Linear and ReLU do, it is one
    turn more (`4 + 5`). A copy does the block's forward,
    backward and optimizer work again right after it, on the CPU and on the device, with its
    launches. An update of all parameters at once, and gradients reduced between ranks,
    grow in proportion to the parameters; other collectives are not copied. On a CPU autograd's walks
    over its graph take as much longer as it has more nodes.

    Memory: a copy has parameters, optimizer states and gradients of its own, and what the block makes it
    makes right after it, in the backward pass right before it.

    Not modelled: caches that the larger model no longer fits in, convergence.

    Args:
        count: How many layers to add.
        layers (GLOB): Modules to copy, by path: blocks.*.
    """
    if count < 1:
        raise GraphError(f"count must be 1 or more, not {count}: no layer more is the model of the trace")
    tasks = graph.select(phase=("forward", "loss", "backward", "optimizer"))
    pattern = _middle_block(graph) if layers is None else layers
    tasks = tasks - tasks.where(kind="collective") - tasks.where(kind="collective").launches()
    groups = tasks.group_by("rank", "step", "phase", block=pattern)
    groups.tasks.need(
        f"work of layers {layers or 'that are repeated'!r}; layers are recorded by `daydream collect`, "
        "and `*` stands for any text"
    )
    blocks = list(dict.fromkeys(key[0] for key in groups.keys))
    if not len(groups.tasks.where(phase="forward")):
        graph.does_not_apply(f"layers {layers!r} do no work in the forward pass")
    copies = dict(zip(blocks, _copies(count, len(blocks)), strict=True))
    sizes = zip(groups.keys, groups.sizes.tolist(), strict=True)
    need_room(sum(copies[key[0]] * size for key, size in sizes), "count", count)
    trained = trained_parameters(graph)
    tensors = elements = 1.0
    nodes = autograd_node_count(graph.select())
    more_nodes = 0
    for block, members in graph.select().group_by(block=pattern).items():
        more = trained.part(set(members.layer.tolist()))
        more_nodes += copies[block] * autograd_node_count(members)
        tensors = tensors + copies[block] * more[0]
        elements = elements + copies[block] * more[1]

    resize_parameters(graph, "grow", tensors, elements)
    if nodes:
        scale_autograd_walks(graph, 1 + more_nodes / nodes)
    for times in sorted(set(copies.values()) - {0}):
        groups.where([copies[key[0]] == times for key in groups.keys]).repeat(times)
    copied = [f"{block} {times} times" if times > 1 else block for block, times in copies.items() if times]
    graph.note(f"Added: {counted(count, 'layer')}, copies of {listed(copied)}.")


def _memory_add_layers(
    held: Allocations,
    *,
    count: int = 1,
    layers: str | None = None,
) -> None:
    """Let copies of blocks hold what those hold."""
    pattern = _middle_block(held.graph) if layers is None else layers
    block, _ = block_of_rows(held, pattern)
    forward, backward = (
        parts_of(held, (block >= 0) & in_phase(held, phase), held["step"], block)
        for phase in ("forward", "backward")
    )
    # In the order of their first work, as the graph's groups are.
    begun = sorted(zip(forward.first.tolist(), forward.keys[:, -1].tolist(), strict=True))
    blocks = list(dict.fromkeys(number for _, number in begun))
    if not blocks:
        raise NotApplicableError(f"layers {layers!r} hold nothing in the forward pass")
    copies = dict(zip(blocks, _copies(count, len(blocks)), strict=True))
    times = _copies_of(block, copies)
    numbers = int(held["repeat"].max(initial=0)) + 1
    mate = backward.find(forward.keys)
    for each in sorted(set(copies.values()) - {0}):
        mine, behind = (((parts.of >= 0) & (times == each)).nonzero()[0] for parts in (forward, backward))
        there = Moved(forward, forward.until, each)
        back = Moved(backward, backward.first, each)
        node = mate[forward.of[mine]]
        end = held["end"][mine]
        inside = (node >= 0) & (end >= backward.first[node]) & (end < backward.until[node])
        _hand_to_copies(held, back, sorted(set(backward.of[behind].tolist())))
        for turn in range(each):
            last = each - 1 - turn  # the backward pass runs through the copies the other way round
            number = numbers * (turn + 1)
            ends = end.copy()
            ends[inside] = back(end[inside], node[inside], last)
            repeat(held, mine, there, turn=turn, end=ends, repeat=held["repeat"][mine] + number)
            repeat(held, behind, back, turn=last, repeat=held["repeat"][behind] + number)
    trained = trained_parameters(held.graph)
    share = 0.0
    block, _ = block_of_rows(held, pattern)
    of_block: dict[int, set[str]] = {}
    for number, path in zip(block.tolist(), held.texts("layer"), strict=True):
        of_block.setdefault(number, set()).add(path or "")
    for number, copied in copies.items():
        share += copied * trained.part(of_block.get(number, set()))[1]
    scale_owned(held, block >= 0, _copies_of(block, copies), share)


def _hand_to_copies(held: Allocations, back: Moved, parts: list[int]) -> None:
    """Let gradients that come into a block's backward pass go in that of its copies, which run before it."""
    gradient = held.where(phase="backward", kind="temporary")
    end = held["end"]
    for part in parts:
        first = back.parts.first[part]
        until = back.parts.until[part]
        own = gradient & (held["rank"] == back.parts.keys[part, 0])
        taken = own & (held["begin"] < first) & (end >= first) & (end < until)
        end[taken] = back(end[taken], part)


def _copies_of(block: Any, copies: dict[int, int]) -> Any:
    """Return how many copies there are of each one's block; int64, shape (rows,)."""
    times = 0 * block
    for number, count in copies.items():
        times[block == number] = count
    return times


def _copies(count: int, blocks: int) -> list[int]:
    """Return how many times each block is copied."""
    return [(count + blocks - 1 - turn) // blocks for turn in range(blocks)]


def _middle_block(graph: Graph) -> str:
    """Return the middle one of the blocks that are repeated, of several families that with most time."""
    graph.select(layer="*").need("layers; they are recorded by `daydream collect`")
    families = repeated_blocks(graph)
    if not families:
        graph.does_not_apply(
            "the model repeats no numbered block (`blocks.0`, `blocks.1`) or turn of modules; "
            "name one by --layers"
        )
    work = graph.select()
    family = max(families, key=lambda each: work.group_by(block=each).tasks.total("duration_ns"))
    return family[len(family) // 2]


def remove_layers(graph: Graph, *, layers: str) -> None:
    """Predict a model without some layers, for example `layers="blocks.[23]"`.

    All work of the modules whose path matches `layers`, and of all inside them, goes: forward, backward
    and optimizer, on the CPU and on the device, with the launches. An optimizer step that
    treats all parameters in one call, and collectives that reduce gradients, shrink in
    proportion to the parameters; other collectives stay. On a CPU autograd's walks over its graph
    take as much less as it has fewer nodes.

    Memory: what these layers hold goes, with their parameters, gradients and optimizer states.

    `*` stands for any text: `blocks.3*` is also `blocks.30`. Not modelled: whether the shapes of
    the remaining layers still fit, and convergence.

    Args:
        layers (GLOB): Modules to remove, by path: blocks.[2-3].
    """
    blocks = graph.select().group_by(block=layers)
    gone = blocks.tasks.need(
        f"work of layers {layers!r}; layers are recorded by `daydream collect`, and `*` stands for any text"
    )
    if not len(gone.where(phase=("forward", "backward"))):
        graph.does_not_apply(f"layers {layers!r} do no work in the forward or backward pass")
    trained = trained_parameters(graph)
    tensors, elements = trained.part(set(gone.layer.tolist()))
    gone = gone | gone.launched()
    gone = gone - gone.where(kind="collective") - gone.where(kind="collective").launches()
    nodes = autograd_node_count(graph.select())

    joint = resize_parameters(graph, "shrink", 1 - tensors, 1 - elements)
    if nodes:
        scale_autograd_walks(graph, 1 - autograd_node_count(gone) / nodes)
    gone.remove()
    graph.note(f"Removed: {listed(blocks.keys)}.")
    if len(joint) and not elements:
        graph.note(
            "The trace does not list the parameters of layers: an update of all at once keeps its time."
        )


def _memory_remove_layers(held: Allocations, *, layers: str) -> None:
    """Take away what the layers hold."""
    block, _ = block_of_rows(held, layers)
    paths = {path for path, one in zip(held.texts("layer"), block.tolist(), strict=True) if one >= 0}
    share = trained_parameters(held.graph).part({path for path in paths if path is not None})[1]
    scale_owned(held, block >= 0, 0 * block - 1, -share)
    block, _ = block_of_rows(held, layers)
    held.remove(block >= 0)


NODES = r"AccumulateGrad"


def freeze(graph: Graph, *, layers: str) -> None:
    """Predict training with the parameters of some layers frozen, for example `layers="blocks.[0-3]"`.

    Of the modules whose path matches `layers`, and of all inside them, the gradients of parameters are
    no longer computed, accumulated or applied. Gradients of inputs stay as long as a layer
    that ran earlier in the forward pass is trained. What ran before the first layer that is
    still trained has no backward pass at all, and that layer computes no gradient of its input.

    A product is told from its shapes, a convolution from its kernels' names or as half of
    its call (see `daydream.optimizations._layers`); norms keep their one backward kernel. An
    update of all parameters at once, and gradients reduced between ranks, shrink in
    proportion. Branches count as if they ran one after the other. Not modelled: the time that a
    forward pass saves which keeps nothing for a backward pass, norms in evaluation mode, convergence.

    Memory: gradients and optimizer states of frozen parameters go. What a product of them had saved, for the
    gradient of its weight, goes in the forward pass, and so does all that layers without a backward
    pass had saved. Convolutions and norms keep their inputs, as in torch (tools/autograd/derivatives.yaml).

    Args:
        layers (GLOB): Modules to freeze, by path: blocks.[0-3].
    """
    chosen = graph.select().group_by(block=layers)
    frozen = chosen.tasks.where(phase="backward").need(
        f"backward work of layers {layers!r}; layers are recorded by `daydream collect`, and `*` is any text"
    )
    trained = trained_parameters(graph)
    names = set(chosen.tasks.layer.tolist())
    still = set(trained.tensors) - names
    if trained.tensors and not set(trained.tensors) & names:
        graph.does_not_apply(f"layers {layers!r} have no parameters that are trained")
    backward = graph.select(phase="backward")
    if not trained.tensors:  # all layers with a backward pass count as trained
        still = {layer for layer in backward.layer.tolist() if layer is not None} - names
    idle, first = _ahead_of(graph, still)
    if first is None:
        graph.does_not_apply(f"with layers {layers!r} frozen nothing is left to train")

    before = backward[[layer in idle for layer in backward.layer]]
    before = before - before.where(kind="collective") - before.where(kind="collective").launches()
    on_gpu = len(graph.select(kind="kernel")) > 0
    work = backward.where(kind=("kernel", "memcpy", "memset") if on_gpu else "cpu") - before
    parts = gradient_parts(graph, work)
    goes = work.is_in(frozen) * parts.weights + (work.layer == first) * parts.inputs
    partly = work[(goes > 0) & (goes < 1)]
    stays = 1 - goes[(goes > 0) & (goes < 1)]
    gone = work[goes >= 1]
    calls = frozen.where(kind="cpu", within=NODES) | before
    if on_gpu and len(gone):
        calls = calls | gone.operators()
    updates = chosen.tasks.where(phase="optimizer")
    if not len(gone) + len(partly) + len(calls) + len(updates):
        graph.does_not_apply("the trace does not say which backward work computes gradients of parameters")
    tensors, elements = (1 - part for part in trained.part(names))

    if len(partly):
        partly.scale(stays)
    resize_parameters(graph, "shrink", tensors, elements)
    for tasks in (gone, calls | calls.launched(), updates | updates.launched()):
        if len(tasks):
            tasks.remove()
    graph.note(f"Frozen: {listed(chosen.keys)}; {1 - elements:.0%} of the parameters.")
    if len(before):
        ahead = counted(len(set(before.layer.tolist())), "layer")
        graph.note(f"No backward pass is left of {ahead} ahead of the first trained one.")


def _memory_freeze(held: Allocations, *, layers: str) -> None:
    """Take away what training the layers holds: gradients, states, and what was saved for them alone."""
    block, end_block = block_of_rows(held, layers)
    trained = trained_parameters(held.graph)
    paths = held.texts("layer")
    frozen = {path for path, one in zip(paths, block.tolist(), strict=True) if one >= 0 and path is not None}
    idle, first = _ahead_of(held.graph, set(trained.tensors) - frozen)
    is_idle, ends_idle = ([path in idle for path in held.texts("layer", at=at)] for at in ("begin", "end"))
    still = [path not in idle for path in paths]

    nodes = held.where(end_op=nodes_that(lambda op: op.is_linear))  # for its weight's gradient
    forward = parts_of(held, held.where(phase=("forward", "loss")), held["step"])
    dropped = (end_block >= 0) & nodes | ends_idle
    dropped &= held.where(kind="activation", end_phase="backward") & (forward.of >= 0)
    # What a product or convolution that is trained still reads stays until its backward pass.
    read = [
        *_read_until(
            held, operators_that(lambda op: op.is_linear or op.name == "matmul"), (block < 0) & still
        ),
        *_read_until(held, operators_that(lambda op: op.formula == "convolution"), still),
    ]
    rows = dropped.nonzero()[0]
    held["end"][rows] = used_until(held, rows, forward)
    for row, place in read:
        if dropped[row]:
            held["end"][row] = max(held["end"][row], place)
    backward = in_phase(held, "backward")
    update = in_phase(held, "optimizer")
    gone = held.where(kind=("gradient", "optimizer_state")) & (block >= 0) | update & (block >= 0)
    gone |= backward & is_idle
    products = held.where(kind="temporary", op=operators_that(lambda op: op.family == "matmul"))
    gone |= backward & products & [path == first for path in paths]  # its input's gradient
    joint = update & held.where(kind="temporary") & [path is None for path in paths]
    held.scale(joint, 1 - trained.part(frozen)[1])
    held.remove(gone)


def _read_until(held: Allocations, pattern: str, which: Any) -> list[tuple[int, float]]:
    """Return until when the backward pass of operators needs each as its input: rows and places."""
    call = calls_that_made(held, pattern)
    forward, backward = (
        parts_of(held, which & (call >= 0) & in_phase(held, phase), held["step"], call)
        for phase in ("forward", "backward")
    )
    node = backward.find(forward.keys)
    inputs = input_of_parts(held, forward)
    known = (node >= 0) & (inputs >= 0)
    until = place_before(backward.until[node[known]])
    return list(zip(inputs[known].tolist(), until.tolist(), strict=True))


def _ahead_of(graph: Graph, trained: set[str]) -> tuple[set[str], str | None]:
    """Return the layers that are done, in a forward pass, before the first trained one begins, and that."""
    step = graph.select(phase="backward").group_by("rank", "step").first().first()
    passes = graph.select(rank=int(step.rank[0]), step=int(step.step[0]))
    begun = passes.where(phase="backward").first().order[0]
    forward = passes.where(lambda tasks: tasks.order < begun, phase=("forward", "loss"))
    by_layer = forward.group_by("layer")
    first = next((name for name in by_layer.keys if name in trained), None)  # in the order of first tasks
    if first is None:
        return set(), None
    begins = by_layer[first].order[0]
    ends = by_layer.last().order.tolist()
    return {name for name, end in zip(by_layer.keys, ends, strict=True) if end < begins}, first


OF_WEIGHTS = r"(?i)wgrad|bgrad|WrW|bwd_?weight|backward_?(weight|filter)|GammaBeta"  # cuDNN, MIOpen, ATen
OF_INPUTS = r"(?i)dgrad|bwd_?data|backward_?data|GradInput|grad_input"
ONLY_WEIGHTS = r"AccumulateGrad|^EmbeddingBackward|^EmbeddingBagBackward|^aten::embedding_(dense_)?backward"


@dataclass(frozen=True)
class GradientParts:
    """Parts of each task's time, 0 to 1: for gradients of parameters, and of inputs; the rest is neither."""

    weights: Any
    inputs: Any


def gradient_parts(graph: Graph, tasks: Selection) -> GradientParts:
    """Return what of each backward task's time goes into gradients of parameters and of inputs.

    From kernel names and recorded shapes; a product whose shapes fit both, or were not
    recorded, counts half for each.
    """
    weights = 0.0 * tasks.duration_ns
    inputs = 0.0 * tasks.duration_ns

    def give(chosen: Selection, weight: float, data: float) -> None:
        mask = tasks.is_in(chosen)
        weights[mask] = weight
        inputs[mask] = data

    convolutions = tasks.where(within=nodes_that(lambda op: op.family == "convolution"))
    backward = operators_that(lambda op: op.family == "convolution" and "_backward" in op.name)
    give(convolutions | tasks.where(within=backward), 0.5, 0.5)
    products = tasks.where(op=operators_that(lambda op: op.family == "matmul"))
    known = _products(graph, products)
    for index, (weight, data) in zip(tasks.is_in(products).nonzero()[0], known, strict=True):
        weights[index] = weight
        inputs[index] = data
    give(tasks.where(within=nodes_that(lambda op: op.is_linear), op=r"^aten::(sum|fill_)$"), 1.0, 0.0)
    device = tasks.where(on="gpu")
    give(device.where(name=OF_INPUTS), 0.0, 1.0)
    give(device.where(name=OF_WEIGHTS), 1.0, 0.0)
    give(tasks.where(within=ONLY_WEIGHTS) | tasks.where(op=ONLY_WEIGHTS), 1.0, 0.0)
    return GradientParts(weights, inputs)


def _products(graph: Graph, products: Selection) -> list[tuple[float, float]]:
    shapes = products.shapes.tolist()
    parameters = parameter_shapes(calls_of(graph.trace)) if graph.trace is not None else set()
    seen: dict[tuple[str | None, str | None], tuple[float, float]] = {}
    for key in zip(products.op.tolist(), shapes, strict=True):
        if key not in seen:
            seen[key] = _of_product(key[0] or "", parse_shapes(key[1]) or [], parameters)
    return [seen[key] for key in zip(products.op.tolist(), shapes, strict=True)]


def _of_product(op: str, arguments: list[Argument], parameters: set[Shape]) -> tuple[float, float]:
    """Return the parts of one product: of a parameter's gradient, of an input's."""
    factors = [shape for shape in arguments if isinstance(shape, tuple) and len(shape) >= 2]
    if len(factors) < 2:
        return 0.5, 0.5
    left, right = factors[-2:]
    if operator(op).formula == "linear":
        right = right[::-1]
    result = (*left[:-1], right[-1])
    is_weight = result in parameters
    uses_weight = left in parameters or right in parameters
    if is_weight and uses_weight:
        return 0.5, 0.5
    return (1.0, 0.0) if is_weight else (0.0, 1.0 if uses_weight else 0.0)


COMMANDS = {
    "add-layers": {
        "memory": _memory_add_layers,
    },
    "remove-layers": {
        "memory": _memory_remove_layers,
    },
    "freeze": {
        "CODE": "layer.requires_grad_(False)",
        "memory": _memory_freeze,
    },
}
