"""Remove layers: a shallower model without the layers that a pattern names."""

from __future__ import annotations

import numpy as np
from daydream.optimizations._gradient_collectives import resize_parameters

from daydream import Graph
from daydream.memory import Allocations, block_of_rows, scale_owned
from daydream.model import autograd_node_count, scale_autograd_walks, trained_parameters
from daydream.transforms import listed, stages

STAGE = stages.WORK


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


def memory(held: Allocations, *, layers: str) -> None:
    """Take away what the layers hold."""
    block, _ = block_of_rows(held, layers)
    paths = {path for path, one in zip(held.texts("layer"), block.tolist(), strict=True) if one >= 0}
    share = trained_parameters(held.graph).part({path for path in paths if path is not None})[1]
    scale_owned(held, block >= 0, np.full(len(held), -1), -share)
    block, _ = block_of_rows(held, layers)
    held.remove(block >= 0)
