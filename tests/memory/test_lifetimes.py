"""Lifetimes tell the kind: steps written by hand, every allocation with the answer beside it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import daydream
from daydream.errors import TraceError
from daydream.memory.allocations import AFTER, BEFORE, KINDS
from daydream.memory.lifetimes import allocations

DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER = range(5)


class Recording:
    """Kineto's rows, written in order; every call takes 10 us."""

    def __init__(self, *, device=-1, totals=False):
        self.rows, self.now, self.device, self.totals = [], 0, device, totals
        self.held, self.address = {}, 4096

    def inside(self, name, *changes, kind="cpu_op", **args):
        """A row of 10 us around changes: `("x", 512)` allocates what is called x, `"x"` frees it."""
        self.rows.append(
            {
                "ph": "X",
                "cat": kind,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": self.now,
                "dur": 10,
                "args": args,
            }
        )
        for place, change in enumerate(changes, 1):
            self.change(change, self.now + place)
        self.now += 10

    def between(self, *changes):
        """Changes that no row encloses, as Python makes them."""
        for change in changes:
            self.change(change, self.now + 1)
            self.now += 2

    def change(self, change, at):
        if isinstance(change, str):
            address, nbytes = self.held.pop(change)
            nbytes = -nbytes
        else:
            name, nbytes = change
            self.address += 4096
            address = self.address
            self.held[name] = (address, nbytes)
        args = {"Bytes": nbytes, "Addr": address, "Device Type": int(self.device >= 0)}
        args["Device Id"] = self.device
        if self.totals:
            args["Total Allocated"] = self.totals + sum(size for _, size in self.held.values())
        self.rows.append({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args})

    def step(self, number, start):
        self.rows.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
             "ts": start, "dur": self.now - start}
        )  # fmt: skip

    def trace(self, tmp_path):
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"traceEvents": self.rows}))
        return daydream.load(path)


def layer(name, recording, *changes):
    """A call of a layer whose operator makes the changes."""
    at = recording.now
    recording.inside("aten::mm", *changes)
    recording.rows.append(
        {"ph": "X", "cat": "user_annotation", "name": f"nn.Module: {name}", "pid": 1, "tid": 1, "ts": at,
         "dur": 10}
    )  # fmt: skip


def one_step(recording, number, *, state=False):
    start = recording.now
    recording.inside("Optimizer.zero_grad#SGD.zero_grad", *(["g"] if "g" in recording.held else []),
                     kind="user_annotation")  # fmt: skip
    recording.inside("aten::randn", ("in", 64))
    layer("a", recording, ("act", 2048), ("tmp", 100), "tmp")
    recording.between(*(["out"] if "out" in recording.held else []))  # that of the step before, a variable
    recording.inside("aten::mse_loss", ("out", 8))
    recording.inside("autograd::engine::evaluate_function: MmBackward0", ("g", 4000), ("d", 2000), "act", "d")
    at = recording.now
    changes = [("m", 4000)] if state else []
    recording.inside("aten::add_", *changes, ("u", 30), "u")
    recording.rows.append(
        {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "pid": 1, "tid": 1, "ts": at,
         "dur": 10}
    )  # fmt: skip
    recording.between("in")
    recording.step(number, start)


def kinds_of(held):
    """Bytes -> the set of kinds that allocations of that size have."""
    found: dict[int, set[str]] = {}
    for nbytes, kind in zip(held["bytes"].tolist(), held["kind"].tolist(), strict=True):
        found.setdefault(nbytes, set()).add(KINDS[kind])
    return found


PARAMETER = {"name": "a.weight", "layer": "a", "shape": [1000], "dtype": "float32", "device": "cpu",
             "requires_grad": True, "gradient_bytes": 4000}  # fmt: skip
SGD = {"name": "SGD", "state_bytes": 4000,
       "groups": [{"settings": {}, "tensors": 1, "elements": 1000, "parameters": ["a.weight"]}]}  # fmt: skip


def test_each_lifetime_has_its_kind(tmp_path):
    recording = Recording()
    for number in (3, 4, 5):
        one_step(recording, number)

    held = allocations(recording.trace(tmp_path))

    assert kinds_of(held) == {
        64: {"input"},
        2048: {"activation"},
        100: {"temporary"},  # of forward
        8: {"activation"},  # the loss: backward starts from it
        4000: {"gradient"},
        2000: {"temporary"},  # of backward
        30: {"temporary"},  # of the optimizer
    }
    assert set(held.texts("phase")) <= {None, "forward", "loss", "backward", "optimizer"}


