"""Pauses of a script are waits or work by how long its thread ran meanwhile."""

import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_recording import record  # noqa: E402

import daydream  # noqa: E402
from daydream.trace.schema import BY_CLOCK  # noqa: E402

PAUSE_S = 0.1


def spin():
    """Keep the thread on a CPU for that long, however long others keep it off."""
    end = time.thread_time() + PAUSE_S
    while time.thread_time() < end:
        pass


def recorded(folder, pause, **options):
    folder.mkdir()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        pause()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    return record(loop, folder, iterations=10, **options)


def by_clock(trace):
    """Return how long the thread ran, and how long that was, between looks at its clock around a pause."""
    rows = np.flatnonzero(trace["name"] == trace.code("name", BY_CLOCK))
    rows = rows[trace["duration_ns"][rows] > 1e9 * PAUSE_S]
    assert len(rows)  # not every one: looks at the clock that would cost much are left out
    return trace["cpu_ns"][rows], trace["duration_ns"][rows]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not count it")
def test_a_script_that_sleeps_waits_and_one_that_spins_works(tmp_path):
    asleep = recorded(tmp_path / "asleep", lambda: time.sleep(PAUSE_S))
    awake = recorded(tmp_path / "awake", spin)

    (slept, waited), (ran, lasted) = map(by_clock, (asleep, awake))
    assert (slept < 0.5 * waited).all()
    assert (ran >= 0.9e9 * PAUSE_S).all()
    assert (ran <= 1.1 * lasted).all()
    assert daydream.whatif(asleep, "scale", on="cpu", factor=0.0).predicted_ns >= 1e9 * PAUSE_S
    if (ran > 0.9 * lasted).all():  # else other programs kept it waiting
        assert daydream.whatif(awake, "scale", on="cpu", factor=0.0).predicted_ns < 1e6


def test_frames_that_wait_are_recorded_with_stacks(tmp_path):
    trace = recorded(tmp_path / "a", lambda: time.sleep(PAUSE_S), with_stack=True)

    rows = np.flatnonzero(trace.is_kind("blocked") & (trace["name"] == trace.code("name", "sleep")))
    assert len(rows) >= 3
    assert trace["duration_ns"][rows].min() >= 1e9 * PAUSE_S
