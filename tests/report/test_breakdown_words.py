"""What is said about the table of a step's time: which step it is of, and where the wait moved."""

from __future__ import annotations

import pytest
from graph.small_traces import call, launched, op, trace

import daydream
from daydream.predict.breakdown import parts_of_change
from daydream.report.notebook import html
from daydream.report.text.breakdown import moved_bound
from daydream.report.text.results import whatif_text

US = 1_000


def parts(**by_cause):
    return {"by_cause": {name.replace("_", " "): US * us for name, us in by_cause.items()}}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # Kernels hid the CPU's work: the step is shorter, and what is left of it is the CPU's.
        (parts(copies=80, queue_wait=20), parts(queue_wait=60), "For 40.00 us the step then waits for"),
        (parts(queue_wait=60), parts(copies=80), "For 60.00 us the step then waits for"),
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
    assert ("waited for the device" in text) == ("copies" in before["by_cause"] and bool(said))


def hidden_behind_the_device(*steps):
    """Steps whose CPU does 40 us of optimizer behind a kernel that is told for each, and waits for it."""
    rows, borders, at = [], [0.0], 0.0
    for number, us in enumerate(steps):
        rows += launched("k", at, at + 6, at + us, number, phase="forward")
        rows += [op("Optimizer.step", at + 5, at + 45, op="Optimizer.step", phase="optimizer")]
        end = max(us, 45.0) + 2
        rows += [call("cudaDeviceSynchronize", at + 45, at + end, phase="other")]
        at += end
        borders.append(at)
    return trace(rows, steps=tuple(borders))


def test_every_report_says_that_hidden_work_shows():
    replay = daydream.replay(hidden_behind_the_device(98, 98, 98, 98))
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.1)
    text = " ".join(whatif_text(comparison, verbose=True).split())
    said = moved_bound(*parts_of_change(comparison))

    assert "along the critical path, mean of the steps, us before after change" in text
    # The optimizer's 40 us, and half a one of the call that finds nothing left to wait for.
    assert said.startswith("For 40.50 us the step then waits for the CPU where it waited for the device")
    assert said in text
    assert said in " ".join(whatif_text(comparison).split())
    assert said in html(comparison)


def test_a_picture_of_one_step_shows_the_one_nearest_to_the_headline():
    replay = daydream.replay(hidden_behind_the_device(100, 98, 102, 118, 100))
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.9)
    before, after = replay.settled.step_times(), comparison.after.step_times()
    shown, same = comparison.shown_steps()

    def apart(step):
        return abs(before[step] - comparison.replayed_ns) + abs(after[step] - comparison.predicted_ns)

    assert shown == same
    assert apart(shown) == min(apart(step) for step in before)


def test_the_table_is_about_the_mean_of_the_steps_as_the_headline_is():
    # Two steps of 88 and 122 us: the headline of 105 us is between them.
    replay = daydream.replay(hidden_behind_the_device(86, 86, 120))
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.9)
    before, after = parts_of_change(comparison)

    assert comparison.replayed_ns == 105_000
    for side, ns in ((before, comparison.replayed_ns), (after, comparison.predicted_ns)):
        for parts in ("by_cause", "by_phase", "by_layer"):
            assert sum(side[parts].values()) == ns
    assert before["beside"]["device idle"] == pytest.approx((8 + 8) / 2 * US, abs=US)


def test_the_typical_step_is_told_where_the_mean_is_far_from_it():
    replay = daydream.replay(hidden_behind_the_device(86, 86, 86, 86, 186))
    text = " ".join(whatif_text(daydream.whatif(replay, "scale", on="gpu", factor=0.9)).split())

    assert text.startswith("scale: 113.0 -> ")
    assert "median step measured 88.00 us replayed 88.00 us predicted" in text
    near = daydream.replay(hidden_behind_the_device(86, 86, 86, 86, 90))
    assert "median step" not in whatif_text(daydream.whatif(near, "scale", on="gpu", factor=0.9))
