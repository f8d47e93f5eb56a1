"""Kernel time predicted for another GPU or another batch size against what was measured there.

    python validation/cross_device.py --traces ../shared/traces --write docs/costs.md

Public pairs: three models recorded on an H100 and on an MI300X, each predicted from the
other; a forward pass recorded at batch 8 and 128, each predicted from the other. Judged
is the sum of all kernels' durations. Nothing is fitted on a pair: peaks and sustained
shares are published figures, fixed costs come from other traces.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import daydream
from daydream.costs import resized_work, retime, scaled_time
from daydream.costs.devices import find_device
from daydream.graph.graph import Graph

MODELS = ("bert_small_inference", "vit_inference", "qwen_0.5b_inference")
GPUS = {"h100": "H100 SXM", "mi300x": "MI300X"}
BATCH = "a100_particle_transformer_forward_batch"
BATCHES = (8, 128)
BEGIN, END = "<!-- made by validation/cross_device.py -->", "<!-- end -->"


def main() -> None:
    """Print the tables, or put them in their place on a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder with kineto/ of public traces")
    parser.add_argument(
        "--write", type=Path, help="page with the marks around the tables; else they are printed"
    )
    options = parser.parse_args()
    folder = options.traces / "kineto"
    tables = "\n".join((*devices(folder), "", *batches(folder)))
    if options.write is None:
        print(tables)
        return
    before, rest = options.write.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    options.write.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}", encoding="utf-8")


def devices(folder: Path) -> Iterator[str]:
    """Yield the table of devices."""
    yield "| model | from | to | measured there ms | predicted ms | error | by peak bandwidth alone | models |"
    yield "|---|---|---|---|---|---|---|---|"
    errors, simple = [], []
    for model in MODELS:
        for here, there in (("h100", "mi300x"), ("mi300x", "h100")):
            paths = [folder / f"{gpu}_{model}.json.gz" for gpu in (here, there)]
            if not all(path.exists() for path in paths):
                yield f"| {model} | {here} | {there} | trace not at hand | | | | |"
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
                f"{errors[-1]:+.1%} | {simple[-1]:+.1%} | {_models(retimed.coverage)} |"
            )
    if errors:
        yield (f"| median, worst of {len(errors)} | | | | | {_summary(errors)} | {_summary(simple)} | |")


def batches(folder: Path) -> Iterator[str]:
    """Yield the table of batch sizes."""
    yield "| batch | measured there ms | by shapes ms | error | all tasks scaled ms | error | in proportion |"
    yield "|---|---|---|---|---|---|---|"
    for old, new in (BATCHES, BATCHES[::-1]):
        paths = [folder / f"{BATCH}{size}.json.gz" for size in (old, new)]
        if not all(path.exists() for path in paths):
            yield f"| {old} to {new} | trace not at hand | | | | | |"
            continue
        source, target = (_graph(path) for path in paths)
        kernels = source.select(kind="kernel")
        measured = target.select(kind="kernel").total("duration_ns")
        flop, nbytes = resized_work(source, kernels, old, new)
        by_shapes = retime(source, kernels, flop_factor=flop, bytes_factor=nbytes).duration_ns.sum()
        by_factor = scaled_time(source, kernels, new / old).duration_ns.sum()
        naive = kernels.total("duration_ns") * new / old
        yield (
            f"| {old} to {new} | {measured / 1e6:.2f} | {by_shapes / 1e6:.2f} | {by_shapes / measured - 1:+.1%} | "
            f"{by_factor / 1e6:.2f} | {by_factor / measured - 1:+.1%} | {naive / measured - 1:+.0%} |"
        )


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
