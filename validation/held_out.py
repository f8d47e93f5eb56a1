"""Constants that recordings before and after a change fed, fitted again without one series: `evaluate.py` judges with them.

| constant | fed by | without it |
|---|---|---|
| `SORTS`: what streaming kernels keep of their time in 16 bits | ViT, T4 | fitted here: median of the other of them and five models on an H200 (`validation/h200`) |
| `FLASH_1`: FlashAttention 1 | ViT | FlashAttention 2's, over 1.5 to 2 (arXiv 2307.08691) |
| `TO_32_REACHES`: of the bandwidth, of casts to 32 bits | T4 | none: all of it |
| `KEPT_ON_MATRIX_UNITS`: of the share of the peak | T4 | `h100_qwen_0.5b_inference` alone |
| `ANOTHER_RUN`: of the device | ViT, U-Net | fitted here on the other: kernels that a change leaves alone |
| `ANOTHER_RUN`: of the CPU | GPT | the U-Net's on four GPUs: 2 %, as the device's |

Thresholds of waits were fed by them, too (`docs/evaluation/thresholds.csv`).
"""

from __future__ import annotations

import contextlib
import math
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import daydream
from daydream.costs.device import roofline
from daydream.costs.kernels import floor_ns
from daydream.costs.operators import MATRIX_CLASSES, kernel_class
from daydream.model import precision
from daydream.predict import interval

H200 = Path(__file__).parent / "h200"
MODELS = ("bert", "resnet50", "gnmt", "gpt", "densenet121")
IN_16_BITS = {  # series: recordings of the same work in 32 and in 16 bits
    "vit_a100": ("dali.sqlite.gz", "dali_amp_bf16.sqlite.gz", r"^step \d+"),
    "t4_mlp_amp": ("fp32.json.gz", "amp.json.gz", "^ProfilerStep"),
}
SAME_WORK = {"vit_a100": ("4workers", "dali"), "unet3d_a100": ("4gpu_nobroadcast", "4gpu_bucketcap100mb")}
NARROW = re.compile(r"c10::BFloat16|c10::Half|__nv_bfloat16|__half")
LEAST_NS = 50_000  # a step, of kernels of a sort
Kernels = dict[str, np.ndarray]  # by name: how many a step, and their time in ns


def without(traces: Path, series: str) -> dict[tuple[Any, str], Any]:
    """Return the values of the constants that a series fed, by their module and name, as the others tell them."""
    pairs = traces / "pairs"
    found: dict[tuple[Any, str], Any] = {}
    if series in IN_16_BITS:
        others = [_kept(H200 / f"{name}.parquet", H200 / f"after/{name}-amp_fp16.parquet") for name in MODELS]
        for name, (before, after, marker) in IN_16_BITS.items():
            if name != series:
                others.append(_kept(pairs / name / before, pairs / name / after, marker))
        sorts = [
            (one, [each[one.classes] for each in others if one.classes in each]) for one in precision.SORTS
        ]
        found[precision, "SORTS"] = tuple(
            sort._replace(keeps=min(median(told), 1.0)) if told else sort for sort, told in sorts
        )
    if series == "t4_mlp_amp":
        found[precision, "TO_32_REACHES"] = 1.0
        found[roofline, "KEPT_ON_MATRIX_UNITS"] = 0.655 / 0.85
    if series == "vit_a100":
        found[precision, "FLASH_1"] = (precision.FLASH_2[0] / 1.75, precision.FLASH_1[1])
    if series in SAME_WORK:
        apart = max(_apart(pairs / name, *both) for name, both in SAME_WORK.items() if name != series)
        found[interval, "ANOTHER_RUN"] = {**interval.ANOTHER_RUN, "device": math.ceil(100 * apart) / 100}
    if series == "a10_gpt_small":
        found[interval, "ANOTHER_RUN"] = dict.fromkeys(interval.ANOTHER_RUN, interval.ANOTHER_RUN["device"])
    return found


def set_to(values: dict[tuple[Any, str], Any]) -> contextlib.ExitStack:
    """Give constants other values until the returned context is left."""
    stack = contextlib.ExitStack()
    for place, value in values.items():
        stack.enter_context(patch.object(*place, value))
    return stack


@cache
def _kernels(path: Path, marker: str | None) -> tuple[Kernels, float]:
    """Return a covered step's kernels, and the fixed cost of one."""
    trace = daydream.load(path, step_marker=marker)
    covered = [number for number, step in enumerate(trace.metadata["steps"]) if step["covered"]]
    rows = np.flatnonzero(trace.is_kind("kernel") & np.isin(trace["step"], covered))
    found: Kernels = {}
    for name, ns in zip(trace.values("name", rows), trace["duration_ns"][rows].tolist(), strict=True):
        found[name] = found.get(name, np.zeros(2)) + np.array([1, ns]) / len(covered)
    return found, floor_ns(daydream.build(trace))


@cache
def _kept(before: Path, after: Path, marker: str | None = None) -> dict[tuple[str, ...], float]:
    """Return what kernels of each sort keep in 16 bits of their time above the fixed cost, where it is told."""
    (wide, floor), (narrow, _) = _kernels(before, marker), _kernels(after, marker)
    left = {re.sub(r"\d+", "0", name) for name in narrow if not NARROW.search(name)}  # as wide as before
    in_16_bits = _alike(narrow, narrow_ones=True)
    sums: dict[tuple[str, ...], np.ndarray] = {}
    for name, old in _alike(wide, narrow_ones=False).items():
        new = in_16_bits.get(name)
        sort = precision.sort_of(name).classes
        other = kernel_class(name) in MATRIX_CLASSES
        if new is not None and name not in left and not other and abs(new[0] - old[0]) < 0.01 * old[0]:
            above = np.array([old[1], new[1]]) - old[0] * floor
            sums[sort] = sums.get(sort, np.zeros(2)) + above
    return {sort: new / old for sort, (old, new) in sums.items() if old > LEAST_NS}


def _alike(kernels: Kernels, *, narrow_ones: bool) -> Kernels:
    """Return kernels of one width by their name without element types and figures."""
    found: Kernels = {}
    for name, each in kernels.items():
        if bool(NARROW.search(name)) == narrow_ones:
            plain = re.sub(r"\d+", "0", NARROW.sub("float", name))
            found[plain] = found.get(plain, np.zeros(2)) + each
    return found


def _apart(folder: Path, one: str, other: str) -> float:
    """Return how far two recordings of a series are apart in the time of the kernels that both launch as often."""
    (here, _), (there, _) = (_kernels(folder / f"{name}.sqlite.gz", r"^step \d+") for name in (one, other))
    same = [name for name in here if name in there and abs(there[name][0] / here[name][0] - 1) < 0.02]
    old, new = (sum(kernels[name][1] for name in same) for kernels in (here, there))
    return abs(float(new / old) - 1)
