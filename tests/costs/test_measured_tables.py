"""Times of products and attention from tables that others measured; these are made, not the package's."""

import numpy as np
import pyarrow as pa
import pytest
from daydream.optimizations._hardware import gpu
from graph.small_graphs import kernels
from pyarrow.parquet import write_table
from work_traces import Call, Kernel, graph_of

from daydream.costs import find_device, measured_ns, retime
from daydream.costs.device import measured_tables

H100, B200, A100_PCIE = (find_device(name) for name in ("h100", "b200", "a100-pcie-40gb"))
SIDES = 2048, 4096, 8192
SQUARES = [(m, n, k) for m in SIDES for n in SIDES for k in SIDES]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return a function that writes what products take on a GPU, in one library's file."""
    monkeypatch.setattr(measured_tables, "tables_folder", lambda: tmp_path)
    measured_tables._rows.cache_clear()

    def write(device, ns, library="vllm", dtype="bfloat16"):
        path = tmp_path / device.tables / "gemm" / library / "1.0" / "gemm_perf.parquet"
        path.parent.mkdir(parents=True)
        m, n, k = zip(*SQUARES, strict=True)
        ms = [ns(*each) / 1e6 for each in SQUARES]
        write_table(pa.table({"gemm_dtype": [dtype] * len(m), "m": m, "n": n, "k": k, "latency": ms}), path)

    yield write
    measured_tables._rows.cache_clear()


def at_half_of_peak(peak):
    # a fixed cost of 2.5 us, and all twice as long as the roofline says
    return lambda m, n, k: 2 * (2_500 + 2 * m * n * k / (peak * 1e3))


def test_between_measured_sizes_the_roofline_is_corrected_as_the_nearest_say(tables):
    tables(H100, at_half_of_peak(989.4))
    ns, spread = measured_ns(H100, "gemm", "bfloat16", np.array([[3000, 3000, 3000], [8192, 4096, 2048]]))
    assert ns == pytest.approx([2 * (2_500 + 2 * 3000**3 / 989.4e3), 2 * (2_500 + 2**37 / 989.4e3)])
    nearest = 3 * np.log2(4096 / 3000)  # octaves to 4096 cubed; 2048 is farther
    assert spread == pytest.approx([0.05 + 0.05 * nearest, 0.05])  # all neighbors agree


def test_of_several_libraries_the_fastest_counts(tables):
    tables(H100, at_half_of_peak(989.4))
    tables(H100, lambda *sizes: 1e12, library="slow")
    ((ns,), _) = measured_ns(H100, "gemm", "float16", np.array([[4096, 4096, 4096]]))
    assert ns == pytest.approx(2 * (2_500 + 2**37 / 989.4e3))


def test_a_product_in_tf32_is_one_in_16_bits_that_sums_over_twice_as_many(tables):
    tables(H100, at_half_of_peak(989.4))
    one = measured_ns(H100, "gemm", "tf32", np.array([[4096, 4096, 2048]]))
    other = measured_ns(H100, "gemm", "bfloat16", np.array([[4096, 4096, 4096]]))
    assert one[0] == other[0]


def test_what_nobody_measured_is_none(tables):
    asked = np.array([[4096, 4096, 4096]])
    assert measured_ns(H100, "gemm", "bfloat16", asked) is None  # no file
    tables(H100, at_half_of_peak(989.4))
    assert measured_ns(H100, "gemm", "float8_e4m3fn", asked) is None  # no such type
    assert measured_ns(A100_PCIE, "gemm", "bfloat16", asked) is None  # no such GPU
    assert measured_ns(H100, "attention", "bfloat16", np.array([[8, 1024, 16, 16, 64]])) is None


TINY = [Call("aten::add", "8 8 -", [Kernel("tiny", 2_000)])] * 60
PRODUCT = Call("aten::mm", "4096x4096 4096x4096", [Kernel("one", 400_000)], dtype="bfloat16")


def moved(call=PRODUCT):
    graph = graph_of(*TINY, call, device="NVIDIA H100 80GB HBM3")
    return graph, kernels(graph).where(name="one")


def test_a_recorded_product_goes_with_the_ratio_of_what_was_measured_on_both(tables):
    tables(H100, at_half_of_peak(989.4))
    tables(B200, lambda *sizes: 0.5 * at_half_of_peak(989.4)(*sizes))  # twice as fast, not 2.27 times
    graph, product = moved()
    found = retime(graph, product, device=B200)
    assert (found.duration_ns.tolist(), found.model.tolist()) == ([200_000], ["measured"])
    assert found.doubt < 0.5
    gpu(graph, to="b200")
    assert not any("narrower range" in note for note in graph.facts.notes)


def test_without_tables_it_goes_by_peaks_in_a_range_as_wide_as_their_error(monkeypatch):
    monkeypatch.setattr(measured_tables, "tables_folder", lambda: None)
    measured_tables._rows.cache_clear()
    graph, product = moved()
    found = retime(graph, product, device=B200)
    assert (found.model.tolist(), found.doubt.tolist()) == (["roofline"], [0.5])
    gpu(graph, to="b200")
    assert any("pip install -e '.[gpus]'" in note for note in graph.facts.notes)
