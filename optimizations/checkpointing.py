"""Checkpointing: activations of some layers are computed again in the backward pass."""

from __future__ import annotations

import numpy as np

from daydream import Graph, Selection
from daydream.graph.blocks import repeated_blocks
from daydream.transforms import stages
from daydream.wording import listed

STAGE = stages.WORK

OF_FORWARD = r"^aten::(conv[123]d|linear|batch_norm|layer_norm|embedding|gelu|scaled_dot_product_attention)$"

NODE = r"^\w+Backward\d*$"
SAVES_NONE = (
    r"^(\w*View|T|Transpose|Permute|Expand|Unsqueeze|Squeeze|Slice|Select|Split|Unbind|"
    r"Add|Sub|Clone|ToCopy)Back"
)
SAVES_TWO = r"^(Addmm|Mm|Bmm|Convolution|Mul|Linear)Back"
SAVES_FIVE = r"^Native(LayerNorm|BatchNorm|GroupNorm)Back"
FORWARD_NS, BACKWARD_NS = (26_000, 3_300), (114_000, 6_400)  # a block, a saved tensor


def checkpointing(graph: Graph, *, layers: str | None = None, python: bool = True) -> None:
    """Predict activation checkpointing of the blocks whose path matches, for example `layers="blocks.*"`.

    A block is an outermost module that matches, with all modules inside it. By default blocks are
    those that the model repeats, else all outermost modules. The forward work of each runs once
    more, on the thread of the backward pass, right before the block's first backward
    task. Blocks without backward work are not computed again, nor are collectives.

    `python` adds what `torch.utils.checkpoint` costs on the CPU, by the autograd nodes of the block
    that the trace shows: 26 us a block and 3.3 us a saved tensor in the forward pass, 114 us and
    6.4 us in the backward pass (measured on chains of 1 to 80 small operators with torch 2.13.0,
    `use_reentrant=False`, x86, one thread; small transformer blocks took more than this says; the
    tensors that a node saves are those of torch's derivative formulas).

    Not modelled: the memory that is saved and what a larger batch could do with it.
    """
    graph.select(layer="*").need("layers; they are recorded by `daydream collect`")
    repeated = [block for family in repeated_blocks(graph) for block in family]
    pattern = layers if layers is not None else repeated or "*"
    tasks = graph.select().group_by(block=pattern).tasks
    tasks.need(
        f"work of layers {layers or '*'!r}; layers are recorded by `daydream collect`, and `*` is any text"
    )
    if len(tasks.where(phase="backward", within=OF_FORWARD)):
        graph.does_not_apply("some of these layers are computed again in the backward pass already")
    tasks = tasks - tasks.where(kind="collective") - tasks.where(kind="collective").launches()
    forward = tasks.where(phase="forward").group_by("rank", "step", block=pattern)
    backward = tasks.where(phase="backward").group_by("rank", "step", block=pattern)
    place = {key: number for number, key in enumerate(backward.keys)}
    again = forward.where(np.array([key in place for key in forward.keys], bool))
    if not len(again):
        graph.does_not_apply(f"no layer of {layers or '*'!r} has both forward and backward work")

    begin = backward.take(np.array([place[key] for key in again.keys]))
    tensors = np.array([_saved_tensors(work) for work in begin])
    if (
        python
        and tensors.any()
        and (again.first().kind == "cpu").all()
        and (begin.first().kind == "cpu").all()
    ):
        for groups, (block_ns, tensor_ns) in ((again, FORWARD_NS), (begin, BACKWARD_NS)):
            graph.insert_before(
                groups.first(), "checkpoint in Python", duration_ns=block_ns + tensor_ns * tensors
            )
    again.repeat(before=begin.first())
    graph.note(f"Computed again: {listed(list(dict.fromkeys(key[0] for key in again.keys)))}.")


def _saved_tensors(work: Selection) -> int:
    """Return how many tensors the autograd nodes of this backward work had saved, 0 without such nodes."""
    nodes = work.where(kind="cpu", op=NODE)
    kinds = ((nodes, 1), (nodes.where(op=SAVES_TWO), 1), (nodes.where(op=SAVES_FIVE), 4))
    saving = sum(len(np.unique(some.call)) * more for some, more in kinds)
    return saving - len(np.unique(nodes.where(op=SAVES_NONE).call))
