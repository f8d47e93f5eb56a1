"""The settled step of many variants: what `settle` says about each of them."""

from __future__ import annotations

import numpy as np
import pytest
from graph.small_traces import op, trace
from machine.programs import PROGRAMS, queue_full

import daydream
from daydream import GraphError
from daydream.simulate import steady_variants
from daydream.simulate.steady import settle
from daydream.simulate.steady_variants import Speedup, settle_all

FACTORS = (2.0, 0.5, 0.0)


def one_by_one(graph, speedups):
    times, settled = [], []
    for speedup in speedups:
        for factor in speedup.factors:
            changed = graph.copy()
            speedup.apply(changed, factor)
            result = settle(changed)
            times.append({step: ns for (copy, step), ns in result.times.items() if copy == result.copy})
            settled.append(result.settled)
    return times, settled


def together(graph, speedups):
    found = settle_all(graph, speedups)
    times = [
        {step: ns for step, ns in zip(found.steps, row, strict=True) if ns >= 0}
        for row in found.step_ns.tolist()
    ]
    return times, found.settled.tolist()


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch):
    monkeypatch.setattr(steady_variants, "LEAST_VARIANTS", 2)


def speedups_of(graph):
    names = graph.columns["name"]
    found = []
    for code in np.unique(names[graph.alive])[:6].tolist():
        ids = np.flatnonzero(graph.alive & (names == code))
        found += [Speedup(ids, FACTORS), Speedup(ids, (0.25,), gaps=True, durations=False)]
    gpu, cpu = graph.select(on="gpu").ids, graph.select(on="cpu").ids
    return [*found, Speedup(gpu, FACTORS), Speedup(cpu, FACTORS, gaps=True)]


@pytest.mark.parametrize("passes", [4, 8])
@pytest.mark.parametrize("program", ["synchronizing", "multi_stream", "queue_full_64"])
def test_simulating_more_passes_at_once_changes_nothing(program, passes, tmp_path):
    path = PROGRAMS[program]().run(steps=8).write(tmp_path / "trace.json", 3, 6)
    graph = daydream.build(daydream.load(path))
    speedups = speedups_of(graph)
    usual, ahead = settle_all(graph, speedups), settle_all(graph, speedups, passes=passes)
    assert np.array_equal(usual.step_ns, ahead.step_ns)
    assert np.array_equal(usual.settled, ahead.settled)
    for speedup in speedups[-2:]:
        changed = graph.copy()
        speedup.apply(changed, 0.5)
        one, other = settle(changed), settle(changed, passes=passes)
        assert (one.times, one.copy, one.settled) == (other.times, other.copy, other.settled)


@pytest.mark.parametrize("program", ["synchronizing", "multi_stream"])
def test_variants_settle_as_each_would_alone(program, tmp_path):
    path = PROGRAMS[program]().run(steps=8).write(tmp_path / "trace.json", 3, 6)
    graph = daydream.build(daydream.load(path))
    speedups = speedups_of(graph)

    assert together(graph, speedups) == one_by_one(graph, speedups)


def test_a_cold_window_is_repeated_as_often_as_it_would_be_alone(tmp_path):
    path = queue_full(depth=64).run(steps=5).write(tmp_path / "cold.json", 0, 3)
    graph = daydream.build(daydream.load(path))
    speedups = speedups_of(graph)

    times, settled = together(graph, speedups)

    assert (times, settled) == one_by_one(graph, speedups)
    assert all(settled)


def test_a_lane_with_a_policy_is_settled_one_by_one(tmp_path):
    path = PROGRAMS["multi_stream"]().run(steps=6).write(tmp_path / "trace.json", 2, 4)
    graph = daydream.build(daydream.load(path))
    stream = next(lane.name for lane in graph.lanes if lane.on_device)
    graph.schedule(stream, key="duration_ns")
    speedups = [Speedup(graph.select(on="gpu").ids, (0.5, 0.25))]

    assert together(graph, speedups) == one_by_one(graph, speedups)


def test_a_graph_without_steps_is_refused():
    with pytest.raises(GraphError, match="nothing to simulate"):
        settle_all(daydream.Graph(), [])


def test_a_sole_step_begins_in_each_variant_where_it_would_alone():
    # The step of tests/graph/test_steady.py that begins behind what runs before it.
    recorded = trace([op("before", 0, 30_000), op("work", 40_000, 100_000)], steps=(34_000.0, 100_000.0))
    recorded.metadata["steps"][0]["covered"] = True
    graph = daydream.replay(recorded).graph
    speedups = [Speedup(graph.select(on="cpu").ids, (0.0, 0.5, 0.9, 2.0), gaps=True)]
    assert together(graph, speedups) == one_by_one(graph, speedups)
