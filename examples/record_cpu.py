"""Record a training loop on the CPU with torch.profiler: how `mlp_cpu.json.gz` was made.

    python examples/record_cpu.py my_trace.json.gz

Needs torch (`pip install torch`); nothing else in this folder does. The loop is an
ordinary one. What makes the trace useful stands in `main`: the profiler's schedule,
whose steps become the trace's steps, and input shapes. The hooks name each layer.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

WARM_UP, RECORDED = 10, 6  # steps; the first ones pay for allocations
BATCH, INPUTS, WIDTH, CLASSES, HIDDEN_LAYERS = 64, 128, 256, 10, 6
KEPT = (  # of the profiler's own header; no host name, no environment, no path goes into the file
    "schemaVersion", "deviceProperties", "baseTimeNanoseconds", "displayTimeUnit", "traceEvents",
)  # fmt: skip


def model() -> nn.Sequential:
    """Return a perceptron: input, hidden layers, output, ReLU between them."""
    widths = [INPUTS, *[WIDTH] * HIDDEN_LAYERS]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def name_layers(network: nn.Module) -> None:
    """Put a range called `nn.Module: <path>` around the forward call of every layer."""
    for path, layer in network.named_modules():
        open_ranges: list[Any] = []

        def enter(*_: Any, path: str = path, open_ranges: list[Any] = open_ranges) -> None:
            open_ranges.append(record_function(f"nn.Module: {path or 'model'}"))
            open_ranges[-1].__enter__()

        def leave(*_: Any, open_ranges: list[Any] = open_ranges) -> None:
            open_ranges.pop().__exit__(None, None, None)

        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)


def save(profiler: profile, path: Path) -> None:
    """Write the recording as .json.gz, with the header fields that are named in `KEPT` and no others."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(whole))
        document = json.loads(whole.read_bytes())
    kept = {key: document[key] for key in KEPT if key in document}
    text = json.dumps({"traceName": "an MLP trained on a CPU", **kept}, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, 9, mtime=0))


def main(path: Path) -> None:
    """Train, and record the last steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # one lane of CPU work: a thread pool's workers are not in the trace
    torch.set_flush_denormal(True)  # else steps slow down as gradients vanish

    steps = WARM_UP + RECORDED
    rows = BATCH * steps
    data = TensorDataset(torch.randn(rows, INPUTS), torch.randint(CLASSES, (rows,)))
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    loss_of = nn.CrossEntropyLoss()
    name_layers(network)

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=WARM_UP - 1, active=RECORDED),
        on_trace_ready=lambda profiler: save(profiler, path),
        record_shapes=True,
    ) as profiler:
        for inputs, labels in DataLoader(data, batch_size=BATCH):
            optimizer.zero_grad()
            loss = loss_of(network(inputs), labels)
            loss.backward()
            optimizer.step()
            profiler.step()  # a step ends here


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".json.gz"):
        sys.exit("usage: python record_cpu.py TRACE.json.gz")
    main(Path(sys.argv[1]))
