"""What a recording of some steps cannot see: held against the same program recorded from its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import daydream
from daydream.memory.allocations import AFTER, BEFORE, EVENT
from daydream.memory.lifetimes import allocations

PROGRAM = Path(__file__).with_name("record_training.py")
ROOT = PROGRAM.parents[2]
pytestmark = pytest.mark.slow


def recorded(folder, model, how):
    """The trace of a training program."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, PROGRAM, folder, model, how], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return daydream.load(folder / f"{model}.parquet")


def peaks(trace, last=3):
    """The most that is held within each of the last steps, in bytes."""
    held = allocations(trace)
    places, totals = held.held(0, -1)
    inside = (places > BEFORE) & (places < AFTER) & (places % EVENT == 0)
    step = np.full(len(places), -1)
    begun = dict(zip(held["begin"].tolist(), held["step"].tolist(), strict=True))
    ended = dict(zip(held["end"].tolist(), held["end_step"].tolist(), strict=True))
    step[inside] = [begun.get(place, ended.get(place, -1)) for place in places[inside].tolist()]
    steps = sorted(set(step[step >= 0].tolist()))[-last:]
    return [int(totals[step == one].max()) for one in steps]


@pytest.mark.parametrize("model", ["gpt", "foreach", "fused", "zeros", "cnn"])
def test_a_part_of_a_training_has_the_peaks_of_the_whole(tmp_path, model):
    for how in ("whole", "part"):
        (tmp_path / how).mkdir()
    whole = recorded(tmp_path / "whole", model, "whole")
    part = recorded(tmp_path / "part", model, "part")

    assert peaks(whole) == peaks(part)
