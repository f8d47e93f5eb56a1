"""What recording costs, and so a step without a profiler, is known; its file is its owner's alone."""

import stat

import pytest
from live_models import MODELS
from live_recording import record, train

import daydream
from daydream.collect.live import capture
from daydream.collect.recording_cost import TYPICAL
from daydream.errors import DaydreamError, TraceError

torch = pytest.importorskip("torch", reason="recording needs torch")


def test_a_recorded_run_is_predicted_without_the_profiler(tmp_path):
    trace = record(train(*MODELS["mlp"]()), tmp_path, unprofiled=20)
    assert len(trace.metadata["unprofiled_step_ns"]) == 20
    # On a busy machine the timed steps may come out slower than the recorded ones.
    trace.metadata["unprofiled_step_ns"] = [daydream.replay(trace).recording.replayed_ns * 9 // 10] * 20
    result = daydream.replay(trace)

    assert result.basis == "unprofiled"
    assert result.basis_ns < result.replayed_ns
    assert result.graph.lint() == []
    cost = trace.metadata["profiler_cost"]
    assert cost == {**TYPICAL, "step_hooks_ns": cost["step_hooks_ns"]}
    assert cost["step_hooks_ns"] > 0
    assert daydream.whatif(result, "cpu", speedup=2).basis == "unprofiled"


def test_without_unprofiled_steps_the_cost_is_known_too(tmp_path):
    result = daydream.replay(record(train(*MODELS["mlp"]()), tmp_path, unprofiled=0))

    assert result.basis == "estimated"
    assert result.basis_measured_ns is None
    assert result.basis_ns < result.replayed_ns


@pytest.fixture
def written(monkeypatch):
    """Return the profiler's files as they are read, with their modes; reading fails."""
    found = []

    def read(path, *_):
        found.append((path, stat.S_IMODE(path.stat().st_mode)))
        raise TraceError("it ends early")

    monkeypatch.setattr(capture, "read_profile", read)
    return found


def test_the_profilers_file_is_its_owners_and_a_full_disk_is_one_line(tmp_path, written):
    with pytest.raises(DaydreamError, match=r"^cannot write what the profiler recorded to .*disk full\?.*$"):
        record(train(*MODELS["mlp"]()), tmp_path)

    [(path, mode)] = written
    assert mode == 0o600
    assert not path.parent.exists()
