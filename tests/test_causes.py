"""One taxonomy of causes and bounds: a key, a label, a colour each, which every output takes from there."""

import re
from pathlib import Path

import pytest
from machine.programs import PROGRAMS
from view_text import view_text

import daydream
from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS
from daydream.predict.breakdown import OF_KERNELS
from daydream.predict.notes import waited_for_ns
from daydream.report.html.page import page
from daydream.simulate.critical_path import OF_EDGE, OF_KIND, PathCause, by_bound

EXAMPLE = Path(__file__).parents[1] / "examples" / "synthetic_gpt_gpu.json.gz"
LARGE = 0.01  # of the step: no screen leaves such a cause out
ROW = re.compile(r"<td class=\"t\"><span>([^<]*)</span></td>\s*<td class=\"n b\" data-v=\"(\d+)\">(.*?)</td>")


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(EXAMPLE)


@pytest.fixture(scope="module")
def comparison(replay):
    return daydream.whatif(replay, "amp")


def test_every_kind_of_task_and_of_edge_has_a_cause():
    assert set(OF_KIND) == set(KINDS)
    assert set(OF_EDGE) == set(Cause) - {Cause.LANE}  # which is a gap, or a start-up on the device
    assert {cause.bound for cause in OF_KERNELS.values()} == {OF_KIND["kernel"].bound}


def test_text_json_and_html_name_the_same_causes_with_the_same_times(comparison):
    before, after = (comparison.to_json()[side]["ns_by_cause"] for side in ("before", "after"))
    lines = str(view_text(comparison, verbose=True)).splitlines()
    rows = {name: (int(ns), cell) for name, ns, cell in ROW.findall(page(comparison))}
    large = [key for key, ns in before.items() if ns > LARGE * comparison.replayed_ns]
    assert len(large) > 1
    for cause in map(PathCause, large):
        (line,) = [line.split() for line in lines if line.strip().startswith(f"{cause.label}  ")]
        assert f"{before[cause] / 1e6:.2f}" in line
        assert f"{after[cause] / 1e6:.2f}" in line
        assert rows[cause.label][0] == before[cause]
        assert f"var(--bound-{cause.bound.value.lower().replace(' ', '-')})" in rows[cause.label][1]


def test_json_tells_what_the_step_waits_for_by_the_same_causes(comparison):
    for side in (comparison.to_json()[name] for name in ("before", "after")):
        causes = {PathCause(key): ns for key, ns in side["ns_by_cause"].items()}
        assert side["ns_by_bound"] == by_bound(causes)


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
