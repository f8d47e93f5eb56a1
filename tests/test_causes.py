"""One taxonomy of causes and bounds: a key, a label, a colour each, which every output takes from there."""

from pathlib import Path

import pytest
from machine.programs import PROGRAMS

import daydream
from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS
from daydream.predict.breakdown import OF_KERNELS
from daydream.predict.notes import waited_for_ns
from daydream.simulate.critical_path import OF_EDGE, OF_KIND, PathCause

EXAMPLE = Path(__file__).parents[1] / "examples" / "synthetic_gpt_gpu.json.gz"


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(EXAMPLE)


def test_every_kind_of_task_and_of_edge_has_a_cause():
    assert set(OF_KIND) == set(KINDS)
    assert set(OF_EDGE) == set(Cause) - {Cause.LANE}  # which is a gap, or a start-up on the device
    assert {cause.bound for cause in OF_KERNELS.values()} == {OF_KIND["kernel"].bound}


@pytest.mark.parametrize("name", ["cpu_bound", "queue_full_16", "synchronizing", "multi_stream", "graphs"])
def test_rank_and_explain_have_one_definition_of_what_a_step_waits_for(tmp_path, name):
    PROGRAMS[name]().run(steps=8).write(tmp_path / "step.json", 3, 6)
    replay = daydream.replay(tmp_path / "step.json")
    explanation = daydream.explain(replay)
    explained = explanation.replay

    assert waited_for_ns(explained.settled) == pytest.approx(
        explained.breakdown()["by_bound"], abs=len(PathCause)
    )
    assert {each.cause: each.ns for each in explanation.causes} == pytest.approx(
        explained.breakdown()["by_cause"],
        abs=len(replay.steps),  # rounded step by step
    )
    for bound, ns in waited_for_ns(explained.settled).items():
        assert explanation.bound_share(bound) == pytest.approx(ns / explanation.step_ns, abs=1e-4)
