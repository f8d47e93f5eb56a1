"""Checkpointing: activations of some layers are computed again in the backward pass."""

from __future__ import annotations

import numpy as np

from daydream import Graph
from daydream.transforms import stages

STAGE = stages.WORK


def checkpointing(graph: Graph, *, layers: str = "*") -> None:
    """Predict activation checkpointing of the layers whose path matches, by default of all.

    The forward work of each layer runs once more, on the thread of the backward pass, right
    before that layer's first backward task. A checkpointed block is computed again layer by
    layer then, not in one piece: the same work, in an order that differs within the block.
    Layers without backward work are not computed again.

    Not modelled: the memory that is saved and what a larger batch could do with it, and the
    saving and restoring of the random generator's state.
    """
    tasks = graph.select(layer=layers)
    tasks.need(
        f"work of layers {layers!r}; layers are recorded by `daydream collect`, and `*` stands for any text"
    )
    tasks = tasks - tasks.where(kind="collective") - tasks.where(kind="collective").launches()
    forward = tasks.where(phase="forward").group_by("rank", "step", "layer")
    backward = tasks.where(phase="backward").group_by("rank", "step", "layer")
    place = {key: number for number, key in enumerate(backward.keys)}
    again = forward.where(np.array([key in place for key in forward.keys], bool))
    if not len(again):
        graph.does_not_apply(f"no layer of {layers!r} has both forward and backward work")

    again.repeat(before=backward.take(np.array([place[key] for key in again.keys])).first())
