"""Memory in 16 bits, for files of optimizations: what narrows allocations is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daydream.memory.allocations import Allocations


def hold_16_bits(held: Allocations, **options: Any) -> None:  # noqa: ARG001 - those of any optimization
    """Let products and what follows them hold 16 bits, beside 16-bit copies of their weights.

    A weight is cast once in a forward pass, and its copy stays until that ends and the product's backward
    pass is done. What an operator keeps in 32 bits for itself (the probabilities of an attention that is
    written out) has a copy for the product that reads it. Gradients of weights come in 16 bits and are cast
    to 32. The loss is expected inside of autocast, in 32 bits, as in torch's recipe for it; outside, where
    it follows the model's output, is the least.

    Args:
        held: the allocations.
        **options: of the optimization, whatever they are.
    """
    from daydream.memory.narrow import narrow

    narrow(held)
