"""Blocks of a transformer that are computed again in the backward pass, by hand with `apply`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from daydream.optimizations.checkpointing import checkpointing

from daydream import Graph


def rematerialized_blocks(graph: Graph) -> None:
    """Predict `torch.utils.checkpoint` around every block; nothing has to be measured."""
    checkpointing(graph, layers="blocks.*")


@contextmanager
def apply(model: Any, optimizer: Any, **options: Any) -> Iterator[None]:  # noqa: ARG001 - what `apply` gets
    """Checkpoint the blocks."""
    from torch.utils.checkpoint import checkpoint

    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in model.blocks:
            del block.forward
