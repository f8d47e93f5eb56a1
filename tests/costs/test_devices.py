"""Devices and how their kernels' times change: each time worked out by hand."""

from pathlib import Path

import numpy as np
import pytest
from graph.small_graphs import kernels
from graph.small_traces import launched, trace
from work_traces import Call, Kernel, graph_of

from daydream import Trace
from daydream.costs import KernelTable, bound, find_device, retime
from daydream.costs.contention import LEAST_PLACES, measured_contention
from daydream.costs.device.roofline import (
    BYTES_A_THREAD,
    KEPT_ON_MATRIX_UNITS,
    LEAST_REACHABLE,
    runs_in_tf32,
)
from daydream.costs.network.networks import machine_of
from daydream.errors import NoMatchError, NotApplicableError, TraceError
from daydream.graph.build import build
from daydream.model.precision import (
    FLASH_1,
    FLASH_2,
    in_16_bits,
)

ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)"

# The table of GPUs: what names mean, and what cannot be in it


ROWS = Path(__file__).with_name("boards.tsv").read_text(encoding="utf-8").splitlines()[1:]
BOARDS = [line.split("\t") for line in ROWS]  # blanks are what is not looked at


@pytest.mark.parametrize(("name", "device", "_machine"), [row for row in BOARDS if row[1]])
def test_a_drivers_name_finds_its_device(name, device, _machine):
    assert find_device(name).name == device


@pytest.mark.parametrize("name", ["", "abacus", "RTX", "AMD Radeon Graphics", "NVIDIA", "H20-3e"])
def test_an_unknown_gpu_is_an_error_that_lists_the_known_ones(name):
    with pytest.raises(NotApplicableError, match="H100 SXM"):
        find_device(name)


# Which machine a GPU stands in, by its form factor, where no network is named


def on(name):
    return build(Trace({}, {}, {"devices": [{"id": 0, "name": name}], "steps": []}))


@pytest.mark.parametrize(("name", "_device", "machine"), [row for row in BOARDS if row[2]])
def test_the_form_factor_of_a_board_decides_its_machine(name, _device, machine):
    assert machine_of(on(name)) == machine


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "AMD Instinct MI250X", "NVIDIA Imaginary 9000", ""])
def test_where_no_machine_is_usual_it_says_what_to_give(name):
    with pytest.raises(NotApplicableError, match=r"not known.*--cluster or --bandwidth"):
        machine_of(on(name))


# Each number of costs, model and calibration has an origin, and none judges itself


# Kernels that leave units of a GPU idle, on another GPU: they have the rates of the units they run on


FLOOR, BODY = 2_000, 20_000
TINY = [Call("aten::add", "8 8 -", [Kernel("tiny", FLOOR)])] * 60  # sets the floor: 2 us
V100, A100, P100 = (find_device(name) for name in ("v100", "a100-80gb", "p100"))
PEAKS = V100.bandwidth / A100.bandwidth


def on_a100(call, to="a100-80gb"):
    graph = graph_of(*TINY, call)
    work = kernels(graph)
    return int(retime(graph, work, device=to).duration_ns[work.name == "one"][0])


def adding(grid):
    return Call("aten::add", [[2**16], [2**16], []], [Kernel("one", FLOOR + BODY, grid=grid)])


@pytest.mark.parametrize(
    ("grid", "busy", "busy_there"),
    [("40,1,1", 40 / 80, 40 / 108), ("90,1,1", 1, 90 / 108), ("1,4000,1", 1, 1), (None, 1, 1)],
)
def test_a_kernel_has_the_rates_of_the_units_that_its_blocks_run_on(grid, busy, busy_there):
    assert (V100.units, A100.units) == (80, 108)
    assert on_a100(adding(grid)) == round(FLOOR + BODY * PEAKS * busy / busy_there)


def test_fewer_stronger_units_serve_few_blocks_better_than_peaks_say():
    #  30 blocks: 30 of 80 units of 11.25 GB/s each, then 30 of 56 of 13.1 GB/s each
    of_a_unit = (V100.bandwidth / V100.units) / (P100.bandwidth / P100.units)
    assert of_a_unit < 1 < V100.bandwidth / P100.bandwidth
    assert on_a100(adding("30,1,1"), "p100") == round(FLOOR + BODY * of_a_unit)


