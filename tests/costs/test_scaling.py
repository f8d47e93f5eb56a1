"""Durations when work is multiplied: what grows and what stays."""

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
