"""What a change cannot reach: work inside replays of graphs, starts held to the recording. Times in us."""

from __future__ import annotations

import pytest
from graph.small_traces import call, kernel, launched, op, trace

import daydream
from daydream import Graph, Replay
from daydream.graph.query.device import in_replays
from daydream.report.text.results import likely_text


def one_step(*rows, end: float) -> Replay:
    recorded = trace(*rows, steps=(0.0, end))
    recorded.metadata["steps"][0]["covered"] = True
    return daydream.replay(daydream.build(recorded))


def decoding():
    #  thread 1  |kernel|graph|     stream 7  |own 10 to 40|a 41 to 101|b 102 to 162|
    nodes = [kernel(name, at, at + 60, 2, phase="forward") for name, at in (("a", 41), ("b", 102))]
    rows = [launched("own", 0, 10, 40, 1, phase="forward"), call("cudaGraphLaunch", 6, 12, 2), nodes]
    return one_step(rows, op("end", 160, 165), end=165.0)


def own_kernels_faster(graph: Graph) -> None:
    kernels = graph.select(kind="kernel")
    (kernels - in_replays(kernels)).scale(0.5)


def test_what_runs_in_replays_is_said_where_a_change_leaves_it_out():
    answer = daydream.whatif(decoding(), own_kernels_faster)
    assert answer.left_out is not None
    assert (answer.left_out.replayed_ns, answer.left_out.device_ns) == (120_000, 150_000)
    assert "0.12 of 0.15 ms of device work per step run inside replays" in " ".join(answer.notes)
    assert answer.to_json()["left_in_replays_ns"] == 120_000
    # Twice as fast inside too, the step would be 60 us shorter: the range holds that.
    assert answer.uncertainty.unknown >= 60_000


def test_a_change_that_reaches_replays_or_no_device_work_says_nothing():
    faster = daydream.whatif(decoding(), "scale", on="gpu", factor=0.5)
    assert faster.left_out is None
    cpu = daydream.whatif(decoding(), "scale", on="cpu", factor=0.5)
    assert cpu.left_out is None
    assert cpu.to_json()["left_in_replays_ns"] is None


def waiting(begin: float):
    #  another thread was at work before the recording: what it launches at `begin` ends the step
    rows = [launched("a", 0, 10, 20, 1), launched("b", begin, begin + 10, begin + 20, 2, tid=2)]
    return one_step(rows, end=begin + 20)


def test_a_step_that_waits_for_recorded_starts_says_how_much_of_it_cannot_move():
    answer = daydream.whatif(waiting(80), "scale", on="gpu", factor=0.5)
    assert answer.to_json()["held_ns"] == 80_000
    assert answer.held is not None
    assert answer.held.startswith("80% of the step cannot move")
    assert answer.held in likely_text(answer)
    assert answer.uncertainty.unknown == pytest.approx(min(80_000, answer.affected.together))


def test_a_step_that_hardly_waits_for_them_does_not():
    answer = daydream.whatif(decoding(), "scale", on="gpu", factor=0.5)
    assert answer.held is None
    assert "cannot move" not in likely_text(answer)
