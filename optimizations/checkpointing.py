"""Checkpointing: activations of some layers are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from daydream import Graph, GraphError, Selection
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
FORWARD_NS, BACKWARD_NS = (50_000, 6_900), (82_000, 12_300)  # a block, a saved tensor


def checkpointing(graph: Graph, *, layers: str | None = None, python: bool = True) -> None:
    """Predict activation checkpointing of the blocks whose path matches, for example `layers="blocks.*"`.

    A block is an outermost module that matches `layers`, with all modules inside it. By default blocks are
    those that the model repeats, else all outermost modules. The forward work of each runs once
    more, on the thread of the backward pass, right before the block's first backward
    task. Blocks without backward work are not computed again, nor are collectives.

    `python` adds what `torch.utils.checkpoint` costs on the CPU, by the autograd nodes of the block
    that the trace shows: 50 us a block and 6.9 us a saved tensor in the forward pass, 82 us and
    12.3 us in the backward pass (measured in training steps of perceptrons of 8 to 41 saved tensors
    a block, torch 2.13.0, `use_reentrant=False`, x86, one thread; in a loop of nothing else it is half
    of that). The tensors that a node saves are those of torch's derivative formulas.

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


@contextmanager
def apply(
    model: Any = None, optimizer: Any = None, *, layers: str | None = None, **options: Any
) -> Iterator[None]:
    """Make the change for real: the outermost modules that match run under `torch.utils.checkpoint`."""
    from torch.utils.checkpoint import checkpoint

    if layers is None:
        raise GraphError("checkpointing is confirmed for the blocks that --layers names")
    chosen: dict[str, Any] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in chosen)
        if path and not inside and fnmatchcase(path.removeprefix("module."), layers):
            chosen[path] = module
    if not chosen:
        raise GraphError(f"the model has no module {layers!r}")
    before = {path: module.forward for path, module in chosen.items()}
    for path, module in chosen.items():
        module.forward = partial(checkpoint, before[path], use_reentrant=False)
    try:
        yield
    finally:
        for module in chosen.values():
            del module.forward


def _saved_tensors(work: Selection) -> int:
    """Return how many tensors the autograd nodes of this backward work had saved, 0 without such nodes."""
    nodes = work.where(kind="cpu", op=NODE)
    kinds = ((nodes, 1), (nodes.where(op=SAVES_TWO), 1), (nodes.where(op=SAVES_FIVE), 4))
    saving = sum(len(np.unique(some.call)) * more for some, more in kinds)
    return saving - len(np.unique(nodes.where(op=SAVES_NONE).call))
