"""Device work under recorded layers, and no waiting for a device anywhere in the recording."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import MODELS  # noqa: E402
from live_recording import record  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from daydream.collect.derive.build import derive  # noqa: E402
from daydream.collect.derive.recording import Recording  # noqa: E402
from daydream.collect.live.events import MARKER_NAME, UPDATE_NAME, read_events  # noqa: E402
from daydream.collect.live.layer_hooks import RANGE_NAME  # noqa: E402
from daydream.collect.live.loss import label_outside, set_loss_phase  # noqa: E402
from daydream.trace.trace import Trace  # noqa: E402

WAITS = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "_to_copy", "copy_")
MAIN, ENGINE, STREAM = 100, 101, 7


class Event:
    """One raw event of the profiler, as torch gives it out."""

    def __init__(self, name: str, activity: str, start: int, duration: int, **fields: Any) -> None:
        self.fields = {
            "name": name, "activity_type": activity, "start_ns": start, "duration_ns": duration,
            "device_resource_id": MAIN, "start_thread_id": 1, "device_index": 0, "correlation_id": 0,
            "linked_correlation_id": 0, "sequence_nr": -1, "fwd_thread_id": 0, "dtypes": [], "shapes": [],
            "structured_input_shapes": [], "metadata_json": "", **fields,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name not in self.fields:
            raise AttributeError(name)
        return lambda: self.fields[name]


def device_step() -> list[Event]:
    """Return forward, backward on a thread of its own, and an update of two parameters: a kernel each."""
    events = [
        Event(RANGE_NAME.format(0), "cpu_op", 0, 100),
        Event(RANGE_NAME.format(1), "cpu_op", 10, 40),
        Event("Optimizer.step#SGD.step", "user_annotation", 300, 100),
    ]
    parts: list[tuple[str, int, int, dict[str, Any]]] = [
        ("aten::linear", 12, MAIN, {"sequence_nr": 5}),
        ("aten::relu", 60, MAIN, {"sequence_nr": 6}),
        (
            "autograd::engine::evaluate_function: ReluBackward0",
            200,
            ENGINE,
            {"sequence_nr": 6, "fwd_thread_id": 1},
        ),
        (
            "autograd::engine::evaluate_function: AddmmBackward0",
            250,
            ENGINE,
            {"sequence_nr": 5, "fwd_thread_id": 1},
        ),
        ("aten::add_", 310, MAIN, {"shape": [8, 4]}),
        ("aten::add_", 350, MAIN, {"shape": [8]}),
    ]
    for number, (name, start, thread, fields) in enumerate(parts, 1):
        shape = fields.pop("shape", None)
        inputs = {"dtypes": ["float"], "structured_input_shapes": [shape]} if shape else {}
        said = {"device_resource_id": thread, "start_thread_id": thread - MAIN + 1, **fields, **inputs}
        events += [
            Event(name, "cpu_op", start, 30, correlation_id=number, **said),
            Event("cudaLaunchKernel", "cuda_runtime", start + 5, 5, device_resource_id=thread,
                  correlation_id=1000 + number, linked_correlation_id=number),
            Event(f"kernel {number}", "kernel", 1000 + 50 * number, 40, device_resource_id=STREAM,
                  correlation_id=1000 + number, linked_correlation_id=number),
        ]  # fmt: skip
    return events


def test_device_work_takes_the_layer_and_the_phase_of_its_operator() -> None:
    recording, _ = read_events(device_step(), {0: "Net", 1: "first"})
    recording.metadata.update(
        parameters=[
            {"name": "first.weight", "layer": "first", "shape": [8, 4]},
            {"name": "bias", "layer": "Net", "shape": [8]},
        ],
        optimizers=[{"name": "SGD", "groups": [{"tensors": 2, "parameters": ["first.weight", "bias"]}]}],
    )
    label_outside(recording)
    trace: Trace = derive(recording, ranges=([("step 1", 0, 2000)], "the test"))
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


class OlderEvent(Event):
    """The same, of a torch that does not say what its events are, up to 2.11 at least."""

    def __init__(self, name: str, activity: str, start: int, duration: int, **fields: Any) -> None:
        on_device = activity in {"kernel", "gpu_memcpy", "cuda_sync"}
        named = activity == "user_annotation"
        device = f"DeviceType.{'CUDA' if on_device else 'CPU'}"
        super().__init__(
            name, activity, start, duration, device_type=device, is_user_annotation=named, **fields
        )
        del self.fields["activity_type"]


def test_a_torch_that_names_no_activities_has_its_waits_told_from_its_kernels() -> None:
    recording, _ = read_events(
        [
            OlderEvent("aten::item", "cpu_op", 0, 100, correlation_id=1),
            OlderEvent("cudaMemcpyAsync", "cuda_runtime", 5, 5, correlation_id=1001, linked_correlation_id=1),
            OlderEvent("cudaStreamSynchronize", "cuda_runtime", 12, 80, correlation_id=1002),
            OlderEvent("INVALID", "cuda_runtime", 93, 2, correlation_id=1003),
            OlderEvent("a kernel", "kernel", 0, 80, device_resource_id=STREAM),
            OlderEvent("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 81, 1, device_resource_id=STREAM),
            OlderEvent("Stream Sync", "cuda_sync", 13, 78, device_resource_id=STREAM, correlation_id=1002),
            OlderEvent("Context Sync", "cuda_sync", 99, 1, device_resource_id=-1, correlation_id=1004),
            OlderEvent("Event Sync", "cuda_sync", 99, 1, device_resource_id=-1, correlation_id=1005),
            OlderEvent("Stream Wait Event", "cuda_sync", 99, 1, device_resource_id=8, correlation_id=1006),
        ],
        {},
    )

    kinds = {name: recording.texts_of("kind", rows) for name, rows in _rows_by_name(recording).items()}
    assert kinds == {
        "aten::item": ["operator"], "cudaMemcpyAsync": ["runtime"], "cudaStreamSynchronize": ["runtime"],
        "INVALID": ["runtime"], "a kernel": ["kernel"], "Memcpy DtoH (Device -> Pinned)": ["memcpy"],
        "Stream Sync": ["sync"], "Context Sync": ["sync"], "Event Sync": ["sync"],
        "Stream Wait Event": ["sync"],
    }  # fmt: skip


def _rows_by_name(recording: Recording) -> dict[str | None, list[int]]:
    rows: dict[str | None, list[int]] = {}
    for row, name in enumerate(recording.texts_of("name", np.arange(len(recording)))):
        rows.setdefault(name, []).append(row)
    return rows


def test_the_update_in_which_a_recording_ends_is_an_update() -> None:
    """Its own range is written when it ends, which is behind the recording's end; torch 2.13 writes it."""
    closed = [one for one in device_step() if not one.name().startswith("Optimizer.step")]
    update = Event(UPDATE_NAME.format("SGD"), "cpu_op", 302, 1, correlation_id=77)
    marker = Event(MARKER_NAME.format(3), "cpu_op", 400, 1, correlation_id=78)
    recording, markers = read_events([*closed, update, marker], {0: "Net", 1: "first"})
    trace = derive(recording, ranges=([("step 1", 0, 400)], "the test"))

    (row,) = trace.is_kind("annotation").nonzero()[0]
    assert markers == [(3, 400)]
    assert (trace.values("name", [row]), trace["start_ns"][row], trace["duration_ns"][row]) == (
        ["Optimizer.step#SGD.step"], 302, 98,
    )  # fmt: skip
    kernels = trace.is_kind("kernel").nonzero()[0]
    assert trace.values("phase", kernels) == ["forward"] * 2 + ["backward"] * 2 + ["optimizer"] * 2


def test_an_update_that_has_its_range_gets_no_other() -> None:
    update = Event(UPDATE_NAME.format("SGD"), "cpu_op", 302, 1, correlation_id=77)
    marker = Event(MARKER_NAME.format(3), "cpu_op", 399, 1, correlation_id=78)
    recording, _ = read_events([*device_step(), update, marker], {0: "Net", 1: "first"})

    assert recording.texts_of("name", np.flatnonzero(recording.is_kind("annotation"))) == [
        "Optimizer.step#SGD.step"
    ]


class Dispatched(TorchDispatchMode):
    """Notes the operators that read a value on the host or copy it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in WAITS:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def test_recording_never_waits_for_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loss = MODELS["encoder"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    callers: list[str] = []

    def wait(*_: Any, **__: Any) -> None:
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

    def iteration() -> None:
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
