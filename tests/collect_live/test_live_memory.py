"""Memory that collect records: the events of torch's own export, and what is said where it cannot be."""

import json
import stat
import sys
import types

import numpy as np
import pytest
from live_models import MODELS, record, train

import daydream
from daydream.collect.derive.quality import TYPICAL
from daydream.collect.live import capture
from daydream.collect.live.capture import held_before
from daydream.errors import DaydreamError, TraceError
from daydream.memory.enclosing import enclosing_rows
from daydream.memory.lifetimes import paired
from daydream.trace.metadata import mistake_in

torch = pytest.importorskip("torch", reason="recording needs torch")


def loop_of(name):
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    return train(model, loss)


def test_a_recorded_step_gives_back_what_it_took(tmp_path):
    trace = record(loop_of("gpt non-reentrant"), tmp_path)
    memory = trace.memory

    held = paired(trace, memory)

    assert not [note for note in held.notes if "earlier recording" not in note]  # of another test
    assert (np.cumsum(memory["bytes"]) == memory["allocated_bytes"] - memory["allocated_bytes"][0]
            + memory["bytes"][0]).all()  # fmt: skip
    assert (enclosing_rows(trace, memory)[memory["bytes"] > 0] >= 0).mean() > 0.95
    covered = [number for number, step in enumerate(trace.metadata["steps"]) if step["covered"]]
    asked = [int(held["bytes"][held["step"] == number].sum()) for number in covered]
    assert len(set(asked)) == 1  # each step asks for the same
    assert daydream.load(tmp_path / "trace.parquet").memory["bytes"].tolist() == memory["bytes"].tolist()


def test_layers_on_threads_of_the_script_are_recorded_without_memory(tmp_path):
    """Torch up to 2.13 records memory or the threads that a script starts itself, not both."""
    told = []

    trace = record(loop_of("threads"), tmp_path, on_progress=told.append)

    assert trace.memory is None
    assert any("capturing once more, without memory" in line for line in told)
    assert any(layer.endswith("towers.1") or ".towers.1." in layer for layer in trace.text("layer"))
    assert not [note for note in trace.metadata["notes"] if "threads that the script started" in note]


# What GPUs held, told by a stand-in for torch.cuda ------------------------------------------------


def segment(**more):
    blocks = [
        {
            "size": 1024,
            "requested_size": 1000,
            "state": "active_allocated",
            "frames": [{"filename": "/secret"}],
        },
        {"size": 2096128, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    return {"device": 1, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
            "segment_pool_id": (0, 0), "blocks": blocks, **more}  # fmt: skip


class Cuda(types.ModuleType):
    """Two GPUs, of which this process uses the second."""

    def is_available(self):
        return True

    is_initialized = is_available

    def device_count(self):
        return 2

    def memory_reserved(self, device):
        return device * 4 << 20

    def memory_allocated(self, device):
        return device << 10

    def memory_snapshot(self):
        return [segment(address=8192, stream=94_000_000, is_expandable=True), segment()]


@pytest.fixture
def cuda(monkeypatch):
    stand_in = Cuda("torch.cuda")
    monkeypatch.setattr(torch, "cuda", stand_in)
    monkeypatch.setitem(sys.modules, "torch.cuda", stand_in)
    return stand_in


def test_what_gpus_held_before_is_told_without_frames(cuda):
    held = held_before()

    blocks = [[1024, 1000], [2096128, None]]
    rest = {"total_size": 2097152, "pool": "small", "private": False, "blocks": blocks}
    assert held == {
        "1": {
            "allocated_bytes": 1024, "reserved_bytes": 4 << 20,
            "segments": [
                {"address": 4096, "stream": 0, "is_expandable": False, **rest},
                {"address": 8192, "stream": 1, "is_expandable": True, **rest},
            ],
        }
    }  # fmt: skip
    assert "secret" not in json.dumps(held)
    assert mistake_in({"held_before": json.loads(json.dumps(held))}) is None


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
