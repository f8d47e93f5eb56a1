"""FLOP of shapes against FLOP that a GPU counted: the public trace of an AlexNet under the range profiler.

It records no shapes; those of the published network at a batch of 128 are written down here. The file
counts 32-bit instructions outside the matrix units, so the three convolutions in TF32 cannot be
compared; the second one runs as a Fourier transform, which takes fewer FLOP than its shapes say.
"""

import json

import pytest
from graph.small_graphs import kernels
from shared import shared_trace
from work_traces import Call, graph_of

from daydream.costs.counters.formats import read_counted
from daydream.costs.kernels import work
from daydream.costs.workload.operator import operator_work

PRODUCTS = [
    "[[4096],[128,9216],[9216,4096],[],[]]",
    "[[4096],[128,4096],[4096,4096],[],[]]",
    "[[1000],[128,4096],[4096,1000],[],[]]",
]
PASSES = 2  # the file holds two forward passes


def of_shapes(op, shapes, hint=None):
    amount = operator_work(op, shapes, hint)
    assert amount is not None
    assert amount.flop is not None
    return amount.flop


@pytest.fixture(scope="module")
def counted():
    return read_counted(shared_trace("kineto/a100_range_profiler_counters.json.gz"))


def flop_of(counted, name):
    return [one.flop for one in counted if name in one.name]


def test_products_do_the_flop_of_their_shapes(counted):
    products = flop_of(counted, "sgemm_32x32_sliced")
    expected = [of_shapes("aten::addmm", shapes) for shapes in PRODUCTS] * PASSES
    assert sum(products) == pytest.approx(sum(expected), rel=0.05)
    for found, flop in zip(products, expected, strict=True):
        assert flop <= found <= 1.07 * flop  # 1,000 columns are padded to whole tiles
    for found, flop in list(zip(products, expected, strict=True))[:2]:
        assert found == pytest.approx(flop, rel=0.001)


# The seam: counters in the metadata of a trace that has the kernels


def test_counters_of_another_number_of_launches_say_nothing():
    graph = graph_of(Call("aten::mm", "64x64 64x64", "sgemm 9_000"))
    graph.trace.metadata["counters"] = [{"name": "sgemm", "flop": number, "bytes": None} for number in (1, 2)]
    assert work(graph, kernels(graph)).flop.tolist() == [2 * 64**3]


def test_instructions_become_flop(tmp_path):
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    counters = {
        name.format("ffma"): "10",
        name.format("fadd"): 3,
        name.format("fmul"): 0,
        name.format("hfma"): 50,
        "dram__bytes.sum": 64,
    }
    ranges = [
        {"cat": "cuda_profiler_range", "name": kernel, "ts": ts, "args": counters}
        for ts, kernel in ((2, "sgemm"), (1, "sm80_xmma_gemm_tf32"))
    ]
    path = tmp_path / "counters.json"
    path.write_text(json.dumps({"traceEvents": ranges}))
    assert [(one.name, one.flop, one.bytes) for one in read_counted(path)] == [
        ("sm80_xmma_gemm_tf32", None, 64),
        ("sgemm", 2 * 10 + 3, 64),
    ]
