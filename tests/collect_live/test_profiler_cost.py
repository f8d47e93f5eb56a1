"""A recorded run knows what recording typically costs, and so its step without a profiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_models import MODELS
from live_recording import record, train

import daydream
from daydream.collect.live.recording_cost import TYPICAL

torch = pytest.importorskip("torch", reason="recording needs torch")


def test_a_recorded_run_is_predicted_without_the_profiler(tmp_path: Path):
    trace = record(train(*MODELS["mlp"]()), tmp_path, unprofiled=20)
    result = daydream.replay(trace)

    assert result.basis == "unprofiled"
    assert result.basis_measured_ns is not None
    assert result.basis_ns < result.replayed_ns
    assert result.graph.lint() == []
    cost = trace.metadata["profiler_cost"]
    assert cost == {**TYPICAL, "step_hooks_ns": cost["step_hooks_ns"]}
    assert cost["step_hooks_ns"] > 0
    assert daydream.whatif(result, "cpu", speedup=2).basis == "unprofiled"


def test_without_unprofiled_steps_the_cost_is_known_too(tmp_path: Path):
    result = daydream.replay(record(train(*MODELS["mlp"]()), tmp_path, unprofiled=0))

    assert result.basis == "estimated"
    assert result.basis_measured_ns is None
    assert result.basis_ns < result.replayed_ns
