"""Graphs that differ in durations only share their plans: each structure is lowered once."""

import numpy as np
import pytest

from daydream import load, replay
from daydream.graph import lower as lowering
from daydream.graph.alike import alike, share_plans
from daydream.predict.prediction import predict
from daydream.simulate.steady import settle
from daydream.transforms.compose import Edit

GPT = "examples/synthetic_gpt_gpu.json.gz"


@pytest.fixture
def graph():
    return replay(load(GPT)).graph


@pytest.fixture
def lowered(monkeypatch):
    """Each graph and number of copies that is lowered anew."""
    seen = []
    anew = lowering._lower
    monkeypatch.setattr(
        lowering, "_lower", lambda graph, *how: seen.append((id(graph), how[0])) or anew(graph, *how)
    )
    return seen


def test_shared_plans_settle_to_the_same_times(graph, lowered):
    slower = graph.copy()
    slower.columns["duration_ns"] *= 2
    slower.touch()
    anew = settle(slower.copy())
    assert len(lowered) == 1
    share_plans(slower, graph)
    shared = settle(slower)
    assert len(lowered) == 1
    assert shared.times == anew.times
    np.testing.assert_array_equal(shared.timeline.start_ns, anew.timeline.start_ns)


@pytest.mark.parametrize("column", ["order", "launch", "latency_ns", "lane", "release_ns", "row"])
def test_a_difference_of_structure_is_seen(graph, column):
    other = graph.copy()
    assert alike(graph, other)
    other.columns.own(column)[-1] += 1
    assert not alike(graph, other)


def test_other_edges_and_policies_are_seen(graph):
    linked, scheduled = graph.copy(), graph.copy()
    linked.links.add(src=0, dst=1, latency_ns=0, from_start=0, cause=8)
    scheduled.schedule(scheduled.lanes[0].name, key="order")
    assert not alike(graph, linked)
    assert not alike(graph, scheduled)


def test_the_second_prediction_of_a_change_lowers_nothing(lowered):
    before = replay(load(GPT))

    def insert(graph):
        kernels = graph.select(kind="kernel")
        graph.insert_before(kernels, "pause", duration_ns=1_000)
        return {}

    first = predict(before, Edit("pauses", insert))
    del lowered[:]
    again = predict(before, Edit("pauses", insert), like=first.graph)
    assert not lowered
    assert again.after.times == first.after.times
    assert again.graph.columns["order"] is first.graph.columns["order"]  # nor is it held twice


def test_a_change_of_times_and_types_lowers_nothing(lowered):
    before = replay(load(GPT))

    def change(graph):
        graph.select(kind="kernel").scale(0.5).set(dtype="float16")
        return {}

    del lowered[:]
    after = predict(before, Edit("narrow", change)).after
    assert not lowered
    anew = before.graph.copy()
    change(anew)
    assert settle(anew).times == after.times


@pytest.mark.parametrize("factor", [0.5, 1, 40])
def test_shared_plans_end_their_steps_with_what_takes_part_in_them(graph, factor):
    slower = graph.copy()
    cpu = slower.select(kind="cpu")
    cpu.scale(factor)
    slower.touch()
    anew = settle(slower.copy()).timeline
    share_plans(slower, graph)
    np.testing.assert_array_equal(settle(slower).timeline.closing, anew.closing)
