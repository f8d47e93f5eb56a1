"""Which layers a compiled model's kernels are of, as `daydream collect` tells, on the CPU.

    python validation/compiled_layers.py [NAME...]

Each model trains twice under `daydream collect`, as it is and compiled; a row a model is printed, in Markdown. Needs torch
2.13 and a C++ compiler. The models are those of benchmarks/small_models.py, and one whose blocks break the graph.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
FUSED = re.compile(r"(graph_\d+_)?cpp_fused")
STEPS = 16
MODELS = ("MLP", "MLP, wide", "GPT", "CNN", "CNN, wide", "TransformerEncoder", "GPT, breaks", "MLP, breaks")
WIDE: dict[str, dict[str, int]] = {"MLP": {"width": 512, "batch": 256}, "CNN": {"width": 32, "image": 64}}


def train(name: str, *, compiled: bool) -> None:
    """Train a model for some steps, as a script would."""
    import torch
    from small_models import MODELS as SMALL
    from small_models import Block
    from torch import nn

    short, _, variant = name.partition(", ")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make: Any = SMALL[short]
    model, loss = make(**WIDE[short]) if variant == "wide" else make()
    if variant == "breaks":  # behind each activation, or where there is none, behind each block
        for module in model.modules():
            if isinstance(module, nn.ReLU | Block):
                module.register_forward_hook(lambda *_: torch._dynamo.graph_break())  # noqa: SLF001
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = torch.compile(model) if compiled else model
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(run).backward()
        optimizer.step()


def collected(name: str, folder: Path, *, compiled: bool) -> Any:
    """Return the trace of a model's training."""
    import daydream

    target = folder / f"{name}-{compiled}.parquet"
    words = [sys.executable, "-m", "daydream", "collect", "--no-suggestions", "-o", str(target)]
    words += [str(Path(__file__).resolve()), "--train", name]
    subprocess.run([*words, "--compiled"] if compiled else words, check=True, capture_output=True, cwd=ROOT)
    return daydream.load(target)


def sums(trace: Any) -> dict[str, float]:
    """Return the share of each layer, two parts of its path, of the time of both passes that has a layer.

    The model itself is left out, whose own time is what calls the compiled graphs and guards them, and
    the loss, which is not compiled.
    """
    import daydream

    graph = daydream.build(trace)
    roots = roots_of(trace)
    tasks = graph.select(phase=("forward", "backward"))
    found: dict[str, float] = {}
    for layer, ns in zip(tasks.layer.tolist(), tasks.duration_ns.tolist(), strict=True):
        top = ".".join((layer or "").split(".")[:2])
        if top not in roots:
            found[top] = found.get(top, 0) + ns
    whole = sum(found.values())
    return {layer: ns / whole for layer, ns in found.items()}


def roots_of(trace: Any) -> set[str]:
    """Return the names of what is no layer: nothing, and the model's own class."""
    return {
        "",
        "loss",
        *(module for module in trace.text("layer") if "." not in module and module[:1].isupper()),
    }


def row(name: str, folder: Path) -> str:
    """Return a row of the table."""
    eager, compiled = (collected(name, folder, compiled=each) for each in (False, True))
    names = compiled.text("name")
    is_fused = np.array([*(bool(FUSED.match(each)) for each in names), False])
    fused = np.flatnonzero(is_fused[compiled["name"]])
    if not len(fused):
        return f"| {name} | it ran uncompiled while it was recorded | | | |"
    ns = compiled["duration_ns"][fused]
    has = compiled["handle"][fused] >= 0
    roots = roots_of(eager)
    layered = 0.0
    for code, spent in zip(compiled["handle"][fused].tolist(), ns.tolist(), strict=True):
        if code < 0:
            continue
        identifier = compiled.handles.identifiers[code]
        owners = zip(compiled.handles.shares(identifier), compiled.handles[identifier], strict=True)
        layered += spent * sum(share for share, handle in owners if handle.layer not in roots)
    before, after = sums(eager), sums(compiled)
    apart = max(
        (abs(after.get(each, 0) - share) for each, share in before.items() if each not in roots), default=0
    )
    return (
        f"| {name} | {has.sum()} of {len(fused)} | {ns[has].sum() / ns.sum():.1%} | {layered / ns.sum():.1%} "
        f"| {apart * 100:.1f} points |"
    )


def main() -> None:
    """Print the table."""
    words = sys.argv[1:]
    if words[:1] == ["--train"]:
        train(words[1], compiled="--compiled" in words)
        return
    print(
        "| model | fused rows matched | fused time with operators | with a layer | a layer's share, at most off |"
    )
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in words or MODELS:
            print(row(name, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
