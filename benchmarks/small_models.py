"""Small models whose training step is mostly operators of a few microseconds, each with its own loss.

Values are kept small and targets random: a saturated softmax makes denormal gradients, which are slow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[..., Tensor]  # of the model, or of what runs in its place: its compiled self
Setup = tuple[nn.Module, Loss]
WORDS = 64


class Block(nn.Module):
    """Attention, written out, and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape that came in: batch, tokens, width."""
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        seen = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Tokens to the scores of the next one."""

    def __init__(self, layers: int = 4, width: int = 64, heads: int = 4, context: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores: batch, tokens, words."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """Two layers of LSTM cells, stepped through in Python."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(WORDS, width), nn.LSTM(width, width, 2, batch_first=True)
        self.out = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores: batch, tokens, words."""
        return self.out(self.lstm(self.embed(tokens))[0])


class Residual(nn.Module):
    """Two convolutions, and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_1, self.norm_2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape that came in."""
        y = functional.relu(self.norm_1(self.conv_1(x)))
        return functional.relu(x + self.norm_2(self.conv_2(y)))


class Pooled(nn.Module):
    """The mean over an image."""

    def forward(self, x: Tensor) -> Tensor:
        """Return batch, channels."""
        return x.mean((2, 3))


class Broken(nn.Module):
    """A perceptron whose forward pass breaks a compiled graph three times, outside of any loop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc_1, self.fc_2, self.fc_3 = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores: batch, 10."""
        x = functional.relu(self.fc_1(x))
        torch._dynamo.graph_break()  # noqa: SLF001 - torch's own way to ask for one
        x = functional.relu(self.fc_2(x))
        torch._dynamo.graph_break()  # noqa: SLF001
        x = functional.relu(self.fc_3(x))
        torch._dynamo.graph_break()  # noqa: SLF001
        return self.out(x)


def broken(width: int = 64, batch: int = 16) -> Setup:
    """Return four linear layers with a graph break behind each but the last."""
    model = Broken(width)
    x, y = torch.randn(batch, width), torch.randint(10, (batch,))
    return model, lambda run=model: functional.cross_entropy(run(x), y)


def gpt() -> Setup:
    """Return a GPT of 4 blocks, width 64, attention written out: about 3,000 operators a step."""
    return _of_tokens(GPT(), batch=2, tokens=16)


def lstm() -> Setup:
    """Return two layers of LSTM over 16 tokens."""
    return _of_tokens(Recurrent(), batch=4, tokens=16)


def mlp(width: int = 64, batch: int = 16) -> Setup:
    """Return six linear layers."""
    body = [part for _ in range(5) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(width, 10))
    x, y = torch.randn(batch, width), torch.randint(10, (batch,))
    return model, lambda run=model: functional.cross_entropy(run(x), y)


def cnn(width: int = 16, image: int = 16) -> Setup:
    """Return three residual blocks, on four square images."""
    body = [nn.Conv2d(3, width, 3, padding=1), *(Residual(width) for _ in range(3))]
    model = nn.Sequential(*body, Pooled(), nn.Linear(width, 10))
    x, y = torch.randn(4, 3, image, image), torch.randint(10, (4,))
    return model, lambda run=model: functional.cross_entropy(run(x), y)


def encoder(width: int = 64, tokens: int = 16) -> Setup:
    """Return torch's own transformer encoder, two layers, with dropout."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
    inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(inner, nn.Linear(width, 10))
    x, y = torch.randn(4, tokens, width), torch.randint(10, (4 * tokens,))
    return model, lambda run=model: functional.cross_entropy(run(x).flatten(0, 1), y)


def _of_tokens(model: nn.Module, *, batch: int, tokens: int) -> Setup:
    x, y = torch.randint(WORDS, (batch, tokens)), torch.randint(WORDS, (batch * tokens,))
    return model, lambda run=model: functional.cross_entropy(run(x).flatten(0, 1), y)


MODELS: dict[str, Callable[[], Setup]] = {
    "GPT": gpt, "MLP": mlp, "LSTM": lstm, "CNN": cnn, "TransformerEncoder": encoder,
}  # fmt: skip
