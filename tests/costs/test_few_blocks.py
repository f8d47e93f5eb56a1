"""Kernels that leave units of a GPU idle, on another GPU: they have the rates of the units they run on."""

import pytest
from graph.small_graphs import kernels
from work_traces import Call, Kernel, graph_of

from daydream.costs import find_device, retime

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
