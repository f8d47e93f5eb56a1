"""Freeze layers: their parameters are no longer trained."""

from __future__ import annotations

import re

import numpy as np
from daydream.optimizations._gradient_collectives import resize_parameters
from daydream.optimizations._weight_gradients import gradient_parts

from daydream import Graph
from daydream.costs import nodes_that, operators_that
from daydream.memory import (
    Allocations,
    block_of_rows,
    calls_that_made,
    in_phase,
    input_of_parts,
    parts_of,
    place_before,
    renumber,
    used_until,
)
from daydream.model import trained_parameters
from daydream.transforms import counted, listed, stages

STAGE = stages.WORK
CODE = "layer.requires_grad_(False)"

NODES = r"AccumulateGrad"


def freeze(graph: Graph, *, layers: str) -> None:
    """Predict training with the parameters of some layers frozen, for example `layers="blocks.[0-3]"`.

    Of the modules whose path matches `layers`, and of all inside them, the gradients of parameters are
    no longer computed, accumulated or applied. Gradients of inputs stay as long as a layer
    that ran earlier in the forward pass is trained. What ran before the first layer that is
    still trained has no backward pass at all, and that layer computes no gradient of its input.

    A product is told from its shapes, a convolution from its kernels' names or as half of
    its call (see `daydream.optimizations._weight_gradients`); norms keep their one backward kernel. An
    update of all parameters at once, and gradients reduced between ranks, shrink in
    proportion. Branches count as if they ran one after the other. Not modelled: the time that a
    forward pass saves which keeps nothing for a backward pass, norms in evaluation mode, convergence.

    Memory: gradients and optimizer states of frozen parameters go. What a product of them had saved, for the
    gradient of its weight, goes in the forward pass, and so does all that layers without a backward
    pass had saved. Convolutions and norms keep their inputs, as in torch (tools/autograd/derivatives.yaml).
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

    before = backward.where(lambda tasks: np.isin(tasks.layer.astype(str), sorted(idle)))
    before = before - before.where(kind="collective") - before.where(kind="collective").launches()
    on_gpu = len(graph.select(kind="kernel")) > 0
    work = backward.where(kind=("kernel", "memcpy", "memset") if on_gpu else "cpu") - before
    parts = gradient_parts(graph, work)
    is_frozen = np.isin(work.ids, frozen.ids)
    goes = np.where(is_frozen, parts.weights, 0) + np.where(work.layer == first, parts.inputs, 0)
    partly = graph.tasks(work.ids[(goes > 0) & (goes < 1)])
    stays = 1 - goes[(goes > 0) & (goes < 1)]
    gone = graph.tasks(work.ids[goes >= 1])
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


def memory(held: Allocations, *, layers: str) -> None:
    """Take away what training the layers holds: gradients, states, and what was saved for them alone."""
    block, end_block = block_of_rows(held, layers)
    trained = trained_parameters(held.graph)
    paths = zip(held.texts("layer"), block.tolist(), strict=True)
    frozen = {path for path, one in paths if one >= 0 and path is not None}
    idle, first = _ahead_of(held.graph, set(trained.tensors) - frozen)
    layer = np.array(held.texts("layer"), object)
    is_idle = np.isin(layer.astype(str), sorted(idle))
    ends_idle = np.isin(np.array(held.texts("layer", at="end"), object).astype(str), sorted(idle))
    keeps_input = re.compile(nodes_that(lambda op: op.is_linear))  # for its weight's gradient
    nodes = np.array(
        [keeps_input.search(text or "") is not None for text in held.texts("op", at="end")], bool
    )

    forward = parts_of(held, held.where(phase=("forward", "loss")), held["step"])
    dropped = (end_block >= 0) & nodes | ends_idle
    dropped &= held.where(kind="activation", end_phase="backward") & (forward.of >= 0)
    rows = np.flatnonzero(dropped)
    read_until = _read_until(held, trained=~is_idle & (block < 0), convolves=~is_idle)
    held["end"][rows] = np.maximum(used_until(held, rows, forward), read_until[rows])

    backward, update = in_phase(held, "backward"), in_phase(held, "optimizer")
    gone = held.where(kind=("gradient", "optimizer_state")) & (block >= 0) | update & (block >= 0)
    gone |= backward & is_idle
    gone |= (
        backward
        & (layer == first)
        & held.where(kind="temporary", op=operators_that(lambda op: op.family == "matmul"))
    )  # its input's gradient
    joint = update & (layer == None) & held.where(kind="temporary")  # noqa: E711 - an array, one by one
    held.scale(joint, 1 - trained.part(frozen)[1])
    held.remove(gone)
    renumber(held)


def _read_until(held: Allocations, *, trained: np.ndarray, convolves: np.ndarray) -> np.ndarray:
    """Return until when the backward pass of a product or convolution needs each as its input, -inf for none.

    Products of layers that are trained do (bool, shape (rows,)), and convolutions with any backward pass.
    """
    found = np.full(len(held), -np.inf)
    products = operators_that(lambda op: op.is_linear or op.name == "matmul")
    convolutions = operators_that(lambda op: op.formula == "convolution")
    for pattern, layers in ((products, trained), (convolutions, convolves)):
        call = calls_that_made(held, pattern)
        forward, backward = (
            parts_of(held, layers & (call >= 0) & in_phase(held, phase), held["step"], call)
            for phase in ("forward", "backward")
        )
        node, inputs = backward.find(forward.keys), input_of_parts(held, forward)
        known = (node >= 0) & (inputs >= 0)
        np.maximum.at(found, inputs[known], place_before(held, backward.until[node[known]]))
    return found


def _ahead_of(graph: Graph, trained: set[str]) -> tuple[set[str], str | None]:
    """Return the layers that are done, in a forward pass, before the first trained one begins, and that."""
    step = graph.select(phase="backward").group_by("rank", "step").first().first()
    passes = graph.select(rank=int(step.rank[0]), step=int(step.step[0]))
    place = np.empty(graph.size, np.int64)
    place[graph.ids] = np.arange(len(graph.ids))
    begun = place[passes.where(phase="backward").first().ids[0]]
    forward = passes.where(lambda tasks: place[tasks.ids] < begun, phase=("forward", "loss"))
    by_layer = forward.group_by("layer")
    first = [name for name in by_layer.keys if name in trained][:1]  # in the order of their first tasks
    if not first:
        return set(), None
    begins = place[by_layer[first[0]].ids[0]]
    ends = place[by_layer.last().ids]
    return {name for name, end in zip(by_layer.keys, ends.tolist(), strict=True) if end < begins}, first[0]
