"""How many operators of a training step instrumentation offers, against hooks on modules.

    python validation/instrument_coverage.py docs/evaluation

A `TorchDispatchMode` that knows nothing of daydream counts the operators below autograd, in the same step and in the
same thread: what it sees is what runs. Needs torch; takes a minute on a laptop's CPU. Counts, no times.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from tables import keep
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from daydream.instrument import Tool, apply
from daydream.instrument.torch_private import current_node

CURRENT_NODE = current_node()


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, self.heads, -1).transpose(1, 2) for each in self.qkv(x).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, 64), nn.Embedding(16, 64)
        self.blocks = nn.Sequential(*(Block(64) for _ in range(4)))
        self.head = nn.Linear(64, 100)

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        return self.head(self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1]))))


class Residual(nn.Module):
    """A block with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(16) for _ in range(4)))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class LSTM(nn.Module):
    """A small recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(100, 32), nn.LSTM(32, 64, 2), nn.Linear(64, 100)

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        return self.head(self.lstm(self.tokens(x))[0])


class Encoder(nn.Module):
    """A small encoder."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.tokens = nn.Embedding(100, 64)
        self.layers, self.head = (
            nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
            nn.Linear(64, 100),
        )

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        return self.head(self.layers(self.tokens(x)))


MODELS = {
    "GPT, 4 blocks": GPT,
    "ResNet-like, 4 blocks": ResNet,
    "LSTM, 2 layers": LSTM,
    "encoder, 3 layers": Encoder,
}


class Counting(TorchDispatchMode):
    """Counts operators by phase and name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        phase = "backward" if CURRENT_NODE() is not None else "forward"
        self.seen[phase][str(func)] += 1
        return func(*args, **(kwargs or {}))


def step_of(net: nn.Module) -> Any:
    """Return a function that runs the forward and the backward pass once."""
    torch.manual_seed(0)
    images = isinstance(net, ResNet)
    x = torch.randn(2, 3, 16, 16) if images else torch.randint(100, (2, 16))
    y = torch.randint(10, (2,)) if images else torch.randint(100, (2, 16))

    def step() -> None:
        out = net(x)
        F.cross_entropy(out.flatten(0, -2), y.flatten()).backward()
        net.zero_grad()

    return step


def hooked(net: nn.Module, step: Any) -> tuple[int, int]:
    """Return how many points hooks on leaf modules see, forward and backward."""
    seen, handles = [0, 0], []

    def forward(*_: Any) -> None:
        seen[0] += 1

    def backward(*_: Any) -> None:
        seen[1] += 1

    for module in net.modules():
        if not list(module.children()):
            handles += [module.register_forward_hook(forward), module.register_full_backward_hook(backward)]
    step()
    for handle in handles:
        handle.remove()
    return seen[0], seen[1]


def row_of(name: str, net: nn.Module) -> str:
    """Return the line of one model."""
    step = step_of(net)
    step()  # what is made once is made
    truth, ids = Counting(), Counter[str]()
    offered: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}

    def note(op: Any) -> None:
        ids[op["op_id"]] += 1
        if not op["composite"] and op["namespace"] != "autograd":
            offered[op["phase"]][str(op["op"])] += 1

    tool = Tool()
    tool.add_inst_for_op(note)
    tool.add_inst_for_op(note, backward=True)
    with truth:
        step()
    with apply(tool):
        step()
    module_points = hooked(net, step)
    shown = [name]
    for place, phase in enumerate(("forward", "backward")):
        run, got = truth.seen[phase], offered[phase]
        missed, extra = run - got, got - run
        shown += [
            str(run.total()),
            str(got.total()),
            str(missed.total()),
            str(extra.total()),
            str(module_points[place]),
        ]
        for what, these in (("missed", missed), ("extra", extra)):
            if these:
                NOTES.append(
                    f"- {name}, {phase}, {what}: {', '.join(f'{k} {v}' for k, v in sorted(these.items()))}"
                )
    shown.append(str(max(ids.values())))
    return "| " + " | ".join(shown) + " |"


NOTES: list[str] = []


def main() -> None:
    """Print the table, or write it into the folder that is named."""
    rows = [row_of(name, make()) for name, make in MODELS.items()]
    head = "| model | forward ran | offered | missed | extra | hooks | backward ran | offered | missed | extra | hooks "
    head += "| most often one id was offered |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    notes = NOTES or ["None was missed, none was offered twice."]
    keep(Path(sys.argv[1]) if sys.argv[1:] else None, "coverage", [head, *rows, "", *notes])


if __name__ == "__main__":
    main()
