"""Mutations of recordings are reproducible, and an answer that a law or the machine refutes is found."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "validation"))

import falsify
from mutations import DERIVED

import daydream
from daydream.collect.derive.build import derive
from daydream.collect.derive.recording import Recording

BUSY = ("gpu_bound", None)  # one thread, which waits for the loss at the end of each step


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(falsify.recorded(BUSY)[0]).recording


def judged(replay, truths):
    found = falsify.Judged(0, "gpu_bound", ["nothing"], answers=4)
    falsify.hold(found, replay, truths, frozenset(falsify.QUESTIONS))
    return found


@pytest.mark.parametrize(("true", "wrong"), [(0.9, 1), (0.52, 0)])
def test_a_confident_wrong_answer_is_found(replay, true, wrong):
    assert len(judged(replay, {("gpu", 0.5): true}).wrong) == wrong


def test_a_copy_whose_device_row_was_lost_makes_no_other_copy_work(replay):
    # Each loss is copied in a call that waits for the device. Nothing says so any more of the first one.
    trace = replay.graph.trace
    copies = np.flatnonzero(trace.is_kind("memcpy"))
    rows = Recording(
        {name: np.delete(trace[name], copies[0]) for name in trace.columns if name not in DERIVED},
        trace.texts,
        dict(trace.metadata),
    )

    answer = daydream.whatif(daydream.replay(derive(rows)).recording, "scale", on="gpu", factor=0.5)

    assert answer.simulated_ns / answer.replayed_ns == pytest.approx(
        falsify.recorded(BUSY)[1]["gpu", 0.5], rel=0.01
    )
