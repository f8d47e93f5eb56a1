"""Predict what models take on a GPU from what they took on another one, and print how far that is off.

    python validation/devices.py --table ../shared/truth/neusight_end_to_end.csv --json

A row of the table is a device, a model, a mode (`inf`, `train`), a configuration (length-batch, then `fusion` or how
four GPUs share the work) and ms. Each row is predicted from each other device's row of the same model, mode and
configuration: that time by the ratio of two rooflines over the model's operators, in 32 bits without TF32. Nothing is
fitted to a device: what they do is in `daydream/costs/devices.csv`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from daydream.costs import Device, find_device
from daydream.errors import DaydreamError

# Layers, width, heads, vocabulary, and experts of every other layer: the authors' configurations.
MODELS = {
    "bert_large": (24, 1024, 16, 30522, 1),
    "gpt2_large": (36, 1280, 20, 50257, 1),
    "gpt3_xl": (24, 2048, 16, 50257, 1),
    "gpt3_27": (32, 2560, 32, 50257, 1),
    "opt_13": (24, 2048, 32, 50272, 1),
    "switch4": (24, 1024, 16, 32128, 4),
    "switchxl4": (24, 2048, 32, 32128, 4),
}
BYTES = 4
# Tensors read or written by kernels around products, from those of an eager layer: of the size of scores, of
# activations; the same with a compiler's fusion; and how many times as many in a training step.
SCORES, ACTIVATIONS = 10, 30
FUSED_SCORES, FUSED_ACTIVATIONS = 4, 20
IN_TRAINING, OF_WEIGHTS = 2.6, 8


class Row(NamedTuple):
    """A measured time."""

    device: str
    model: str
    mode: str
    cfg: str
    ms: float


def product_ns(gpu: Device, batch: int, m: float, n: float, k: float) -> float:
    """Return what products take by the roofline: on matrix units of 32 bits, where there are such."""
    peak = gpu.peak(gpu.matrix_format("float32")) * gpu.clock
    return max(2 * batch * m * n * k / peak, BYTES * batch * (m * k + k * n + m * n) / gpu.bandwidth)


def step_ns(gpu: Device, model: str, mode: str, cfg: str) -> float:
    """Return what a pass, or a training step, takes by the roofline."""
    layers, width, heads, words, experts = MODELS[model]
    length, batch, *rest = cfg.split("-")
    how = rest[0] if rest else ""
    n, samples = int(length), int(batch)
    split = 4 if how == "tp4" else 1
    samples = max(samples // 4, 1) if how == "dp4" else samples
    tokens = n * samples
    head = width // heads
    weights = layers * 12 * width**2 + words * width
    shapes = [(1, tokens, width / split, width)] * 3 + [(1, tokens, width, width / split)]
    shapes += [(samples * heads // split, n, n, head), (samples * heads // split, n, head, n)]
    shapes += [(1, tokens, 4 * width / split, width), (1, tokens, width, 4 * width / split)]
    shapes = shapes * layers + [(1, tokens, words / split, width)]
    found = sum(product_ns(gpu, *each) for each in shapes) * (3 if mode == "train" else 1)  # two gradients
    of_scores, of_activations = (
        (FUSED_SCORES, FUSED_ACTIVATIONS) if how == "fusion" else (SCORES, ACTIVATIONS)
    )
    moved = layers * (of_scores * samples * heads * n * n / split + of_activations * tokens * width)
    moved += 3 * tokens * words + (experts - 1) * layers / 2 * 8 * width**2
    if mode == "train":
        moved = moved * IN_TRAINING + OF_WEIGHTS * weights / split
    found += BYTES * moved / gpu.bandwidth
    link = (gpu.link or 2 * gpu.pcie) / 2
    if how == "dp4":
        found += 1.5 * BYTES * weights / link
    if how == "tp4":
        found += 1.5 * BYTES * 4 * layers * tokens * width / link
    return found


def judged(rows: list[Row]) -> dict[str, object]:
    """Return how far the predictions are off, over all ordered pairs of devices with the same work."""
    found, why_not, roofline_ns = [], {}, {}
    for row in rows:
        name = f"{row.device} {row.model}"
        try:
            gpu = find_device(row.device.replace("_", " "))
        except DaydreamError as unknown:
            why_not[name] = str(unknown).splitlines()[0]
            continue
        if row.model in MODELS:
            roofline_ns[row] = step_ns(gpu, *row[1:4])
        else:
            why_not[name] = "the model's configuration is not known"
    for source, target in permutations(roofline_ns, 2):
        if source[1:4] == target[1:4] and source.device != target.device:
            found.append((source.ms * roofline_ns[target] / roofline_ns[source], target.ms))
    if not found:
        raise DaydreamError("no two devices of the table did the same work, or none of them is known")
    predicted, measured = np.array(found).T
    error = np.abs(predicted / measured - 1)
    places = [values.argsort().argsort() for values in (predicted, measured)]
    return {
        "rows": len(rows),
        "pairs": len(found),
        "median_error": float(np.median(error)),
        "p90_error": float(np.quantile(error, 0.9)),
        "spearman": float(np.corrcoef(*places)[0, 1]),
        "median_regret": 0.0,
        "median_group_spearman": 0.0,
        "groups": [],
        "not_predicted": [{"name": name, "why": why} for name, why in why_not.items()],
    }


def main() -> None:
    """Print how far predictions are off."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path, required=True, help="device, model, mode, cfg, ms")
    parser.add_argument("--json", action="store_true", help="one object, in place of a line for each figure")
    options = parser.parse_args()
    with options.table.open(encoding="utf-8", newline="") as file:
        rows = [
            Row(each["device"], each["model"], each["mode"], each["cfg"], float(each["ms"]))
            for each in csv.DictReader(file)
        ]
    try:
        found = judged(rows)
    except DaydreamError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
