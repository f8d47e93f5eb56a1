"""A link of any bandwidth on one machine, models whose gradients go over it, and what is predicted of them.

Shared by the scripts that hold `ddp` and `fsdp` against torch's own (`ddp_link.py`, `fsdp_link.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LINKS = {2.0: 100.0, 0.5: 100.0, 0.1: 1000.0}  # GB/s: latency of a collective in us


class Link:
    """Carries one transfer behind the other, each for a time of its own, and says when it ends."""

    def __init__(self) -> None:
        self.free = 0.0

    def transfer(self, seconds: float, asked: float) -> float:
        """Return when a transfer is over that was asked for then, both by `time.perf_counter`."""
        self.free = max(self.free, asked) + seconds
        return self.free


def wait_until(end: float) -> None:
    """Stand still until then, by `time.perf_counter`.

    Asking the clock all the time: a thread that sleeps wakes late, and what it does then is slower.
    """
    while time.perf_counter() < end:
        pass


def model_of(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a model of about 14 MB of parameters, and its loss."""
    import torch
    from small_models import GPT, WORDS, Pooled, Residual
    from torch import nn
    from torch.nn import functional

    if name == "GPT":
        tokens, words = torch.randint(WORDS, (4, 64)), torch.randint(WORDS, (4 * 64,))
        model = GPT(layers=4, width=256, heads=4, context=64)
        return model, lambda model: functional.cross_entropy(model(tokens).flatten(0, 1), words)
    if name == "MLP":
        body = [part for _ in range(6) for part in (nn.Linear(768, 768), nn.ReLU())]
        x, y = torch.randn(128, 768), torch.randint(10, (128,))
        mlp = nn.Sequential(*body, nn.Linear(768, 10))
        return mlp, lambda model: functional.cross_entropy(model(x), y)
    images, y = torch.randn(2, 3, 8, 8), torch.randint(10, (2,))
    residual = [nn.Conv2d(3, 128, 3, padding=1), *(Residual(128) for _ in range(12))]
    cnn = nn.Sequential(*residual, Pooled(), nn.Linear(128, 10))
    return cnn, lambda model: functional.cross_entropy(model(images), y)


def at_speed(recorded_ms: float, one: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured, with how much faster the unchanged step was when it was recorded.

    A link takes as long however fast the machine is, so its ratio holds at one speed only.
    """
    return {"speed": round(one["step_ms"] / recorded_ms, 4), **one}