# What 16 bits make of a kernel, by its sort: each worked out by hand, and what must hold of all


A100_80GB = "NVIDIA A100-SXM4-80GB"
LEAST_NS = 2_000
TINY_ADD = Call("aten::add", "8 8 -", [Kernel("tiny", LEAST_NS)])
STRIDED = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl{}<direct_copy_kernel_cuda>>"
)


def graph_with(*kernels, device=A100_80GB, op="my::op", shapes=None):
    """A graph of tiny kernels, which set the fixed cost, and of one call with some kernels."""
    return graph_of(*[TINY_ADD] * 60, Call(op, shapes or [[8]], list(kernels)), device=device)


def in_half(graph, name, dtype="float16"):
    kernel = kernels(graph).where(lambda tasks: np.array([name in one for one in tasks.name]))
    found = in_16_bits(graph, kernel, dtype)
    return int(found.duration_ns[0]), float(found.doubt[0])


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", 0.55),
        ("triton_poi_fused_gelu_0", 0.55),
        ("void at::native::reduce_kernel<128, 4, sum_functor>", 0.63),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 0.75),
        (STRIDED.format("_nocast"), 0.87),
        ("void at::native::CatArrayBatchedCopy<float>", 0.87),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>", 0.87),
        ("somebody_elses_kernel", 0.7),
    ],
)
def test_what_streams_keeps_the_part_of_its_time_that_is_not_bytes(name, keeps):
    graph = graph_with(Kernel(name, 102_000, grid="4096,1,1"))
    assert in_half(graph, name)[0] == LEAST_NS + round(keeps * 100_000)


def test_a_product_above_the_peak_of_vector_units_runs_in_tf32_whatever_its_name():
    # 2 x 4096^3 FLOP in 1 ms are 137 TFLOP/s; vector units of an A100 have 19.5
    def graph(duration_ns):
        shapes = "4096x4096 4096x4096"
        return graph_with(Kernel("new_library_gemm", duration_ns), op="aten::mm", shapes=shapes)

    for duration_ns, tf32 in ((1_000_000, True), (8_000_000, False)):
        product = graph(duration_ns).select(name="new_library")
        assert runs_in_tf32(product.graph, product).tolist() == [tf32]
    fast = graph(1_000_000)
    assert in_half(fast, "new_library")[0] == LEAST_NS + 998_000 // 2  # what is left to gain


# More work on a GPU: small kernels fill the device first, then memory or arithmetic. All by hand


FLOOR_NS = 2_000
PLACES = 80 * 4  # units of a V100, each with 1,024 threads at least: blocks of 256
SUM = 40 * 256 * 4  # elements of 40 blocks, 4 a thread: 48 bytes a thread
SUM_NS = 12 * SUM / 900  # at the bandwidth of the device


def adding_blocks(duration_ns=22_000, grid="40,1,1", name="sum", size=SUM):
    return Call("aten::add", [[size], [size], []], [Kernel(name, duration_ns, grid=grid)])


def grown(graph, name, factor, **others):
    work = kernels(graph)
    factors = np.where(work.name == name, factor, 1.0)
    new = retime(graph, work, flop_factor=factors, bytes_factor=factors, **others)
    return int(new.duration_ns[work.name == name][0])


@pytest.mark.parametrize(("factor", "waves"), [(1, 1), (2, 1), (PLACES / 40, 1), (16, 2), (24, 3)])
def test_blocks_beside_others_cost_nothing_until_all_places_are_taken(factor, waves):
    assert grown(graph_of(*TINY, adding_blocks()), "sum", factor) == FLOOR_NS + waves * 20_000


def test_what_larger_kernels_of_the_family_reach_is_the_limit():
    large = adding_blocks(302_000, "16384,1,1", "large", 2**24)
    reached = 12 * 2**24 / 900 / 300_000
    assert reached > LEAST_REACHABLE
    graph = graph_of(*TINY, adding_blocks(FLOOR_NS + 2_000), large)
    assert grown(graph, "sum", 8) == round(FLOOR_NS + 8 * SUM_NS / reached)
    # one that has no full grid is no evidence: it may wait for memory itself
    slow = adding_blocks(5_002_000, "16,1,1", "slow", 2**20)
    alone = graph_of(*TINY, adding_blocks(FLOOR_NS + 2_000), slow)
    assert grown(alone, "sum", 8) == round(FLOOR_NS + 8 * SUM_NS / LEAST_REACHABLE)


