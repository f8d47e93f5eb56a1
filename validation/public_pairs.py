"""Public pairs: traces of the same work before and after a change, each after predicted from its before.

The traces are not part of the project. A pair whose traces are not at hand is said to be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daydream
from daydream.graph.graph import Graph
from daydream.transforms.compose import apply, parse

PARTICLES = "a100_particle_transformer_forward_batch"
DEVICES = ("h100", "mi300x")
STEP, DEVICE = "step", "device time"  # what is compared: inference traces hold one forward pass and no step


def _pairs() -> Iterator[tuple[str, str, str, str, dict[str, Any], str]]:
    """Yield (title, before, after, optimization, options, what is compared)."""
    loader = "v100_resnet50_loader_workers_"
    yield "loader workers 0 to 4", f"{loader}0", f"{loader}4", "dataloader", {"workers": 4}, STEP
    for model in ("bert_small_inference", "vit_inference", "qwen_0.5b_inference"):
        for here, there in (DEVICES, DEVICES[::-1]):
            title = f"{model.split('_')[0]}, {here} to {there}"
            yield title, f"{here}_{model}", f"{there}_{model}", "gpu", {"to": there}, DEVICE
    yield "batch 8 to 128", f"{PARTICLES}8", f"{PARTICLES}128", "batch-size", {"factor": 16.0}, DEVICE
    yield "batch 128 to 8", f"{PARTICLES}128", f"{PARTICLES}8", "batch-size", {"factor": 1 / 16}, DEVICE


def rows(traces: Path | None) -> Iterator[str]:
    """Yield a row of a Markdown table for every pair."""
    for title, before, after, optimization, options, what in _pairs():
        paths = [] if traces is None else [traces / "kineto" / f"{name}.json.gz" for name in (before, after)]
        said = " ".join([optimization, *(f"{name} {value:g}" if name == "factor" else f"{name} {value}"
                                         for name, value in options.items())])  # fmt: skip
        if not paths or not all(path.exists() for path in paths):
            yield f"| {title} | {said} | {what} | traces not at hand | | | |"
            continue
        was, predicted, measured = (_step if what == STEP else _device)(*paths, optimization, options)
        yield (
            f"| {title} | {said} | {what} | {was / 1e6:,.3f} | {measured / 1e6:,.3f} | {predicted / 1e6:,.3f} "
            f"| {predicted / measured - 1:+.1%} |"
        )


def _step(before: Path, after: Path, name: str, options: dict[str, Any]) -> tuple[float, float, float]:
    comparison = daydream.whatif(before, name, **options)
    return comparison.measured_ns, comparison.predicted_ns, daydream.replay(after).measured_ns


def _device(before: Path, after: Path, name: str, options: dict[str, Any]) -> tuple[float, float, float]:
    graph = daydream.build(daydream.load(before))
    was = _kernels(graph)
    apply(parse(name), graph, options)
    return was, _kernels(graph), _kernels(daydream.build(daydream.load(after)))


def _kernels(graph: Graph) -> int:
    return graph.select(kind="kernel").total("duration_ns")
