"""FLOP of shapes against FLOP that a GPU counted: the public trace of an AlexNet under the range profiler.

It records no shapes; its products and first convolution are those of the published
network (fully connected 9216-4096-4096-1000, eleven by eleven on 3 x 224 x 224) at a
batch of 128. What is counted includes padding to whole tiles, so it is never less.
"""

from __future__ import annotations

import gzip
import json

import pytest
from shared import shared_trace

from daydream.costs.work import operator_work

PREFIX = "smsp__sass_thread_inst_executed_op_"
ADDMM = [
    "[[4096],[128,9216],[9216,4096],[],[]]",
    "[[4096],[128,4096],[4096,4096],[],[]]",
    "[[1000],[128,4096],[4096,1000],[],[]]",
]


def counted() -> tuple[list[tuple[str, float]], int]:
    """Return kernel name and FLOP of each range, and the launches of the file."""
    path = shared_trace("kineto/a100_range_profiler_counters.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    ranges = []
    for event in events:
        if event.get("cat") == "cuda_profiler_range":
            counters = {
                name.removeprefix(PREFIX).split("_")[0]: float(n) for name, n in event["args"].items()
            }
            flop = sum((2 if name.endswith("fma") else 1) * count for name, count in counters.items())
            ranges.append((event["name"], flop))
    launches = sum(event.get("name") == "cudaLaunchKernel" for event in events)
    return ranges, launches


def test_there_is_a_range_for_every_launch():
    ranges, launches = counted()
    assert len(ranges) == launches == 77


def test_products_do_the_flop_of_their_shapes():
    ranges, _ = counted()
    products = [flop for name, flop in ranges if "sgemm_32x32_sliced" in name]
    expected = [operator_work("aten::addmm", shapes).flop for shapes in ADDMM] * 2  # two passes
    assert len(products) == len(expected)
    assert sum(products) == pytest.approx(sum(expected), rel=0.05)
    for found, flop in zip(products, expected, strict=True):
        assert flop <= found <= 1.07 * flop  # 1000 columns are padded


def test_the_convolution_without_a_transform_does_the_flop_of_its_shapes():
    ranges, _ = counted()
    direct = [flop for name, flop in ranges if "implicit_convolve_sgemm" in name]
    expected = operator_work(
        "aten::cudnn_convolution", "[[128,3,224,224],[64,3,11,11]]", (128, 64, 55, 55)
    ).flop
    assert direct
    assert direct[0] == pytest.approx(expected, rel=0.05)
