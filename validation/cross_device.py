"""Kernel time predicted for another GPU or more work against what was measured there.

    python validation/cross_device.py --traces ../shared/traces --write docs/evaluation

Public pairs: three models recorded on an H100 and on an MI300X, each predicted from the
other; a forward pass recorded with 8 events of 43 particles and with 128 of 128, each predicted from the
other. Judged is the sum of all kernels' durations. Nothing is fitted on a pair: peaks and sustained
shares are published figures, fixed costs come from other traces.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import numpy as np
from public_pairs import LARGE, PARTICLES, SMALL
from tables import keep

import daydream
from daydream.costs import retime, work
from daydream.costs.devices import find_device
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection

MODELS = ("bert_small_inference", "vit_inference", "qwen_0.5b_inference")
GPUS = {"h100": "H100 SXM", "mi300x": "MI300X"}


def main() -> None:
    """Print the tables, or write them as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder with kineto/ of public traces")
    parser.add_argument("--write", type=Path, help="the folder of CSV files; without it they are printed")
    options = parser.parse_args()
    folder = options.traces / "kineto"
    keep(options.write, "cross device", (*devices(folder), "", *batches(folder)))


def devices(folder: Path) -> Iterator[str]:
    """Yield the table of devices."""
    yield (
        "| model | from | to | measured there ms | predicted ms | error | a call by itself "
        "| by peak bandwidth alone | models |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    errors, simple = [], []
    for model in MODELS:
        for here, there in (("h100", "mi300x"), ("mi300x", "h100")):
            paths = [folder / f"{gpu}_{model}.json.gz" for gpu in (here, there)]
            if not all(path.exists() for path in paths):
                yield f"| {model} | {here} | {there} | trace not at hand | | | | | |"
                continue
            source, target = (_graph(path) for path in paths)
            kernels = source.select(kind="kernel")
            retimed = retime(source, kernels, device=GPUS[there])
            measured = target.select(kind="kernel").total("duration_ns")
            predicted = int(retimed.duration_ns.sum())
            by_bandwidth = kernels.total("duration_ns") * (
                find_device(GPUS[here]).bandwidth / find_device(GPUS[there]).bandwidth
            )
            errors.append(predicted / measured - 1)
            simple.append(by_bandwidth / measured - 1)
            yield (
                f"| {model} | {here} | {there} | {measured / 1e6:.3f} | {predicted / 1e6:.3f} | "
                f"{errors[-1]:+.1%} | {_miss(source, retimed.duration_ns, target):.2f} x | {simple[-1]:+.1%} | "
                f"{_models(retimed.coverage)} |"
            )
    if errors:
        yield (f"| median, worst of {len(errors)} | | | | | {_summary(errors)} | | {_summary(simple)} | |")


def batches(folder: Path) -> Iterator[str]:
    """Yield the table of other sizes: kernels that both traces have, given the work that they had there."""
    yield "| from | to | kernels | before ms | measured ms | predicted ms | error | within 1.5 x | in proportion |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (old, length), (new, other) in ((SMALL, LARGE), (LARGE, SMALL)):
        head = f"| {old} x {length} | {new} x {other} |"
        paths = [folder / f"{PARTICLES}{size}.json.gz" for size in (old, new)]
        if not all(path.exists() for path in paths):
            yield f"{head} trace not at hand | | | | | | |"
            continue
        here, there = _alike(*(_graph(path).select(kind="kernel") for path in paths))
        was, now = work(here.graph, here), work(there.graph, there)
        flop = np.where(was.flop > 0, now.flop / np.maximum(was.flop, 1), 1.0)
        nbytes = now.nbytes / was.nbytes
        before, measured = here.duration_ns, there.duration_ns
        predicted = retime(here.graph, here, flop_factor=flop, bytes_factor=nbytes).duration_ns
        close = np.abs(np.log(predicted / measured)) < np.log(1.5)
        naive = (before * np.where(flop != 1, flop, nbytes)).sum()
        yield (
            f"{head} {len(here)} | {before.sum() / 1e6:.2f} | {measured.sum() / 1e6:.2f} | "
            f"{predicted.sum() / 1e6:.2f} | {predicted.sum() / measured.sum() - 1:+.1%} | {close.mean():.0%} | "
            f"{naive / measured.sum() - 1:+.0%} |"
        )


def _alike(here: Selection, there: Selection) -> tuple[Selection, Selection]:
    """Return the kernels of one order of operators that both have, those whose bytes are known."""
    amounts = [work(each.graph, each) for each in (here, there)]
    calls = [
        list(zip(each.op.tolist(), amount.family.tolist(), strict=True))
        for each, amount in zip((here, there), amounts, strict=True)
    ]
    blocks = SequenceMatcher(a=calls[0], b=calls[1], autojunk=False).get_matching_blocks()
    first = np.concatenate([np.arange(block.a, block.a + block.size) for block in blocks])
    second = np.concatenate([np.arange(block.b, block.b + block.size) for block in blocks])
    known = (amounts[0].nbytes[first] > 0) & (amounts[1].nbytes[second] > 0)
    return here.graph.tasks(here.ids[first[known]]), there.graph.tasks(there.ids[second[known]])


def _miss(source: Graph, predicted_ns: np.ndarray, target: Graph) -> float:
    """Return by what factor calls are missed that both traces have, by operator and shapes.

    The mean of its logarithm, by measured time: what is too long does not make up for what is too short.
    """
    here = _by_call(source, predicted_ns)
    there = _by_call(target, target.select(kind="kernel").duration_ns)
    both = sorted(here.keys() & there.keys())
    measured = np.array([there[call] for call in both])
    missed = np.abs(np.log([here[call] / there[call] for call in both]))
    return float(np.exp(np.average(missed, weights=measured)))


def _by_call(graph: Graph, duration_ns: np.ndarray) -> dict[tuple[str, str], float]:
    calls = work(graph, graph.select(kind="kernel")).call
    if graph.trace is None:
        return {}
    names, shapes = (
        np.array([*graph.trace.text(column), ""], dtype=object)[graph.trace[column][np.maximum(calls, 0)]]
        for column in ("name", "shapes")
    )
    found: dict[tuple[str, str], float] = {}
    for call, name, shape, ns in zip(calls, names, shapes, duration_ns, strict=True):
        if call >= 0:
            found[name, shape] = found.get((name, shape), 0.0) + float(ns)
    return found


@cache
def _graph(path: Path) -> Graph:
    from daydream.graph.build import build

    return build(daydream.load(path))


def _models(coverage: dict[str, int]) -> str:
    total = sum(coverage.values())
    return ", ".join(f"{name} {ns / total:.0%}" for name, ns in sorted(coverage.items()) if ns >= total / 200)


def _summary(errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"{statistics.median(sizes):.1%}, {max(sizes):.1%}"


if __name__ == "__main__":
    main()
