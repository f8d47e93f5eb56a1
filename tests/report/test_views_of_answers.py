"""The views of what-ifs, explanations, replays and overviews: the answer first, then what it rests on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from graph.small_traces import op, trace
from shared import shared_replay
from view_text import view_text

import daydream
from daydream.predict.suggest import suggestion
from daydream.report.format import step_change_text
from daydream.report.views.breakdown import cause_table, moved_bound
from daydream.simulate.critical_path import PathCause

RECORDING = {
    "event_ns": {"forward": 1000, "backward": 1000, "optimizer": 1000}, "input_ns": 0, "module_ns": 0,
    "annotation_ns": 0, "inside_ns": 200, "before_share": 0.75, "heads": [], "step_hooks_ns": 0,
}  # fmt: skip


def small_run(factor=1.0):
    """Three steps of 20 us, 2 of them recording; without a profiler they took 18, times the factor."""
    rows = [
        part for at in (0, 20, 40)
        for part in (op("a", at, at + 8, phase="forward"), op("b", at + 12, at + 18, phase="forward"))
    ]  # fmt: skip
    times = [round(factor * 18_000)] * 3
    return trace(rows, steps=(0, 20, 40, 60), profiler_cost=RECORDING, unprofiled_step_ns=times)


def test_what_a_step_waits_for_adds_up_and_the_rest_is_never_the_largest(replay):
    before, after = daydream.whatif(replay, "amp").breakdowns()
    *rows, whole = cause_table(before, after).rows

    for side in (1, 2, 3):
        assert sum(row.cells[side] for row in rows) == whole.cells[side]
    *named, rest = [max(row.cells[1:3]) for row in rows]
    assert rest <= max(named)
    many = {cause.value: 100 - at for at, cause in enumerate(PathCause)}
    *named, rest, _ = cause_table({"by_cause": many}, {"by_cause": many}).rows
    assert max(row.cells[1] for row in named) >= rest.cells[1]


def test_where_the_step_was_measured_without_a_profiler_the_prediction_starts_from_that():
    def add(graph):
        graph.insert_after(graph.select(name="^a$"), "new work", kind="cpu", duration_ns=3_000)

    # The correction finds 18 us; it took 9. What the change adds is 3 on either.
    found = view_text(daydream.whatif(small_run(factor=0.5), add))

    assert found.startswith("add: 9.00 -> 12.00 us per step, 0.75x")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((10, 10, 10, 12), ""),  # the mean is 5% above the median
        ((10, 10, 10, 10, 50, 30), "2 of 6 steps take 4.0x the median"),
        ((10, 10, 10, 18), "1 of 4 steps takes 1.8x the median"),
        ((20, 20, 20, 4), "1 of 4 steps takes 0.2x the median"),
        ((10, 10, 10, 14, 14.9), "steps take 1.00x to 1.49x the median"),
    ],
)
def test_a_headline_says_why_its_mean_is_far_from_the_median(times, said):
    ends = [10 + sum(times[:n]) for n in range(len(times) + 1)]
    rows = [op("a", start, end, phase="forward") for start, end in pairwise(ends)]
    replay = daydream.replay(trace([op("first", 0, 10), *rows], steps=(0, *ends)))
    assert [step.measured_ns for step in replay.steps] == [round(1000 * each) for each in times]

    for screen in (
        view_text(replay),
        view_text(daydream.whatif(replay, "scale", factor=0.5)),
        view_text(daydream.rank(replay, pairs=0, with_curves=False), top=5),
        view_text(daydream.explain(replay)),
    ):
        found = [line for line in screen.splitlines()[:3] if line.startswith("  the step is the mean: ")]
        assert found == ([f"  the step is the mean: {said}"] if said else [])


def test_a_prediction_that_says_nothing_leads_with_that_and_why():
    comparison = daydream.whatif(
        shared_replay("kineto/mi300x_sglang_decode_graph_replay.json.gz"), "scale", on="gpu", factor=0.5
    )
    first, *rest = view_text(comparison).splitlines()

    assert first.startswith("scale: cannot be predicted from this trace; replay error")
    assert f"because {comparison.reason}" in " ".join(" ".join(rest).split())
    assert not any("change" in line.split() for line in rest)
    assert suggestion(comparison) is None


def test_of_a_very_long_recording_nothing_more_is_simulated(replay, monkeypatch):
    comparison = daydream.whatif(replay, "amp")
    monkeypatch.setattr("daydream.predict.suggest.MOST_TASKS", 10)

    assert suggestion(comparison) is None


def test_a_range_on_both_sides_of_1x_is_undecided():
    assert step_change_text(100, 100, 90, 110).endswith(", 1.00x (may help or hurt: 0.91 to 1.11x)")
    assert step_change_text(1000, 980, 960, 1001).endswith(", 1.02x (90% interval 1.00 to 1.04x)")
    assert step_change_text(100, 80, 70, 90).endswith(", 1.25x (90% interval 1.11 to 1.43x)")
    assert step_change_text(100, 120, 110, 130).endswith(", 0.83x (90% interval 0.77 to 0.91x)")


def test_steps_that_all_replay_exactly_have_no_worst_one():
    rows = [op("a", 10 * n, 10 * n + 8) for n in range(31)]
    replay = daydream.replay(trace(rows, steps=tuple(range(0, 311, 10))))
    assert len(replay.steps) > 12
    assert f"  each of the {len(replay.steps)} steps replays with an error of 0.00%\n" in view_text(replay)
    assert "worst of" in view_text(replay, verbose=True)
    replay.steps[7].error = 10.0

    assert f"worst of {len(replay.steps)} steps; --json has them all" in view_text(replay)


# Where a step's time goes

US = 1_000


def parts(**by_cause):
    return {"by_cause": {name.replace("_", " "): US * us for name, us in by_cause.items()}}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # Kernels hid the CPU's work: the step is shorter, and what is left of it is the CPU's.
        (parts(copies=80, queue_wait=20), parts(queue_wait=60), "40.00 us of CPU time that device work"),
        (parts(queue_wait=60), parts(copies=80), "60.00 us of device time that CPU work"),
        # As much as before, less than a tenth of the step, and the work of a step without a device.
        (parts(copies=80, queue_wait=20), parts(copies=40, queue_wait=20), ""),
        (parts(copies=80, queue_wait=20), parts(copies=60, queue_wait=28), ""),
        (parts(CPU_operators=80), parts(CPU_operators=60, queue_wait=20), ""),
        # A batch is waited for, which is neither.
        (parts(data_loading=60), parts(copies=80), ""),
    ],
)  # fmt: skip
def test_a_wait_that_moved_is_told_with_its_time(before, after, said):
    text = moved_bound(before, after)

    assert text.startswith(said)
    assert bool(text) == bool(said)
