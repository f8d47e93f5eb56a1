"""Threads that are off the CPU, and what becomes of the time in which they were.

Each program runs with latencies of its hand-offs of up to 1, 10 and 50 us and batches that vary by 0, 10 and
30 %. Steps 24 to 29 are recorded, by Nsight Systems with the context switches of every thread or by Kineto
without a word on who was blocked. Where the recording tells it, the answer is that of a real run with the
change; where it does not, that lies inside the interval, or nothing is predicted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from machine import Machine
from machine.blocked import BLOCKED
from machine.nsys import write_nsys
from test_machine_whatif import CHANGES, TOLERANCE, as_recorded

import daydream

FIRST, LAST = 24, 29
HAND_OFFS_US, VARIATIONS = (1, 10, 50), (0.0, 0.1, 0.3)
RECORDINGS = ("switches", "no switches", "Kineto")
MISSED: dict[tuple[str, str, str], str] = {}


@cache
def machine(program: str, hand_off_us: int, variation: float) -> Machine:
    return replace(BLOCKED[program](), hand_off=(1_000, 1_000 * hand_off_us), variation=variation)


@cache
def true_step_ns(change: str, *setting: object) -> float:
    ends = machine(*setting).run(**CHANGES[change]).step_ends
    return (ends[LAST] - ends[FIRST]) / (LAST - FIRST)


@cache
def recorded(recording: str, *setting: object) -> daydream.Replay:
    run = machine(*setting).run()
    with TemporaryDirectory() as folder:
        if recording == "Kineto":
            return as_recorded(daydream.load(run.write(Path(folder) / "trace.json", FIRST, LAST)))
        path = write_nsys(Path(folder) / "a.sqlite", run, FIRST, LAST, switches=recording == "switches")
        return as_recorded(daydream.load(path, step_marker="^step$"))


def judge(recording: str, change: str, *setting: object) -> str:
    """Return how good an answer is: right, inside its interval, refused or wrong."""
    ((what, factor),) = CHANGES[change].items()
    truth = true_step_ns(change, *setting)
    answer = daydream.whatif(recorded(recording, *setting), "scale", on=what, factor=factor)
    if answer.reason is not None:
        return "refused"
    assert answer.predicted_low_ns is not None
    assert answer.predicted_high_ns is not None
    if not answer.predicted_low_ns <= truth <= answer.predicted_high_ns:
        return "wrong"
    return "right" if answer.simulated_ns == pytest.approx(truth, rel=TOLERANCE) else "inside"


def holds(recording: str, judged: str) -> bool:
    return judged == "right" or (recording != "switches" and judged != "wrong")


@pytest.mark.parametrize(
    ("program", "recording", "change"),
    [
        pytest.param(*case, marks=pytest.mark.xfail(case in MISSED, reason=MISSED.get(case, ""), strict=True))
        for program in BLOCKED
        for recording in RECORDINGS
        for change in CHANGES
        for case in [(program, recording, change)]
    ],
)
def test_an_answer_knows_who_was_blocked_or_that_nobody_knows(program, recording, change):
    judged = judge(recording, change, program, 10, 0.1)

    assert holds(recording, judged), judged


@pytest.mark.slow
@pytest.mark.parametrize("recording", ["switches", "Kineto"])
@pytest.mark.parametrize("program", BLOCKED)
def test_so_do_all_answers_however_hand_offs_and_batches_vary(program, recording):
    found = {
        change: Counter(
            judge(recording, change, program, us, share) for us in HAND_OFFS_US for share in VARIATIONS
        )
        for change in CHANGES
    }
    for change, judged in found.items():
        print(f"{program:26} {recording:10} {change:10} {dict(judged)}")  # noqa: T201

    missed = {change for change, judged in found.items() if not all(holds(recording, how) for how in judged)}
    assert missed <= {change for change in CHANGES if (program, recording, change) in MISSED}
