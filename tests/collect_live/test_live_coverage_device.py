"""Device work under recorded layers, and no waiting for a device anywhere in the recording."""

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import MODELS, record  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from daydream.collect.derive.build import derive  # noqa: E402
from daydream.collect.live.capture import (  # noqa: E402
    MARKER_NAME,
    UPDATE_NAME,
    label_outside,
    read_profile,
    set_loss_phase,
)
from daydream.collect.live.layer_hooks import RANGE_NAME  # noqa: E402

WAITS = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "_to_copy", "copy_")
MAIN, ENGINE, STREAM = 100, 101, 7


def row(name, category, start, duration, thread=MAIN, **args):
    """Return a row of the profiler's file; times in us."""
    said = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration,
            "args": said}  # fmt: skip


def device_step():
    """Return forward, backward on a thread of its own, and an update of two parameters: a kernel each."""
    events = [
        row(RANGE_NAME.format(0), "cpu_op", 0, 100),
        row(RANGE_NAME.format(1), "cpu_op", 10, 40),
        row("Optimizer.step#SGD.step", "user_annotation", 300, 100),
    ]
    node = "autograd::engine::evaluate_function: "
    parts = [
        ("aten::linear", 12, MAIN, {"Sequence_number": 5}),
        ("aten::relu", 60, MAIN, {"Sequence_number": 6}),
        (node + "ReluBackward0", 200, ENGINE, {"Sequence_number": 6, "Fwd_thread_id": 1}),
        (node + "AddmmBackward0", 250, ENGINE, {"Sequence_number": 5, "Fwd_thread_id": 1}),
        ("aten::add_", 310, MAIN, {"Input_Dims": [[8, 4]], "Input_type": ["float"]}),
        ("aten::add_", 350, MAIN, {"Input_Dims": [[8]], "Input_type": ["float"]}),
    ]
    for number, (name, start, thread, said) in enumerate(parts, 1):
        ids = {"External_id": number, "correlation": 1000 + number}
        events += [
            row(name, "cpu_op", start, 30, thread, External_id=number, **said),
            row("cudaLaunchKernel", "cuda_runtime", start + 5, 5, thread, **ids),
            row(f"kernel {number}", "kernel", 1000 + 50 * number, 40, device=0, stream=STREAM, **ids),
        ]
    return events


def read(events, folder):
    path = folder / "profile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    recording, markers, seen = read_profile(path, {0: "Net", 1: "first"})
    assert seen == 2
    assert recording["start_ns"].dtype == np.int64  # the end of a row is a sum
    return recording, markers


def test_device_work_takes_the_layer_and_the_phase_of_its_operator(tmp_path):
    recording, _ = read(device_step(), tmp_path)
    recording.metadata.update(
        parameters=[
            {"name": "first.weight", "layer": "first", "shape": [8, 4]},
            {"name": "bias", "layer": "Net", "shape": [8]},
        ],
        optimizers=[{"name": "SGD", "groups": [{"tensors": 2, "parameters": ["first.weight", "bias"]}]}],
    )
    label_outside(recording)
    trace = derive(recording, ranges=([("step 1", 0, 2_000_000)], "the test"))
    set_loss_phase(trace)
    kernels = trace.is_kind("kernel").nonzero()[0]

    names, layers, phases = (trace.values(column, kernels) for column in ("name", "layer", "phase"))
    assert list(zip(names, layers, phases, strict=True)) == [
        ("kernel 1", "first", "forward"),
        ("kernel 2", "Net", "forward"),
        ("kernel 3", "Net", "backward"),
        ("kernel 4", "first", "backward"),
        ("kernel 5", "first", "optimizer"),
        ("kernel 6", "Net", "optimizer"),
    ]


def test_the_update_in_which_a_recording_ends_is_an_update(tmp_path):
    """Its own range is written when it ends, which is behind the recording's end; torch 2.13 writes it."""
    closed = [one for one in device_step() if not one["name"].startswith("Optimizer.step")]
    update = row(UPDATE_NAME.format("SGD"), "cpu_op", 302, 1)
    marker = row(MARKER_NAME.format(3), "cpu_op", 400, 1)
    recording, markers = read([*closed, update, marker], tmp_path)
    trace = derive(recording, ranges=([("step 1", 0, 400_000)], "the test"))

    (found,) = trace.is_kind("annotation").nonzero()[0]
    assert markers == [(3, 400_000)]
    assert (trace.values("name", [found]), trace["start_ns"][found], trace["duration_ns"][found]) == (
        ["Optimizer.step#SGD.step"], 302_000, 98_000,
    )  # fmt: skip
    kernels = trace.is_kind("kernel").nonzero()[0]
    assert trace.values("phase", kernels) == ["forward"] * 2 + ["backward"] * 2 + ["optimizer"] * 2


class Dispatched(TorchDispatchMode):
    """Notes the operators that read a value on the host or copy it."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name in WAITS:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def test_recording_never_waits_for_a_device(tmp_path, monkeypatch):
    model, loss = MODELS["gpt"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    callers = []

    def wait(*_, **__):
        callers.append(sys._getframe(1).f_code.co_filename)

    # What looks like a GPU: the paths that ask for one are taken, and each wait is noted with its caller.
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "synchronize", wait)
    monkeypatch.setattr(cuda.Stream, "synchronize", wait)
    monkeypatch.setattr(cuda.Event, "synchronize", wait)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    about = SimpleNamespace(name="a GPU", total_memory=1, major=9, minor=0)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _: about)
    # Without it torch's profiler falls back to device events of its own, which raise (and print a backtrace)
    # at every operator here.
    activities = torch.autograd.profiler._supported_activities() | {torch.profiler.ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.autograd.profiler, "_supported_activities", lambda: activities)
    seen = Dispatched()

    def iteration():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    with warnings.catch_warnings(), seen:
        warnings.simplefilter("ignore")
        trace = record(iteration, tmp_path)

    found = {"id": 0, "name": "a GPU", "memory_bytes": 1, "compute_major": 9}
    assert trace.metadata["devices"] == [found]
    # torch's own profiler waits once, as it stops: the steps are over then.
    profiler = Path(torch.autograd.profiler.__file__)
    assert [Path(caller) for caller in callers if Path(caller) != profiler] == []
    assert len(callers) <= 1
    assert seen.waits == []
