"""Arrays are never written in place: an edit replaces them, and a graph has another version then."""

import tracemalloc

import numpy as np
import pytest
from small_graphs import kernels

from daydream import load, replay
from daydream.graph.graph import Graph
from daydream.graph.tables import COLUMNS
from daydream.simulate.steady_state import settle

GPT = "examples/synthetic_gpt_gpu.json.gz"


def graph_of(tasks):
    graph = Graph()
    lane = graph.lane_id("thread 1")
    graph.add(tasks, lane=lane, duration_ns=np.arange(tasks), order=np.arange(tasks) * 10)
    return graph


def held(one, other):
    return {name for name in one.columns if one.columns[name] is other.columns[name]}


def test_a_copy_holds_only_what_was_changed():
    graph = graph_of(4)
    copy = graph.copy()
    assert held(graph, copy) == set(COLUMNS)
    copy.select().set(phase="forward")
    copy.select().scale(2)
    assert held(graph, copy) == set(COLUMNS) - {"phase", "duration_ns"}
    assert graph.columns["phase"].tolist() == [-1] * 4
    assert graph.columns["duration_ns"].tolist() == [0, 1, 2, 3]


def test_versions_tell_what_was_written():
    graph = graph_of(3)
    copy = graph.copy()
    assert (copy.version, copy.structure) == (graph.version, graph.structure)
    copy.select().scale(2)
    assert copy.version != graph.version
    assert copy.structure == graph.structure
    for edit in (
        lambda graph: graph.select().set(dtype="float16"),
        lambda graph: graph.select().first().remove(),
        lambda graph: graph.links.add(src=0, dst=1, latency_ns=0, from_start=0, cause=8),
        lambda graph: graph.schedule("thread 1", key="order"),
        lambda graph: graph.add_lane(graph.lanes[0]._replace(name="other")),
    ):
        before = graph.version
        seen = {before}
        for _ in range(2):
            twin = graph.copy()
            edit(twin)
            seen.add(twin.version)
        assert len(seen) == 3  # two copies that were edited alike have versions of their own
        assert graph.version == before


@pytest.mark.parametrize("factor", [0.5, 1, 40])
def test_a_plan_that_is_kept_ends_its_steps_as_one_made_anew(factor):
    graph = replay(load(GPT)).graph
    slower = graph.copy()
    slower.select(kind="cpu").scale(factor)
    kept = settle(slower)
    anew = graph.copy()
    anew.select(kind="cpu").scale(factor)
    anew._derived = {}  # nothing is kept
    fresh = settle(anew)
    assert kept.times == fresh.times
    np.testing.assert_array_equal(kept.timeline.closing, fresh.timeline.closing)


def test_edits_leave_the_same_tasks_whatever_another_copy_did_before():
    def split_and_remove(graph):
        work = kernels(graph)
        work.launches().split(2)
        work.remove()
        return len(graph)

    asked_first, asked_later = replay(load(GPT)).graph, replay(load(GPT)).graph
    alone = split_and_remove(asked_first.copy())
    kernels(asked_later.copy()).first().remove()
    assert split_and_remove(asked_later.copy()) == split_and_remove(asked_later.copy()) == alone
    calls = asked_first.copy()
    work = kernels(calls)
    pieces = work.launches().split(2)
    work.remove()
    assert not calls.alive[pieces.ids].any()  # a call goes with all of its pieces


def test_a_repeated_task_costs_no_memory_by_the_rows_of_its_trace():
    graph = replay("examples/mlp_cpu.json.gz").graph.copy()
    graph.select(name="aten::addmm").first().repeat(300)
    tracemalloc.start()
    graph.select(name="aten::addmm").first().remove()
    assert tracemalloc.get_traced_memory()[1] < 300 * len(graph.recorded) * 4
    tracemalloc.stop()
