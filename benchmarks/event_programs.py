"""Three small training steps of our own, on which the profiler's cost is measured.

They hold what training steps are made of: attention, perceptrons, normalization,
convolutions, their backward passes, and an optimizer that goes parameter by parameter.
Nothing here draws from the script's random numbers or reads its defaults of dtype and
device: parameters are filled from a generator of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SEED = 1
IDLE = "aten::_debug_has_internal_overlap"  # an operator that only looks at a field of its tensor


@dataclass
class Program:
    """One training step in its three parts; `forward` returns the loss."""

    forward: Callable[[], Any]
    optimizer: Any


def programs() -> list[Program]:
    """Return the programs, ready to run on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")

    def program(model: Any, *shape: int) -> Program:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(random(*parameter.shape) * 0.02)
        x, target = random(*shape), random(1, 1)

        def forward() -> Any:
            return ((model(x) - target) ** 2).mean()

        # A rate of 0: the values stay as they are, however often a step is run.
        return Program(forward, torch.optim.Adam(model.parameters(), lr=0.0, foreach=False))

    return [program(*case) for case in _cases()]


def identities(count: int) -> Callable[[], Any]:
    """Return a call of a module that calls so many modules that do nothing."""
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Identity() for _ in range(count)))
    x = torch.zeros(1, dtype=torch.float32, device="cpu")
    return lambda: model(x)


def annotation() -> Callable[[], Any]:
    """Return a call that opens and closes a range, as an optimizer's step does."""
    from torch.profiler import record_function

    def call() -> None:
        with record_function("daydream calibration"):
            pass

    return call


def joined(tensors: int) -> Callable[[], Any]:
    """Return a call of one operator with a list of so many tensors."""
    import torch

    parts = [torch.zeros(1, dtype=torch.float32, device="cpu") for _ in range(tensors)]
    return lambda: torch.cat(parts)


def nothing() -> Callable[[], Any]:
    """Return a call of the operator that does next to nothing."""
    import torch

    x = torch.zeros(1, dtype=torch.float32, device="cpu")
    call: Any = getattr(torch.ops.aten, IDLE.removeprefix("aten::"))
    return lambda: call(x)


def _cases() -> Iterator[tuple[Any, ...]]:
    """Yield (model, shape of its input)."""
    import torch
    from torch import nn
    from torch.nn import functional

    # skip_init: a layer's own initialization would draw from the script's random numbers.
    def layer(kind: Any, *sizes: int, **settings: Any) -> Any:
        skip_init: Any = nn.utils.skip_init
        return skip_init(kind, *sizes, device="cpu", dtype=torch.float32, **settings)

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.norm = heads, layer(nn.LayerNorm, width)
            self.qkv, self.out = layer(nn.Linear, width, 3 * width), layer(nn.Linear, width, width)

        def forward(self, x: Any) -> Any:
            batch, time, width = x.shape
            parts = self.qkv(self.norm(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            seen = (query @ key.transpose(-2, -1) * 0.25).softmax(-1) @ value
            return x + self.out(seen.transpose(1, 2).reshape(batch, time, width))

    class Perceptron(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.up = layer(nn.LayerNorm, width), layer(nn.Linear, width, 2 * width)
            self.down = layer(nn.Linear, 2 * width, width)

        def forward(self, x: Any) -> Any:
            return x + self.down(functional.gelu(self.up(self.norm(x))))

    class Convolution(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv = layer(nn.Conv2d, width, width, 3, padding=1, bias=False)
            self.norm = layer(nn.BatchNorm2d, width, track_running_stats=False)

        def forward(self, x: Any) -> Any:
            return functional.relu(x + self.norm(self.conv(x)))

    yield nn.Sequential(Attention(32, 2), Perceptron(32), Attention(32, 2), Perceptron(32)), 2, 8, 32
    yield nn.Sequential(*(Convolution(8) for _ in range(4))), 2, 8, 12, 12
    hidden = (part for _ in range(5) for part in (layer(nn.Linear, 48, 48), nn.ReLU()))
    yield nn.Sequential(*hidden, layer(nn.Linear, 48, 8)), 16, 48