def test_what_the_first_step_holds_from_the_one_before_is_that_of_the_second(tmp_path):
    recording = Recording()
    for number in (3, 4, 5):
        one_step(recording, number)

    held = allocations(recording.trace(tmp_path))

    gradients = held.where(kind="gradient") & (held["begin"] == BEFORE)
    losses = (held["bytes"] == 8) & (held["begin"] == BEFORE)
    assert gradients.sum() == losses.sum() == 1
    assert held["end"][gradients] < held["end"][losses]  # zero_grad clears before the loss is made anew
    assert held.peak(0, -1)[0] == 64 + 2048 + 8 + 4000 + 2000  # in backward: no gradient of before
    steps = []
    for step in (0, 1, 2):
        place = held["begin"][(held["bytes"] == 2048) & (held["step"] == step)][0]
        steps.append(int(held["bytes"][held.held_at(place)].sum()))
    assert steps == [64 + 2048 + 8] * 3  # 8: the loss of the step before


def test_nothing_was_held_before_the_first_step_of_all(tmp_path):
    recording = Recording()
    for number in (0, 1):
        one_step(recording, number, state=number == 0)

    trace = recording.trace(tmp_path)
    trace.metadata |= {"parameters": [PARAMETER], "optimizers": [SGD]}
    held = allocations(trace)

    before = held["begin"] == BEFORE
    assert [KINDS[kind] for kind in held["kind"][before]] == ["parameter"]
    state = held.where(kind="optimizer_state")
    assert held["bytes"][state].tolist() == [4000]
    assert held["phase"][state].tolist() == [OPTIMIZER]


def test_parameters_and_state_come_from_the_metadata(tmp_path):
    recording = Recording()
    for number in (3, 4):
        one_step(recording, number)
    trace = recording.trace(tmp_path)
    trace.metadata |= {"parameters": [PARAMETER], "optimizers": [SGD]}

    held = allocations(trace)

    rows = held.where(kind=("parameter", "optimizer_state"))
    assert held["bytes"][rows].tolist() == [4000, 4000]
    assert (held["begin"][rows] == BEFORE).all()
    assert (held["end"][rows] == AFTER).all()
    assert [text for text, row in zip(held.texts("layer"), rows, strict=True) if row] == ["a", "a"]
    gradients = np.flatnonzero(held.where(kind="gradient"))
    assert {held.parameter(row)["name"] for row in gradients} == {"a.weight"}


def test_totals_of_a_gpu_are_split_by_the_metadata(tmp_path):
    recording = Recording(device=0, totals=10_000 // 512 * 512)
    one_step(recording, 3)
    trace = recording.trace(tmp_path)
    on_gpu = {**PARAMETER, "device": "cuda:0"}
    trace.metadata |= {"parameters": [on_gpu], "optimizers": [SGD]}

    held = allocations(trace)

    throughout = (held["begin"] == BEFORE) & (held["end"] == AFTER)
    split = {KINDS[held["kind"][row]]: held["bytes"][row] for row in np.flatnonzero(throughout)}
    assert split == {"parameter": 4096, "optimizer_state": 4096, "unknown": 9728 - 8192}
    assert "1,536 bytes on GPU 0 were held before the recording and stay" in held.notes[-1]


def test_gradients_that_are_never_made_are_held_throughout(tmp_path):
    recording = Recording()
    for number in (3, 4):
        start = recording.now
        layer("a", recording, ("act", 2048))
        recording.inside("autograd::engine::evaluate_function: MmBackward0", ("d", 4000), "act", "d")
        recording.step(number, start)
    trace = recording.trace(tmp_path)
    trace.metadata["parameters"] = [PARAMETER]

    held = allocations(trace)

    gradient = held.where(kind="gradient")
    assert held["bytes"][gradient].tolist() == [4000]
    assert (held["begin"][gradient] == BEFORE).all()


def test_a_trace_without_memory_is_refused(tmp_path):
    recording = Recording()
    recording.inside("aten::mm")

    with pytest.raises(TraceError, match="profile_memory=True"):
        allocations(recording.trace(tmp_path))
