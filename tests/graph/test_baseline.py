"""One question, one answer: which step answers are about, and that all places give the same figures of it."""

from pathlib import Path

import numpy as np
import pytest
from small_traces import op, trace
from view_text import view_text

import daydream
from daydream.predict.basis import timed_steps
from daydream.report.info import overview

EXAMPLES = Path(__file__).parents[2] / "examples"
MS = 1_000_000


def timed(times, recorded=(20 * MS,) * 4):
    trace = daydream.Trace({}, {}, {"unprofiled_step_ns": times})
    found = timed_steps(trace, recorded)
    assert found is not None
    return found


def test_one_checkpoint_among_twenty_timed_steps_is_left_out_and_named():
    times = [15 * MS] * 20
    times[11] = 1_515 * MS
    found = timed(times)

    assert (found.mean_ns, found.left_out) == (15 * MS, (1_515 * MS,))
    assert found.added_ns == 75 * MS  # 1.5 s in twenty steps
    assert found.notes() == ["1 of 20 timed steps took 1.51 s and is left out; it would add 75 ms per step."]


@pytest.mark.parametrize("first", [0, 7])
def test_a_loader_that_stalls_every_eighth_step_counts(first):
    times = [15 * MS] * 20
    times[first::8] = [80 * MS] * len(times[first::8])
    found = timed(times)

    assert found.left_out == ()
    assert found.mean_ns == round(np.mean(times))
    assert found.spread > 0.2
    assert found.notes() == []


def test_the_recorded_step_is_one_object_beside_the_answer():
    replay = daydream.replay(EXAMPLES / "train_gpt_h200.parquet")
    found = daydream.whatif(replay, "amp")

    assert (found.basis, found.measured_ns) == ("unprofiled", 16_848_513)
    assert found.replay_error == pytest.approx(0.0036, abs=1e-4)  # before any calibration
    assert found.recorded.measured_ns == replay.measured_ns
    assert found.recorded.predicted_ns == 15_084_065
    assert found.speedup == pytest.approx(1.593, abs=1e-3)
    assert "with the profiler: 16.91 -> 15.08 ms, 1.12x, replay error 0.00%" in view_text(found)


def test_the_step_is_scaled_to_the_measured_one_as_far_as_its_cpu_goes():
    replay = daydream.replay(EXAMPLES / "mlp_cpu.json.gz")
    assert (replay.basis, replay.basis_measured_ns, replay.basis_error) == (
        "recorded", replay.measured_ns, replay.error,
    )  # fmt: skip
    on_device = daydream.replay(EXAMPLES / "train_gpt_h200.parquet")
    assert on_device.basis_ns == 16_908_459  # it waits for the device: no scaling of the CPU shortens it


def test_a_recording_without_steps_says_that_it_is_taken_as_one():
    rows = [op("aten::mm", 10 * at, 10 * at + 9) for at in range(5)]
    recorded = trace(*rows, steps=(0, 50), step_source="the whole recording: no markers, no period")
    recorded.metadata["steps"][0]["covered"] = True
    found = daydream.whatif(recorded, "scale", on="cpu", factor=0.5)

    said = "no steps found: the whole recording, 0.049 ms, is taken as one"
    replay, screen = found.replay, found.to_json()
    ranking = daydream.rank(replay, ["fused-adam"], pairs=0, with_curves=False)
    texts = [
        view_text(found), view_text(replay), view_text(ranking, top=1),
        view_text(daydream.explain(replay)), view_text(overview(recorded)),
    ]  # fmt: skip
    assert [str(text).splitlines()[0].strip() for text in texts] == [said] * len(texts)
    assert screen["notes"][0] == replay.to_json()["notes"][0] == ranking.to_json()["notes"][0] == said
    assert found.predicted_ns < found.predicted_high_ns == found.replayed_ns


def test_a_change_that_leaves_nothing_of_the_step_is_refused_if_it_takes_work_away():
    rows = [op("aten::mm", 10 * at, 10 * at + 10, op="aten::mm", phase="forward") for at in range(6)]
    recorded = trace(*rows, steps=(0, 20, 40, 60))
    found = daydream.whatif(recorded, "compile")  # no call of a library is known of these
    assert found.predicted_ns is found.predicted_low_ns is found.speedup is found.to_json()["speedup"] is None
    assert "cannot be predicted" in view_text(found)
    assert "nothing would be left of the step" in found.reason
    assert daydream.whatif(recorded, "scale", on="cpu", factor=0.0).predicted_ns == 0


def test_a_ranking_whose_intervals_tell_nothing_says_so():
    replay = daydream.replay(EXAMPLES / "mlp_cpu.json.gz")
    ranking = daydream.rank(replay, ["fused-adam"], pairs=0, with_curves=False)
    (row,) = ranking.optimizations
    wide = row.but(predicted_low_ns=row.replayed_ns // 2, predicted_high_ns=2 * row.replayed_ns)

    assert not ranking.cannot_tell
    told = ranking.but(optimizations=[wide])
    assert told.cannot_tell
    assert view_text(told, top=1).splitlines()[0].startswith("this recording cannot tell what helps")
