"""Which layers a compiled model's kernels are of, as `daydream collect` tells, on the CPU.

    python validation/compiled_layers.py [NAME...]
    python validation/compiled_layers.py --recordings FOLDER --write docs/evaluation

Each model trains twice under `daydream collect`, as it is and compiled; a row a model is printed, in Markdown. Needs torch
2.13 and a C++ compiler. The models are those of benchmarks/small_models.py, and one whose blocks break the graph.
Recordings are kept in a folder that is given, and read from there where they exist.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from tables import keep

import daydream
from daydream.costs import work
from daydream.model.compiled_calls import _compilable, _library_calls, fused_bodies_ns

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
CACHE_LINE = 64  # bytes
SUM_OF_GRADIENTS = ("aten::add", "aten::add_")
PRODUCT = re.compile(r"^aten::(addmm|mm|bmm|baddbmm|\w*convolution\w*)$")
FUSED = re.compile(r"(graph_\d+_)?cpp_fused")
STEPS, RECORDED = 44, 12
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

    target = folder / f"{name}{'--compiled' if compiled else ''}.parquet"
    if target.exists():
        return daydream.load(target)
    words = [sys.executable, "-m", "daydream", "collect", "--no-suggestions", "--steps", str(RECORDED)]
    words += ["-o", str(target)]
    words += [str(Path(__file__).resolve()), "--train", name]
    subprocess.run([*words, "--compiled"] if compiled else words, check=True, capture_output=True, cwd=ROOT)
    return daydream.load(target)


def sums(trace: Any, layers: set[str] | None = None) -> dict[str, float]:
    """Return the share of each layer, two parts of its path, of the time of both passes that has a layer.

    The model itself is left out, whose own time is what calls the compiled graphs and guards them, and
    the loss, which is not compiled. With `layers` only these count. Of each layer it is the median of the
    steps, as others on the machine may hold up one of them.
    """
    import daydream

    graph = daydream.build(trace)
    roots = roots_of(trace)
    tasks = graph.select(phase=("forward", "backward"))
    steps, which = np.unique(tasks.step, return_inverse=True)
    found: dict[str, np.ndarray] = {}
    columns = tasks.layer.tolist(), which.tolist(), tasks.duration_ns.tolist()
    for layer, step, ns in zip(*columns, strict=True):
        top = ".".join((layer or "").split(".")[:2])
        if top not in roots and (layers is None or top in layers):
            found.setdefault(top, np.zeros(len(steps)))[step] += ns
    typical = {layer: float(np.median(of_steps)) for layer, of_steps in found.items()}
    return {layer: ns / sum(typical.values()) for layer, ns in typical.items()}


def with_products(trace: Any) -> set[str]:
    """Return the layers that call a matrix library, two parts of their paths: such calls stay calls."""
    names = np.array([*(bool(PRODUCT.match(name)) for name in trace.text("name")), False])
    rows = np.flatnonzero(names[trace["name"]])
    return {".".join(layer.split(".")[:2]) for layer in trace.values("layer", rows) if layer}


def largest_difference(before: dict[str, float], after: dict[str, float]) -> float:
    """Return by how much a layer's share differs at most, in points."""
    return 100 * max((abs(after.get(each, 0) - share) for each, share in before.items()), default=0)


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
        return f"| {name} | it ran uncompiled while it was recorded | | | | | |"
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
    products = with_products(eager)
    of_all = largest_difference(sums(eager), sums(compiled))
    of_products = largest_difference(sums(eager, products), sums(compiled, products))
    precision, recall = precision_and_recall(predicted_pairs(eager, roots), inductors_pairs(compiled, roots))
    return (
        f"| {name} | {has.sum()} of {len(fused)} | {ns[has].sum() / ns.sum():.1%} | {layered / ns.sum():.1%} "
        f"| {of_all:.1f} points | {of_products:.1f} points | {precision:.0%}, {recall:.0%} |"
    )


def main() -> None:
    """Print the table."""
    words = sys.argv[1:]
    if words[:1] == ["--train"]:
        train(words[1], compiled="--compiled" in words)
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"models: {'; '.join(MODELS)}")
    parser.add_argument("--recordings", type=Path, help="folder to keep recordings in, and to read them from")
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    options = parser.parse_args()
    lines = [
        (
            "| model | fused rows matched | fused time with operators | with a layer "
            "| a layer's share, at most off | among layers with products | fused together: precision, recall |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or MODELS:
            lines.append(row(name, options.recordings or Path(folder)))
            print(lines[-1], flush=True)
    if options.write is not None:
        keep(options.write, "compiled models", lines)


# Which layers' work a compiler fuses: predicted from the uncompiled recording, against what Inductor fused. Both
# leave out sums of gradients where paths meet, and what moves less than a cache line, as counters do.

Pair = tuple[str, str, str]  # the pass and two layers; of one layer alone both are the same


def predicted_pairs(eager: Any, roots: set[str]) -> set[Pair]:
    """Return the layers whose work is predicted to be in one loop, two by two, each also with itself."""
    graph = daydream.build(eager)
    compiled, accumulate = _compilable(graph)
    library = compiled.where(within=_library_calls(graph))
    others = graph.select(kind="cpu") - compiled - accumulate
    loops = (compiled - library).stretches(others | library, on_lane=True)
    loops = loops.where(fused_bodies_ns(graph, loops) > 0)  # views and dispatch alone make no loop
    tasks = loops.by_group
    works = work(graph, tasks).family != None  # noqa: E711 - an array
    works &= ~((tasks.phase == "backward") & np.isin(tasks.op.astype(str), SUM_OF_GRADIENTS))
    number = np.repeat(np.arange(len(loops)), loops.sizes)
    found: set[Pair] = set()
    groups: dict[tuple[int, str], set[str]] = {}
    for place, layer, phase in zip(
        number[works].tolist(), tasks.layer[works], tasks.phase[works], strict=True
    ):
        groups.setdefault((place, phase), set()).add(_name(layer, roots))
    for (_, phase), layers in groups.items():
        found |= _pairs(phase, layers)
    return found


def inductors_pairs(compiled: Any, roots: set[str]) -> set[Pair]:
    """Return the layers whose work is in one fused kernel of Inductor's, as `predicted_pairs` does."""
    found: set[Pair] = set()
    for code in np.unique(compiled["handle"][compiled["handle"] >= 0]).tolist():
        identifier = compiled.handles.identifiers[code]
        if "fused" not in str(identifier):
            continue
        handles = compiled.handles[identifier]
        phase = "backward" if any(one.phase == "backward" for one in handles) else "forward"
        works = [one for one in handles if one.weight is None or one.weight >= CACHE_LINE]
        found |= _pairs(phase, {_name(one.layer, roots) for one in works})
    return found


def precision_and_recall(predicted: set[Pair], real: set[Pair]) -> tuple[float, float]:
    """Return which part of the predicted pairs is real, and which part of the real ones is predicted."""
    both = len(predicted & real)
    return both / max(len(predicted), 1), both / max(len(real), 1)


def _name(layer: str | None, roots: set[str]) -> str:
    return "" if layer is None or layer in roots else layer


def _pairs(phase: str, layers: Iterable[str]) -> set[Pair]:
    known = sorted(set(layers) - {""})
    return {(phase, one, one) for one in known} | {(phase, *both) for both in combinations(known, 2)}


if __name__ == "__main__":
    main()
