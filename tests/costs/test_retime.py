"""New durations of kernels: every model by hand, and what must hold."""

import numpy as np
import pytest
from graph.small_graphs import kernels
from work_traces import Call, graph_of

from daydream.costs import KernelTable, bound, find_device, retime
from daydream.costs.device.roofline import KEPT_ON_MATRIX_UNITS, LEAST_REACHABLE
from daydream.errors import DaydreamError, NoMatchError, NotApplicableError, TraceError

TINY = Call("aten::add", "8 8 -", "tiny 2_000")  # sets the floor: 2 us
# 4096 x 4096 x 4096 at 15.7 TFLOP/s: 8.754 ms at best
PRODUCT = Call("aten::mm", "4096x4096 4096x4096", "volta_sgemm_128x128_nn 10_000_000")
PRODUCT_NS = 2 * 4096**3 / 15_700
# 3 x 4 x 2^24 bytes at 900 GB/s: 0.2237 ms at best
SUM = Call("aten::add", [[2**24], [2**24], []], "elementwise 300_000")
SUM_NS = 12 * 2**24 / 900
LEAST_NS = 2_000  # of a product on matrix units


def kernels_of(graph, *names):
    return kernels(graph).where(lambda tasks: np.isin(tasks.name, names))


def many(call, count=40):
    """Enough tiny kernels that the floor is theirs."""
    return [TINY] * count + [call]


def test_a_product_on_tensor_cores_keeps_part_of_its_share_of_the_peak():
    graph = graph_of(*many(PRODUCT))
    product = kernels_of(graph, "volta_sgemm_128x128_nn")
    share = PRODUCT_NS / (10_000_000 - LEAST_NS)
    new = LEAST_NS + 2 * 4096**3 / 125_000 / (share * KEPT_ON_MATRIX_UNITS)
    retimed = retime(graph, product, dtype="float16")
    assert retimed.duration_ns.tolist() == [round(new)]
    assert retimed.coverage == {"roofline": 10_000_000}


def test_a_product_that_becomes_bound_by_memory_stops_gaining():
    # 32 FLOP a byte in 32 bits, above the ridge of 17; 64 in 16 bits, below the ridge of 139
    thin = Call("aten::mm", [[2**17, 128], [128, 128]], "volta_sgemm_128x64 344_000")
    graph = graph_of(*many(thin))
    moved = 2 * (2 * 2**17 * 128 + 128 * 128)
    new = LEAST_NS + moved / 900 / LEAST_REACHABLE  # its own use of the bandwidth was 0.44: no bound
    assert retime(graph, kernels_of(graph, "volta_sgemm_128x64"), dtype="float16").duration_ns.tolist() == [
        round(new)
    ]


def test_another_device_scales_with_its_peaks():
    graph = graph_of(*many(PRODUCT), SUM)
    chosen = kernels_of(graph, "volta_sgemm_128x128_nn", "elementwise")
    new = retime(graph, chosen, device="a100-80gb").duration_ns
    assert new.tolist() == [
        round(2_000 + 9_998_000 * 15.7 / 19.5),
        round(2_000 + 298_000 * 900 / 2039),
    ]


def test_the_same_device_and_factors_of_one_change_nothing():
    graph = graph_of(*many(PRODUCT), SUM)
    work = kernels(graph)
    for retimed in (
        retime(graph, work),
        retime(graph, work, device="v100"),
        retime(graph, work, dtype="float32"),
    ):
        assert retimed.duration_ns.tolist() == work.duration_ns.tolist()


def test_an_unknown_gpu_falls_back_to_the_papers_constants():
    graph = graph_of(*many(PRODUCT), SUM, device="Some GPU")
    chosen = kernels_of(graph, "volta_sgemm_128x128_nn", "elementwise")
    retimed = retime(graph, chosen, dtype="float16")
    assert retimed.duration_ns.tolist() == [3_333_333, 150_000]
    assert retimed.coverage == {"paper": 10_300_000}
    assert "paper 100%" in retimed.words()
    with pytest.raises(NotApplicableError, match="unknown GPU"):
        retime(graph, chosen, device="a100")


def test_a_format_without_units_is_refused():
    graph = graph_of(*many(PRODUCT))
    with pytest.raises(NotApplicableError, match="no bfloat16 units"):
        retime(graph, kernels(graph), dtype="bfloat16")
    with pytest.raises(NotApplicableError, match="no tf32 units"):
        retime(graph, kernels(graph), dtype="tf32")
    with pytest.raises(NoMatchError):
        retime(graph, graph.tasks([]), dtype="float16")


def test_a_parquet_table_reads_the_same(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    path = tmp_path / "times.parquet"
    write_table(pa.table({"kernel": ["a"], "duration_ns": [7]}), path)
    assert KernelTable.load(path).kernel("a") == 7
    path.write_text("no parquet")
    with pytest.raises(TraceError, match="not a readable parquet"):
        KernelTable.load(path)


@pytest.mark.parametrize(
    "text", ["", "kernel,duration_ns\n", "kernel,time\na,3\n", "kernel,duration_ns\na,-3\n", "op\nx\n"]
)
def test_a_bad_table_is_refused(text, tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(DaydreamError):
        KernelTable.load(path)
    with pytest.raises(TraceError, match="no such file"):
        KernelTable.load(tmp_path / "absent.csv")


def test_what_bounds_a_kernel():
    graph = graph_of(*many(PRODUCT), SUM, Call("my::op", "8", "mine 100_000"))
    chosen = kernels_of(graph, "volta_sgemm_128x128_nn", "elementwise", "mine", "tiny")
    found = bound(graph, chosen)
    kinds = dict(zip(chosen.name, found.kind, strict=True))
    assert kinds == {
        "tiny": "latency",
        "volta_sgemm_128x128_nn": "compute",
        "elementwise": "memory",
        "mine": "unknown",
    }
    shares = dict(zip(chosen.name, found.compute_share, strict=True))
    assert shares["volta_sgemm_128x128_nn"] == pytest.approx(PRODUCT_NS / 10_000_000)
    assert found.memory_share[chosen.name == "elementwise"][0] == pytest.approx(SUM_NS / 300_000)
    assert np.isnan(shares["mine"])
    in_half = bound(graph, chosen, device=find_device("h100"))  # against another device's peaks
    assert in_half.memory_share[chosen.name == "elementwise"][0] == pytest.approx(12 * 2**24 / 3352 / 300_000)
