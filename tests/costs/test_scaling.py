"""Durations when work is multiplied: what grows and what stays."""

import numpy as np
import pytest
from work_traces import Call, graph_of

from daydream.costs import scaled_time
from daydream.errors import NoMatchError
from daydream.graph.graph import Graph


def times(graph, factor):
    tasks = graph.select(kind="cpu")
    new = scaled_time(graph, tasks, factor).duration_ns
    return {name: new[tasks.name == name].tolist() for name in set(tasks.name)}


def mm(n, ns):
    return Call("aten::mm", [[n, 64], [64, 64]], tail_ns=ns)


def test_an_operators_overhead_is_read_off_its_calls_of_several_sizes():
    # 10 us and 1 us a row
    graph = graph_of(mm(10, 20_000), mm(100, 110_000), device=None)
    assert times(graph, 2)["aten::mm"] == [30_000, 210_000]
    assert times(graph, 0.5)["aten::mm"] == [15_000, 60_000]
    assert times(graph, 1)["aten::mm"] == [20_000, 110_000]
    assert scaled_time(graph, graph.select(kind="cpu"), 2).coverage == {"cpu line": 130_000}


def test_calls_of_one_size_take_the_overhead_of_the_traces_tiny_calls():
    tiny = Call("aten::add", "8 8 -", tail_ns=4_000)
    graph = graph_of(tiny, tiny, mm(100, 104_000), device=None)
    found = times(graph, 3)
    assert found == {"aten::add": [4_000, 4_000], "aten::mm": [304_000]}


def test_views_and_calls_that_only_call_others_keep_their_time():
    inner = Call("aten::addmm", "64 100x64 64x64 - -", tail_ns=105_000)
    outer = Call("aten::linear", "100x64 64x64 64", inner=[inner], tail_ns=30_000)
    graph = graph_of(Call("aten::view", "100x64 -", tail_ns=40_000), outer, device=None)
    found = times(graph, 2)
    assert found["aten::view"] == [40_000]
    assert found["aten::linear"] == [30_000]
    assert found["aten::addmm"] == [205_000]  # all but 5 us, where the trace holds no tiny call


def test_an_operator_without_a_formula_grows_if_it_takes_long():
    graph = graph_of(
        Call("my::short", "8", tail_ns=15_000), Call("my::long", "8", tail_ns=505_000), device=None
    )
    assert times(graph, 2) == {"my::short": [15_000], "my::long": [1_005_000]}


def test_an_operand_that_stays_is_packed_once_whatever_is_multiplied_with_it():
    # 2 MiB in 70 us and the usual 5: 30 B a ns. 3 x 64 KiB take 6,554 ns of the product's 30,000.
    stream = Call("aten::add", [[2**18], [2**18], []], tail_ns=109_858)
    graph = graph_of(stream, mm(64, 30_000), device=None)
    product = graph.select(name="mm")
    alone = scaled_time(graph, product, 2).duration_ns[0]
    packed = scaled_time(graph, product, 2, weights=np.array([65_536.0])).duration_ns[0]
    assert alone - packed == pytest.approx(6_554, rel=0.01)
    all_of_it = scaled_time(graph, product, 2, weights=np.array([1e9])).duration_ns[0]
    assert all_of_it == 30_000


def test_kernels_keep_their_floor_and_each_task_can_have_its_factor():
    tiny = Call("aten::add", "8 8 -", "tiny 2_000")
    large = Call("aten::add", [[2**24], [2**24], []], "large 302_000")
    graph = graph_of(*[tiny] * 40, large, large)
    kernels = graph.select(kind="kernel", name="large")
    assert scaled_time(graph, kernels, [2.0, 1.0]).duration_ns.tolist() == [602_000, 302_000]
    tinies = graph.select(kind="kernel", name="tiny")
    assert set(scaled_time(graph, tinies, 8).duration_ns.tolist()) == {2_000}


def test_nothing_selected_is_an_error():
    with pytest.raises(NoMatchError):
        scaled_time(graph_of(mm(10, 20_000), device=None), Graph().tasks([]), 2)
