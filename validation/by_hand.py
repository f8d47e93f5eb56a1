"""What the tools that ship do, written by hand into a model of modules: the other side of `instrument_lines.py`.

Each function changes a model in place, by its modules: what a model calls as a function stays as it is, which the
tools do see. Equal losses are tested.
"""

# mypy: disable-error-code="misc"

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def pruning(model: nn.Module) -> None:
    """Mask the weights of linear layers and convolutions, two of four, straight through."""

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any, mask: Any) -> Any:  # noqa: ARG004 - as torch calls it
            return weight * mask

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # noqa: ARG004 - as torch calls it
            return grad, None

    def mask_of(weight: Any) -> Any:
        order = weight.detach().abs().reshape(-1, 4).argsort(dim=1, descending=True, stable=True)
        mask = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :2], value=True)
        return mask.reshape(weight.shape)

    class Linear(nn.Linear):
        def forward(self, x: Any) -> Any:
            return functional.linear(x, Masked.apply(self.weight, self.mask), self.bias)

    class Conv2d(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            return self._conv_forward(x, Masked.apply(self.weight, self.mask), self.bias)

    for module in model.modules():
        for plain, masked in ((nn.Linear, Linear), (nn.Conv2d, Conv2d)):
            if type(module) is plain and module.weight[0].numel() % 4 == 0:
                module.mask = mask_of(module.weight)
                module.__class__ = masked


def quantization(model: nn.Module, bits: int = 8) -> None:
    """Round inputs and weights of linear layers and convolutions."""

    def rounded(tensor: Any) -> Any:
        top = 2 ** (bits - 1) - 1
        scale = (tensor.detach().abs().max() / top).clamp(min=1e-12)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        return torch.fake_quantize_per_tensor_affine(tensor, scale, zero, -top - 1, top)

    class Linear(nn.Linear):
        def forward(self, x: Any) -> Any:
            return functional.linear(rounded(x), rounded(self.weight), self.bias)

    class Conv2d(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            return self._conv_forward(rounded(x), rounded(self.weight), self.bias)

    for module in model.modules():
        for plain, changed in ((nn.Linear, Linear), (nn.Conv2d, Conv2d)):
            if type(module) is plain:
                module.__class__ = changed


def rematerialization(model: nn.Module) -> None:
    """Compute activations again in the backward pass."""

    class Again(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GELU):
                setattr(module, name, Again(child))


def replacing(model: nn.Module) -> None:
    """Put ReLU in the place of GELU."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GELU):
                setattr(module, name, nn.ReLU())


def statistics(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Keep, by layer, calls, mean, largest value and finiteness of what activations give."""
    values: dict[str, dict[str, Any]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - as torch calls it
            output = output.detach()
            largest, mean = float(output.abs().max()), float(output.mean())
            row = values.setdefault(name, {"calls": 0, "mean": 0.0, "max_abs": 0.0, "finite": True})
            row["calls"] += 1
            row["mean"] += (mean - row["mean"]) / row["calls"]
            row["max_abs"] = max(row["max_abs"], largest)
            row["finite"] = row["finite"] and largest < float("inf")

        return hook

    for name, module in model.named_modules():
        if isinstance(module, (nn.GELU, nn.ReLU, nn.Linear, nn.Conv2d, nn.LayerNorm)):
            module.register_forward_hook(note(name))
    return values