# New durations of kernels: every model by hand, and what must hold


TINY_OF_RETIME = Call("aten::add", "8 8 -", "tiny 2_000")  # sets the floor: 2 us
# 4096 x 4096 x 4096 at 15.7 TFLOP/s: 8.754 ms at best
PRODUCT = Call("aten::mm", "4096x4096 4096x4096", "volta_sgemm_128x128_nn 10_000_000")
PRODUCT_NS = 2 * 4096**3 / 15_700
# 3 x 4 x 2^24 bytes at 900 GB/s: 0.2237 ms at best
SUM_OF_RETIME = Call("aten::add", [[2**24], [2**24], []], "elementwise 300_000")
SUM_OF_RETIME_NS = 12 * 2**24 / 900
LEAST_NS = 2_000  # of a product on matrix units


def kernels_of(graph, *names):
    return kernels(graph).where(lambda tasks: np.isin(tasks.name, names))


def many(call, count=40):
    """Enough tiny kernels that the floor is theirs."""
    return [TINY_OF_RETIME] * count + [call]


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
    graph = graph_of(*many(PRODUCT), SUM_OF_RETIME)
    chosen = kernels_of(graph, "volta_sgemm_128x128_nn", "elementwise")
    new = retime(graph, chosen, device="a100-80gb").duration_ns
    assert new.tolist() == [
        round(2_000 + 9_998_000 * 15.7 / 19.5),
        round(2_000 + 298_000 * 900 / 2039),
    ]


def test_an_unknown_gpu_falls_back_to_the_papers_constants():
    graph = graph_of(*many(PRODUCT), SUM_OF_RETIME, device="Some GPU")
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


def test_what_bounds_a_kernel():
    graph = graph_of(*many(PRODUCT), SUM_OF_RETIME, Call("my::op", "8", "mine 100_000"))
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
    assert found.memory_share[chosen.name == "elementwise"][0] == pytest.approx(SUM_OF_RETIME_NS / 300_000)
    assert np.isnan(shares["mine"])
    in_half = bound(graph, chosen, device=find_device("h100"))  # against another device's peaks
    assert in_half.memory_share[chosen.name == "elementwise"][0] == pytest.approx(12 * 2**24 / 3352 / 300_000)


# What a trace shows of contention, from rows written down; times in microseconds


ENOUGH = 2 * LEAST_PLACES
SLOT = 1000.0  # us, each kernel has this long for itself
LEAST_US = 0.001  # us, so that times are not whole microseconds


def in_slot(slot, name, begin, end, number, **columns):
    """Device work in a slot, and its launch at the slot's begin."""
    at = slot * SLOT + 8 * number
    return launched(name, at, slot * SLOT + begin, slot * SLOT + end, 10 * slot + number, **columns)


def transfer(slot, begin, end, number=1, **columns):
    known = {"kind": "collective", "collective": "all_reduce", "bytes": 4096, "stream": 20, **columns}
    return in_slot(slot, "reduce", begin, end, number, **known)


def shown(
    us,
    *,
    beside=lambda place, step: (place + step) % 2 == 0,
    until=990.0,
    steps=4,
    places=ENOUGH,
    name=lambda place, _step: f"kernel {place}",
    **columns,
):
    """Return what a trace shows in which kernels run from 100 on, and transfers from there `until` then."""
    rows = []
    for step in range(steps):
        for place in range(places):
            slot = step * places + place
            known = {column: of(place, step) for column, of in columns.items()}
            if beside(place, step):
                rows.append(transfer(slot, 100, until))
            rows.append(in_slot(slot, name(place, step), 100, 100 + LEAST_US + us(place, step), 2, **known))
    borders = tuple(step * places * SLOT for step in range(steps + 1))
    return measured_contention(build(trace(rows, steps=borders)))


def slowed(factor, alone=100.0):
    """Kernels beside a transfer in every other step."""
    return lambda place, step: alone * (factor if (place + step) % 2 == 0 else 1)


