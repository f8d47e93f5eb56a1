"""More work on a GPU: small kernels fill the device first, then memory or arithmetic. All by hand."""

import numpy as np
import pytest
from graph.small_graphs import kernels
from work_traces import Call, Kernel, graph_of

from daydream.costs import retime
from daydream.costs.device.roofline import BYTES_A_THREAD, LEAST_REACHABLE
from daydream.costs.kernels import work
from daydream.costs.resize.new_shapes import tile_elements

FLOOR = 2_000
TINY = [Call("aten::add", "8 8 -", [Kernel("tiny", FLOOR)])] * 60  # sets the floor: 2 us
PLACES = 80 * 4  # units of a V100, each with 1,024 threads at least: blocks of 256
SUM = 40 * 256 * 4  # elements of 40 blocks, 4 a thread: 48 bytes a thread
SUM_NS = 12 * SUM / 900  # at the bandwidth of the device
# 20 tiles of 128 x 26: 3,277 elements each
PRODUCT = Call("aten::mm", "256x4096 4096x256", [Kernel("sgemm", 402_000, grid="20,1,1")])
PRODUCT_NS = 2 * 256 * 256 * 4096 / 15_700


def adding(duration_ns=22_000, grid="40,1,1", name="sum", size=SUM):
    return Call("aten::add", [[size], [size], []], [Kernel(name, duration_ns, grid=grid)])


def grown(graph, name, factor, **others):
    work = kernels(graph)
    factors = np.where(work.name == name, factor, 1.0)
    new = retime(graph, work, flop_factor=factors, bytes_factor=factors, **others)
    return int(new.duration_ns[work.name == name][0])


@pytest.mark.parametrize(("factor", "waves"), [(1, 1), (2, 1), (PLACES / 40, 1), (16, 2), (24, 3)])
def test_blocks_beside_others_cost_nothing_until_all_places_are_taken(factor, waves):
    assert grown(graph_of(*TINY, adding()), "sum", factor) == FLOOR + waves * 20_000


def test_memory_ends_it_sooner_where_the_blocks_move_much():
    graph = graph_of(*TINY, adding(FLOOR + 2_000))  # 0.27 of the bandwidth on half of the units
    assert grown(graph, "sum", 2) == FLOOR + 2_000
    assert grown(graph, "sum", 8) == round(FLOOR + 8 * SUM_NS / LEAST_REACHABLE)


def test_what_larger_kernels_of_the_family_reach_is_the_limit():
    large = adding(302_000, "16384,1,1", "large", 2**24)
    reached = 12 * 2**24 / 900 / 300_000
    assert reached > LEAST_REACHABLE
    graph = graph_of(*TINY, adding(FLOOR + 2_000), large)
    assert grown(graph, "sum", 8) == round(FLOOR + 8 * SUM_NS / reached)
    # one that has no full grid is no evidence: it may wait for memory itself
    slow = adding(5_002_000, "16,1,1", "slow", 2**20)
    alone = graph_of(*TINY, adding(FLOOR + 2_000), slow)
    assert grown(alone, "sum", 8) == round(FLOOR + 8 * SUM_NS / LEAST_REACHABLE)


def test_products_share_a_unit_until_its_arithmetic_is_used():
    graph = graph_of(*TINY, PRODUCT)
    assert grown(graph, "sgemm", 4) == 402_000
    # 100 blocks: 20 units have two, which take 2 x 0.34 of its peak, so that 0.6 binds
    two = 5 * PRODUCT_NS / LEAST_REACHABLE / (100 / 160)
    assert grown(graph, "sgemm", 5) == round(FLOOR + two)


def test_a_kernel_without_a_grid_grows_with_its_work():
    assert grown(graph_of(*TINY, adding(grid=None)), "sum", 4) == FLOOR + 4 * 20_000


def test_a_kernel_whose_threads_loop_takes_longer_with_every_element():
    # 100 blocks, so all units are busy: of 256 threads each, with 20 times the bytes of the others
    loop = adding(102_000, "100,1,1", "loop", 100 * 256 * 80)
    assert BYTES_A_THREAD < 80 * 12
    assert grown(graph_of(*TINY, loop), "loop", 2) == FLOOR + 2 * 100_000


def test_tiles_by_name_or_by_the_grid():
    shapes = "8x64x32x32 64x64x3x3"
    graph = graph_of(
        Call("aten::cudnn_convolution", shapes, [Kernel("gemm_64x32_nhwc", 9_000, grid="128,1,1")]),
        Call("aten::convolution_backward", shapes, [Kernel("wgrad_64x32_nhwc", 9_000, grid="128,1,1")]),
        PRODUCT,
    )
    chosen = kernels(graph)
    calls = work(graph, chosen).call
    assert tile_elements(graph, chosen.name, calls, np.array([128, 128, 20])).tolist() == [2048, 0, 3277]


def test_no_work_and_a_factor_of_one_change_nothing():
    graph = graph_of(*TINY, adding(), PRODUCT)
    work = kernels(graph)
    for factor in (1.0, np.ones(len(work))):
        same = retime(graph, work, flop_factor=factor, bytes_factor=factor, grid_factor=factor)
        assert same.duration_ns.tolist() == work.duration_ns.tolist()
