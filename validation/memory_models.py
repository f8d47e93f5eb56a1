"""Eight models whose steps hold a few MB, and their steps, unchanged and changed; torch's own, nothing of daydream.

Of the first five all but widths and batches are those of `benchmarks/small_models.py`; GRU, Mixer and UNet were added
to judge. Each repeats `blocks`, so that the same words name a change in all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import torch
from small_models import GPT, WORDS, Pooled, Residual
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
Draw = Callable[[], tuple[Tensor, Tensor]]
Mark = Callable[[str], AbstractContextManager[Any]]


class Stack(nn.Module):
    """What comes first, blocks, what comes last: one after the other."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Recurrent(nn.Module):
    """One layer of LSTM, without its last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape that came in: batch, tokens, width."""
        return self.lstm(x)[0]


class Gated(nn.Module):
    """One layer of GRU, without its last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape that came in: batch, tokens, width."""
        return self.gru(x)[0]


class Average(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Return batch, width."""
        return x.mean(1)


class Mixer(nn.Module):
    """Linear layers over tokens, then over features, each behind a norm and added to what came in."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.features = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape that came in: batch, tokens, width."""
        x = x + self.tokens(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.norm_2(x))


class Convolved(nn.Module):
    """Two convolutions with group norms, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm_1, self.norm_2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the shape that came in."""
        inside = functional.relu(self.norm_1(self.conv_1(x)))
        return functional.relu(x + self.norm_2(self.conv_2(inside)))


class UNet(nn.Module):
    """A quarter of the blocks on the image, two on half its size, and one behind the skip connection."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([Convolved(width) for _ in range(layers)])
        self.up, self.merge = nn.ConvTranspose2d(width, width, 2, 2), nn.Conv2d(2 * width, width, 1)
        self.last = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each pixel: batch, rows, columns, classes."""
        quarter = len(self.blocks) // 4
        x = self._run(self.first(x), 0, quarter)
        inside = self._run(functional.max_pool2d(x, 2), quarter, 3 * quarter)
        x = self._run(self.merge(torch.cat([self.up(inside), x], 1)), 3 * quarter, 4 * quarter)
        return self.last(x).permute(0, 2, 3, 1)

    def _run(self, x: Tensor, first: int, until: int) -> Tensor:
        for block in self.blocks[first:until]:
            x = block(x)
        return x


def cnn(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return residual blocks of width 32 on 16 images of 16 x 16."""
    rows = round(16 * batch)
    last = nn.Sequential(Pooled(), nn.Linear(32, CLASSES))
    model = Stack(nn.Conv2d(3, 32, 3, padding=1), [Residual(32) for _ in range(layers)], last)
    return model, lambda: (torch.randn(rows, 3, 16, 16), torch.randint(CLASSES, (rows,)))


def encoder(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return torch's own encoder layers of width 128, with dropout, on 8 rows of 32 tokens."""
    rows = round(8 * batch)
    blocks: list[nn.Module] = [
        nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True) for _ in range(layers)
    ]
    model = Stack(nn.Linear(32, 128), blocks, nn.Linear(128, CLASSES))
    return model, lambda: (torch.randn(rows, 32, 32), torch.randint(CLASSES, (rows * 32,)))


def gpt(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return a GPT of width 256, attention written out, on 4 rows of 64 tokens: GPT-256 of `validation/cpu`."""
    rows = round(4 * batch)
    model = GPT(layers=layers, width=256, heads=4, context=64)
    return model, lambda: (torch.randint(WORDS, (rows, 64)), torch.randint(WORDS, (rows * 64,)))


def lstm(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return layers of LSTM of width 64 on 16 rows of 32 tokens."""
    rows = round(16 * batch)
    model = Stack(nn.Embedding(WORDS, 64), [Recurrent(64) for _ in range(layers)], nn.Linear(64, WORDS))
    return model, lambda: (torch.randint(WORDS, (rows, 32)), torch.randint(WORDS, (rows * 32,)))


def mlp(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return linear layers of width 256, each with its ReLU, on 512 rows."""
    rows = round(512 * batch)
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(layers)]
    model = Stack(nn.Linear(64, 256), blocks, nn.Linear(256, CLASSES))
    return model, lambda: (torch.randn(rows, 64), torch.randint(CLASSES, (rows,)))


def gru(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return a classifier of layers of GRU of width 64 on 16 rows of 24 tokens."""
    rows = round(16 * batch)
    last = nn.Sequential(Average(), nn.Linear(64, CLASSES))
    model = Stack(nn.Embedding(WORDS, 64), [Gated(64) for _ in range(layers)], last)
    return model, lambda: (torch.randint(WORDS, (rows, 24)), torch.randint(CLASSES, (rows,)))


def mixer(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return an MLP-mixer of width 96 on 16 rows of 32 patches."""
    rows = round(16 * batch)
    last = nn.Sequential(nn.LayerNorm(96), Average(), nn.Linear(96, CLASSES))
    model = Stack(nn.Linear(48, 96), [Mixer(32, 96) for _ in range(layers)], last)
    return model, lambda: (torch.randn(rows, 32, 48), torch.randint(CLASSES, (rows,)))


def unet(layers: int, batch: float) -> tuple[nn.Module, Draw]:
    """Return a small U-Net of width 16 on 8 images of 32 x 32."""
    rows = round(8 * batch)
    labels = rows * 32 * 32
    return UNet(layers, 16), lambda: (torch.randn(rows, 3, 32, 32), torch.randint(CLASSES, (labels,)))


MODELS: dict[str, Callable[[int, float], tuple[nn.Module, Draw]]] = {
    "CNN": cnn, "Encoder": encoder, "GPT": gpt, "GRU": gru, "LSTM": lstm, "MLP": mlp, "Mixer": mixer, "UNet": unet,
}  # fmt: skip


class Training:
    """A model in training with Adam; calling it does a step, a new batch each time.

    `wrap` is given the model before the optimizer is made. Phases are marked with `mark`.
    """

    def __init__(
        self, name: str, *, layers: int = 4, batch: float = 1.0, batches: int = 1, frozen: int = 0,
        wrap: Callable[[Any], nn.Module] | None = None, mark: Mark = nullcontext,
    ) -> None:  # fmt: skip
        model: Any
        model, self.draw = MODELS[name](layers, batch)
        for block in model.blocks[:frozen]:
            block.requires_grad_(False)
        self.model = model if wrap is None else wrap(model)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=1e-4, foreach=False)
        self.batches, self.mark = batches, mark

    def __call__(self) -> None:
        """Do a step: nothing of it is held afterwards but gradients."""
        with self.mark("optimizer"):
            self.optimizer.zero_grad()
        for _ in range(self.batches):
            self._passes()
        with self.mark("optimizer"):
            self.optimizer.step()

    def _passes(self) -> None:
        with self.mark("data"):
            x, y = self.draw()
        with self.mark("forward"):
            scores = self.model(x)
        with self.mark("loss"):
            loss: Any = functional.cross_entropy(scores.flatten(0, -2), y)
        with self.mark("backward"):
            loss.backward()

    def held(self) -> dict[str, int]:
        """Return the bytes of the tensors that stay between steps: each storage once, DTensors by their shard."""
        state = [
            each for one in self.optimizer.state.values() for each in one.values() if torch.is_tensor(each)
        ]
        parameters = list(self.model.parameters())
        tensors = {
            "parameter": [*parameters, *self.model.buffers()],
            "gradient": [each.grad for each in parameters if each.grad is not None],
            "optimizer_state": state,
        }
        seen: set[int] = set()
        return {kind: _distinct_bytes(those, seen) for kind, those in tensors.items()}


def _distinct_bytes(tensors: list[Any], seen: set[int]) -> int:
    total = 0
    for each in tensors:
        storage = getattr(each, "_local_tensor", each).untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