def test_the_excess_of_the_runs_beside_is_the_factor():
    found = shown(slowed(1.1))
    assert found.kernel.factor == pytest.approx(1.1, rel=1e-4)
    assert (found.kernel.places, found.kernel.beside, found.kernel.alone) == (
        ENOUGH,
        2 * ENOUGH,
        2 * ENOUGH,
    )
    assert found.kernel.overlapped_ns == pytest.approx(2 * ENOUGH * 110_000, rel=1e-4)
    assert found.kernel.low == pytest.approx(found.kernel.high)
    assert found.met
    assert found.transfer is None


def test_of_a_run_that_was_half_overlapped_the_excess_stands_for_that_half():
    # 60 of 100 us of work alone; the other 40 took 80, until 180
    found = shown(slowed(1.4), until=180.0)
    assert found.kernel.factor == pytest.approx(2, rel=1e-3)


def test_the_same_device_and_factors_of_one_change_nothing():
    graph = graph_of(*many(PRODUCT), SUM_OF_RETIME)
    work = kernels(graph)
    for retimed in (
        retime(graph, work),
        retime(graph, work, device="v100"),
        retime(graph, work, dtype="float32"),
    ):
        assert retimed.duration_ns.tolist() == work.duration_ns.tolist()


def test_a_small_grid_leaves_room_for_a_larger_batch():
    # 20 blocks on 80 units: four times the blocks still are one wave, as 256 x 128 take a whole unit
    small = Call("aten::mm", "256x4096 4096x256", [Kernel("sgemm_256x128_nn", 402_000, "20,1,1")])
    graph = graph_of(*many(small))
    product = kernels_of(graph, "sgemm_256x128_nn")
    assert retime(graph, product, flop_factor=4, bytes_factor=4).duration_ns.tolist() == [402_000]
    two_waves = retime(graph, product, flop_factor=5, bytes_factor=5)
    assert two_waves.duration_ns.tolist() == [802_000]


# 20 tiles of 128 x 26: 3,277 elements each
SMALL_PRODUCT = Call("aten::mm", "256x4096 4096x256", [Kernel("sgemm", 402_000, grid="20,1,1")])


def test_memory_ends_it_sooner_where_the_blocks_move_much():
    graph = graph_of(*TINY, adding_blocks(FLOOR + 2_000))  # 0.27 of the bandwidth on half of the units
    assert grown(graph, "sum", 2) == FLOOR + 2_000
    assert grown(graph, "sum", 8) == round(FLOOR + 8 * SUM_NS / LEAST_REACHABLE)


def test_products_share_a_unit_until_its_arithmetic_is_used():
    graph = graph_of(*TINY, SMALL_PRODUCT)
    assert grown(graph, "sgemm", 4) == 402_000
    # 100 blocks: 20 units have two, which take 2 x 0.34 of its peak, so that 0.6 binds
    two = 5 * (2 * 256 * 256 * 4096 / 15_700) / LEAST_REACHABLE / (100 / 160)
    assert grown(graph, "sgemm", 5) == round(FLOOR + two)


def test_a_kernel_without_a_grid_grows_with_its_work():
    assert grown(graph_of(*TINY, adding_blocks(grid=None)), "sum", 4) == FLOOR + 4 * 20_000


def test_a_kernel_whose_threads_loop_takes_longer_with_every_element():
    # 100 blocks, so all units are busy: of 256 threads each, with 20 times the bytes of the others
    loop = adding_blocks(102_000, "100,1,1", "loop", 100 * 256 * 80)
    assert BYTES_A_THREAD < 80 * 12
    assert grown(graph_of(*TINY, loop), "loop", 2) == FLOOR + 2 * 100_000


@pytest.mark.parametrize(("other", "kept"), [("", FLASH_1), ("_nocast", FLASH_2)])
def test_attention_goes_from_three_tf32_products_each_to_the_flash_kernels_of_its_torch(other, kept):
    #  156 / 3 = 52 TFLOP/s become 312, of which flash attention reaches another share
    graph = graph_with(Kernel(ATTENTION, 23_400_000), Kernel(STRIDED.format(other), 9_000))
    assert in_half(graph, "fmha") == (round(FLOOR + (23_400_000 - FLOOR) / (6 * kept[0])), kept[1])


def test_libraries_choose_tiles_of_products_that_fill_the_other_device():
    product = Call("aten::mm", "256x4096 4096x256", [Kernel("one", FLOOR + BODY, grid="20,1,1")])
    arithmetic = V100.peak("float32") / A100.peak("float32")
    assert on_a100(product) == round(FLOOR + BODY * arithmetic)
