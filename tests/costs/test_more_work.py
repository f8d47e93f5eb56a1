"""More work on a GPU: small kernels fill the device first, then memory or arithmetic. All by hand."""

import numpy as np
import pytest
from graph.small_graphs import kernels
from work_traces import Call, Kernel, graph_of

from daydream.costs import retime
from daydream.costs.device.roofline import LEAST_REACHABLE

FLOOR = 2_000
TINY = [Call("aten::add", "8 8 -", [Kernel("tiny", FLOOR)])] * 60  # sets the floor: 2 us
PLACES = 80 * 4  # units of a V100, each with 1,024 threads at least: blocks of 256
SUM = 40 * 256 * 4  # elements of 40 blocks, 4 a thread: 48 bytes a thread
SUM_NS = 12 * SUM / 900  # at the bandwidth of the device


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
