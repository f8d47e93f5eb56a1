"""FLOP of a recorded run against torch's own counter."""

from __future__ import annotations

import pytest

import daydream
from daydream.costs import work

torch = pytest.importorskip("torch")
pytest.importorskip("torch.utils.flop_counter")


def convolutions():
    # No groups: torch counts the weight's gradient of a grouped convolution as if there were none.
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, dilation=2),
        nn.ReLU(), nn.ConvTranspose2d(16, 6, 2, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 5),
    )  # fmt: skip
    return model, torch.randn(3, 4, 33, 33, requires_grad=True)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(layer, torch.nn.Linear(32, 7)), torch.randn(3, 10, 32, requires_grad=True)


def products():
    class Products(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6, 5))
            self.bias = torch.nn.Parameter(torch.randn(3, 4, 5))

        def forward(self, x):
            y = x @ self.weight  # 3 x 4 x 5
            z = torch.baddbmm(self.bias, y, y.transpose(1, 2) @ y)
            return torch.nn.functional.scaled_dot_product_attention(z[None], y[None], y[None])

    return Products(), torch.randn(3, 4, 6, requires_grad=True)


def counted(model, inputs):
    """Return torch's count of a forward and backward pass, by family."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(inputs).square().sum().backward()
    families: dict[str, int] = {}
    for op, flop in counter.get_flop_counts()["Global"].items():
        name = str(op)
        family = "convolution" if "convolution" in name else "attention" if "attention" in name else "matmul"
        families[family] = families.get(family, 0) + flop
    return families


def recorded(model, inputs, path):
    """Return the count from the shapes of a recorded forward and backward pass, by family."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        model(inputs).square().sum().backward()
    profiler.export_chrome_trace(str(path))
    from daydream.graph.build import build

    graph = build(daydream.load(path))
    tasks = graph.select(kind="cpu")
    done = work(graph, tasks)
    return {
        family: int(done.flop[(done.family == family) & (done.flop > 0)].sum())
        for family in ("matmul", "convolution", "attention")
        if (done.family == family).any()
    }


@pytest.mark.parametrize("make", [convolutions, transformer, products])
def test_recorded_shapes_give_the_flop_that_torch_counts(make, tmp_path):
    torch.manual_seed(0)
    model, inputs = make()
    model(inputs).sum().backward()
    expected = counted(model, inputs)
    found = recorded(model, inputs, tmp_path / "trace.json")
    for family, flop in expected.items():
        if flop:
            # a task's share of its operator's work is rounded to whole FLOP
            assert found[family] == pytest.approx(flop, rel=1e-3, abs=10), family


def test_an_lstm_takes_every_weight_once_a_step(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.LSTM(6, 5, num_layers=2)
    inputs = torch.randn(7, 3, 6)
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True, acc_events=True) as profiler:
        model(inputs)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    from daydream.graph.build import build

    graph = build(daydream.load(tmp_path / "trace.json"))
    done = work(graph, graph.select(kind="cpu"))
    matrix = done.is_matrix & (done.flop > 0)
    assert done.flop[matrix].sum() == pytest.approx(2 * 7 * 3 * weights, rel=1e-3)
