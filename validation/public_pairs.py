"""Public pairs: traces of the same work before and after a change, each after predicted from its before.

The traces are not part of the project. A pair whose traces are not at hand is said to be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ranges

import daydream
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.predict.graph_diff import MODEL_ERROR
from daydream.transforms.compose import apply, parse

PARTICLES = "a100_particle_transformer_forward_batch"
SMALL, LARGE = (8, 43), (128, 128)  # batch and length of its two traces
DEVICES = ("h100", "mi300x")
GROUP = "public pairs"
STEP, DEVICE = "step", "device time"  # what is compared: inference traces hold one forward pass and no step


def _pairs() -> Iterator[tuple[str, str, str, str, dict[str, Any], str]]:
    """Yield (title, before, after, optimization, options, what is compared)."""
    loader = "v100_resnet50_loader_workers_"
    yield "loader workers 0 to 4", f"{loader}0", f"{loader}4", "dataloader", {"workers": 4}, STEP
    for model in ("bert_small_inference", "vit_inference", "qwen_0.5b_inference"):
        for here, there in (DEVICES, DEVICES[::-1]):
            title = f"{model.split('_')[0]}, {here} to {there}"
            yield title, f"{here}_{model}", f"{there}_{model}", "gpu", {"to": there}, DEVICE
    # Events are padded to the longest of the batch: 43 particles among 8 events, 128 among 128.
    both = "sequence-length+batch-size"
    for (batch, length), (new, longer) in ((SMALL, LARGE), (LARGE, SMALL)):
        title = f"particles {batch} x {length} to {new} x {longer}"
        options = {"length": longer, "factor": new / batch}
        yield title, f"{PARTICLES}{batch}", f"{PARTICLES}{new}", both, options, DEVICE


@dataclass(frozen=True)
class Found:
    """One pair; without a `pair` its traces are not at hand, or the question was refused."""

    title: str
    asked: str
    compared: str
    before_ns: float = 0.0
    measured_ns: float = 0.0
    predicted_ns: float = 0.0
    pair: ranges.Pair | None = None
    refused: str = ""

    @property
    def half_width(self) -> float | None:
        """The half-width of the range, as a share of the prediction."""
        return None if self.pair is None else self.pair.width(MODEL_ERROR)


def found(traces: Path | None) -> Iterator[Found]:
    """Yield every pair, predicted from the trace before."""
    for title, before, after, optimization, options, what in _pairs():
        paths = [] if traces is None else [traces / "kineto" / f"{name}.json.gz" for name in (before, after)]
        said = " ".join([optimization, *(f"{name} {value:g}" if name == "factor" else f"{name} {value}"
                                         for name, value in options.items())])  # fmt: skip
        if not paths or not all(path.exists() for path in paths):
            yield Found(title, said, what)
            continue
        try:
            was, predicted, measured, pair = (_step if what == STEP else _device)(
                title, paths[0], paths[1], optimization, options
            )
        except NotApplicableError as error:
            yield Found(title, said, what, refused=str(error).splitlines()[0])
            continue
        yield Found(title, said, what, was, measured, predicted, pair)


def rows(pairs: Iterable[Found]) -> Iterator[str]:
    """Yield a row of a Markdown table for every pair."""
    for one in pairs:
        head = f"| {one.title} | {one.asked} | {one.compared} |"
        if one.pair is None:
            yield f"{head} {f'refused: {one.refused}' if one.refused else 'traces not at hand'} | | | | |"
            continue
        width = one.pair.width(MODEL_ERROR)
        holds = "" if one.pair.holds(MODEL_ERROR) else ", outside"
        yield (
            f"{head} {one.before_ns / 1e6:,.3f} | {one.measured_ns / 1e6:,.3f} | {one.predicted_ns / 1e6:,.3f} "
            f"| {one.predicted_ns / one.measured_ns - 1:+.1%} | {width:.0%}{holds} |"
        )


Answer = tuple[float, float, float, ranges.Pair]  # before, predicted and measured in ns


def _step(title: str, before: Path, after: Path, name: str, options: dict[str, Any]) -> Answer:
    replay = daydream.replay(before).recording  # both steps were recorded with the profiler
    comparison = daydream.whatif(replay, name, **options)
    measured = daydream.replay(after).measured_ns
    pair = ranges.of_comparison(GROUP, title, comparison, measured / comparison.replayed_ns)
    return replay.measured_ns, comparison.simulated_ns, measured, pair


def _device(title: str, before: Path, after: Path, name: str, options: dict[str, Any]) -> Answer:
    graph = daydream.build(daydream.load(before))
    was = graph.select(kind="kernel")
    old = was.duration_ns.copy()
    apply(parse(name), graph, options)
    predicted, measured = _kernels(graph), _kernels(daydream.build(daydream.load(after)))
    touched = int(was.duration_ns[was.duration_ns != old].sum())
    pair = ranges.Pair(
        GROUP, title.partition(",")[0], measured / predicted - 1, {"kernels": touched / predicted}, 0.0
    )
    return int(old.sum()), predicted, measured, pair


def _kernels(graph: Graph) -> int:
    return graph.select(kind="kernel").total("duration_ns")
