"""What a checkpointed call costs in Python by the data that its block moves: figures of `checkpointing`.

    python benchmarks/checkpoint_calls.py      about two minutes

Training steps of perceptrons, each with four blocks under `torch.utils.checkpoint`. Printed is what a call
takes beside its block (the thread's CPU time, lower third of the steps): in the forward pass, and around what
is computed again in the backward pass. The time of saved tensors is in neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.utils.checkpoint as under_test
from torch import Tensor, nn

AGAIN = "_run_fn_with_dynamo_disabled"  # calls what computes a block again, behind the hooks
BLOCKS, ROWS = 4, 8
SIZES = ((7, 32), (3, 128), (7, 128), (7, 256), (7, 384), (12, 384), (7, 512), (7, 640), (7, 896))
STEPS, WARM, QUANTILE = 24, 4, 0.3  # (layers, width) of a block above; steps of each


class Clock:
    """Times calls on the thread: `total[name]` holds the ns of each."""

    def __init__(self) -> None:
        self.total: dict[str, list[int]] = {}

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, timed."""

        def timed(*values: Any, **named: Any) -> Any:
            begun = time.thread_time_ns()
            try:
                return call(*values, **named)
            finally:
                self.total.setdefault(name, []).append(time.thread_time_ns() - begun)

        return timed


def measured(layers: int, width: int) -> tuple[float, float]:
    """Return what a checkpointed call takes beside its block in the forward and in the backward pass, us."""
    clock = Clock()
    blocks = []
    for _ in range(BLOCKS):
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        block = nn.Sequential(*parts)
        inner = clock.around("block", block.forward)

        def call(x: Tensor, inner: Callable[[Tensor], Tensor] = inner) -> Tensor:
            return under_test.checkpoint(inner, x, use_reentrant=False)  # type: ignore[no-any-return]

        block.forward = clock.around("call", call)  # type: ignore[method-assign]
        blocks.append(block)
    model, x = nn.Sequential(*blocks), torch.randn(ROWS, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
    with patch.object(under_test, AGAIN, clock.around("again", getattr(under_test, AGAIN))):
        for step in range(WARM + STEPS):
            if step == WARM:
                clock.total.clear()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    # Of each step the blocks run forward, and then once more.
    inside = np.array(clock.total["block"]).reshape(STEPS, 2, BLOCKS)
    beside = [np.array(clock.total[name]).reshape(STEPS, BLOCKS) for name in ("call", "again")]
    found = [np.quantile(whole - inside[:, which], QUANTILE) / 1e3 for which, whole in enumerate(beside)]
    return float(found[0]), float(found[1])


def main() -> None:
    """Print a row for every size."""
    torch.set_num_threads(1)
    print("| MB a block moves | forward, us | backward, us |\n|---:|---:|---:|")
    for layers, width in SIZES:
        moved = layers * (width * width + width + 4 * ROWS * width) * 4
        forward, backward = measured(layers, width)
        print(f"| {moved / 1e6:.2f} | {forward:.0f} | {backward:.0f} |", flush=True)


if __name__ == "__main__":
    main()
