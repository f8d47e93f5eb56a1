"""Whether a recording was made at rest is judged, and what its steps took counts all the same."""

from itertools import accumulate, pairwise

import pytest
from small_traces import NO_COST, op, trace

import daydream
from daydream.collect.derive.quality import unrest
from daydream.report.info import overview


def recorded(*times, unprofiled=None, shapes=(), **metadata):
    """Return a collected trace of a first step and of steps that took so many us, two operators each."""
    borders = list(accumulate((times[0], *times), initial=0.0))
    rows = []
    for number, (begin, end) in enumerate(pairwise(borders)):
        shape = shapes[number - 1] if number and shapes else "[[4, 4]]"
        middle = (begin + end) / 2
        rows += [op("aten::mm", begin, middle, shapes=shape), op("aten::add", middle, end, shapes=shape)]
    metadata = {"collected": {"steps": len(times)}, **metadata}
    if unprofiled is not None:
        metadata["unprofiled_step_ns"] = [round(1000 * unprofiled)] * 3
        metadata.setdefault("profiler_cost", NO_COST)
    return trace(*rows, steps=tuple(borders), **metadata)


@pytest.mark.parametrize(
    ("times", "unprofiled", "said"),
    [
        ((100, 104, 97), None, None),
        ((100, 104, 97), 98, None),
        ((100, 100, 100, 100, 124), None, None),  # one in five
        ((119, 100, 90), 90, None),
        ((3964, 3347, 1484), 1401, "1 of 3 steps that do the same work took over 20% longer or shorter"),
        ((100, 125), None, "1 of 2 steps"),
        ((184, 180, 182), 99, "would take 0.182 ms, but those timed without a profiler took 0.099 ms"),
        ((110, 111, 109), 144.6, "with the profiler on (0.110 ms) than off (0.145 ms)"),
        ((94, 94, 94), 100, "with the profiler on (0.094 ms) than off (0.100 ms)"),
        ((96, 96, 96), 100, None),
    ],
)
def test_a_restless_machine_is_told_by_its_signs(times, unprofiled, said):
    found = daydream.replay(recorded(*times, unprofiled=unprofiled)).unrest

    assert (found is None) if said is None else (said in found)


def test_steps_of_other_work_may_take_other_times():
    wide = "[[4, 400]]"
    seen = recorded(100, 400, 100, unprofiled=250, shapes=("[[4, 4]]", wide, "[[4, 4]]"))

    assert daydream.replay(seen).unrest is None
    assert daydream.replay(recorded(100, 400, 100, unprofiled=250)).unrest is not None


def test_frames_of_python_are_no_sign_as_their_cost_is_not_taken_out():
    seen = recorded(200, 200, 200, unprofiled=100)
    assert unrest(seen, 200_000) is not None

    seen.texts["stack"] = ["train.py(1): step"]
    assert unrest(seen, 200_000) is None


def test_every_result_has_the_note():
    seen = recorded(3964, 3347, 1484, unprofiled=1401)
    replay = daydream.replay(seen)
    change = daydream.whatif(replay, lambda graph: graph.select(name="mm").scale(0.5))

    assert replay.unrest in replay.notes
    assert replay.to_json()["notes"] == replay.notes
    assert replay.unrest in change.notes
    shown = overview(seen)
    assert replay.unrest in shown.notes
    assert shown.verdicts["replay"].answer == "yes"
    doubt = shown.verdicts["what-if"]
    assert (doubt.answer, doubt.why) == ("partly", "the machine was busy during recording, see the note")
