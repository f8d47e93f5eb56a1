"""Train a small ResNet-like network on random images, on the GPU if there is one.

    daydream collect examples/train_cnn.py --workers 2

The images come from a DataLoader, so the trace shows what loading costs.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images' features, at half the size where the stride is 2."""
        inner = functional.relu(self.norm_1(self.conv_1(x)))
        return functional.relu(self.norm_2(self.conv_2(inner)) + self.shortcut(x))


def network(classes: int) -> nn.Sequential:
    """Return a network of three residual blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def main() -> None:
    """Train and say how the loss went."""
    parser = argparse.ArgumentParser()
    for name, value in (("steps", 60), ("batch", 16), ("size", 32), ("workers", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = options.steps * options.batch
    images = TensorDataset(torch.randn(rows, 3, options.size, options.size), torch.randint(10, (rows,)))
    model = network(10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (image, label) in enumerate(DataLoader(images, options.batch, num_workers=options.workers)):
        loss = functional.cross_entropy(model(image.to(device)), label.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
