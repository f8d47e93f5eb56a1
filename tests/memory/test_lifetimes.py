"""Lifetimes tell the kind: steps written by hand, every allocation with the answer beside it."""

from __future__ import annotations

import numpy as np
from recordings import PARAMETER, SGD, Recording, training_step

from daydream.memory.allocations import AFTER, BEFORE, EVENT, KINDS, STEP
from daydream.memory.lifetimes import allocations
from daydream.trace.schema import PHASES

ON_GPU = {**PARAMETER, "device": "cuda:0"}


def kinds_of(held):
    """Bytes -> the set of kinds that allocations of that size have."""
    found: dict[int, set[str]] = {}
    for nbytes, kind in zip(held["bytes"].tolist(), held["kind"].tolist(), strict=True):
        found.setdefault(nbytes, set()).add(KINDS[kind])
    return found


def trained(folder, *numbers, device=-1, before=0, **metadata):
    """A trace of steps of these numbers."""
    recording = Recording(device=device, before=before)
    for number in numbers:
        training_step(recording, number)
    trace = recording.trace(folder)
    trace.metadata |= metadata
    return trace


def throughout(held):
    """Kind -> bytes of what is held all the time."""
    rows = np.flatnonzero((held["begin"] == BEFORE) & (held["end"] == AFTER))
    return {KINDS[held["kind"][row]]: held["bytes"][row] for row in rows}


def test_each_lifetime_has_its_kind(tmp_path):
    held = allocations(trained(tmp_path, 3, 4, 5))

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


def test_nothing_was_held_before_the_first_step_of_all(tmp_path):
    recording = Recording()
    for number in (0, 1):
        training_step(recording, number, state=number == 0)

    trace = recording.trace(tmp_path)
    trace.metadata |= {"parameters": [PARAMETER], "optimizers": [SGD]}
    held = allocations(trace)

    before = held["begin"] == BEFORE
    assert [KINDS[kind] for kind in held["kind"][before]] == ["parameter"]
    state = held.where(kind="optimizer_state")
    assert held["bytes"][state].tolist() == [4000]
    assert held["phase"][state].tolist() == [PHASES.index("optimizer")]


def test_parameters_and_state_come_from_the_metadata(tmp_path):
    held = allocations(trained(tmp_path, 3, 4, parameters=[PARAMETER], optimizers=[SGD]))

    rows = held.where(kind=("parameter", "optimizer_state"))
    assert held["bytes"][rows].tolist() == [4000, 4000]
    assert (held["begin"][rows] == BEFORE).all()
    assert (held["end"][rows] == AFTER).all()
    assert [text for text, row in zip(held.texts("layer"), rows, strict=True) if row] == ["a", "a"]
    gradients = np.flatnonzero(held.where(kind="gradient"))
    assert {held.parameter(row)["name"] for row in gradients} == {"a.weight"}


def test_buffers_are_held_throughout_as_the_metadata_lists_them(tmp_path):
    buffers = [{"name": "n.running_mean", "layer": "n", "device": "cuda:0", "bytes": 600},
               {"name": "n.mask", "layer": "n", "device": "cpu", "bytes": 100}]  # fmt: skip
    described = {"parameters": [ON_GPU], "optimizers": [SGD], "buffers": buffers}
    held = allocations(trained(tmp_path, 3, device=0, before=9728, **described))

    assert throughout(held) == {"parameter": 4096, "buffer": 1024, "optimizer_state": 4096, "unknown": 512}


def test_what_a_checkpoint_makes_again_is_an_activation(tmp_path):
    recording = Recording()
    for number in (3, 4):
        start = recording.now
        recording.layer("a", ("x", 512), ("block", 2048), "block", **{"Sequence number": 7})
        at = recording.now
        recording.inside("aten::mm", ("again", 2048), **{"Sequence number": 9})
        recording.inside("aten::mm", ("d", 64), "again", "d")
        recording.range("CheckpointFunctionBackward", at, kind="cpu_op", **{"Sequence number": 7})
        recording.between("x")
        recording.range(f"ProfilerStep#{number}", start)

    held = allocations(recording.trace(tmp_path))

    phases = dict(zip(held["bytes"].tolist(), held.texts("phase"), strict=True))
    assert phases[64] == "backward"
    again = (held["bytes"] == 2048) & (held["phase"] == PHASES.index("backward"))
    assert {KINDS[kind] for kind in held["kind"][again]} == {"activation"}
    assert kinds_of(held)[64] == {"temporary"}


def test_buffers_of_collectives_on_the_cpu_end_with_their_call(tmp_path):
    recording = Recording()
    for number in (3, 4):
        start = recording.now
        recording.inside("aten::mm", ("a", 512), "a")
        recording.inside("c10d::allreduce_", (f"lost {number}", 4096))
        recording.inside("aten::mm", ("b", 512), "b")
        recording.range(f"ProfilerStep#{number}", start)

    held = allocations(recording.trace(tmp_path))

    assert held.peak(0, -1)[0] == 4096
    assert held["end"][held["bytes"] == 4096].tolist() == [3 * EVENT - STEP, 8 * EVENT - STEP]
    assert "2 buffers of collectives on the CPU" in held.notes[0]


def test_sharded_parameters_count_with_the_part_of_this_rank(tmp_path):
    parameter, optimizer = {**PARAMETER, "local_bytes": 2000}, {**SGD, "local_state_bytes": 2000}
    held = allocations(trained(tmp_path, 3, parameters=[parameter], optimizers=[optimizer]))

    rows = held.where(kind=("parameter", "optimizer_state"))
    assert held["bytes"][rows].tolist() == [2000, 2000]


def test_a_count_of_steps_lies_on_the_cpu_unless_the_optimizer_is_fused(tmp_path):
    counted = {**SGD, "state_bytes": 4000 + 4}
    fused = {**counted, "groups": [{**SGD["groups"][0], "settings": {"fused": True}}]}
    bytes_of = {}
    for name, optimizer in (("plain", counted), ("fused", fused)):
        described = {"parameters": [ON_GPU], "optimizers": [optimizer]}
        held = allocations(trained(tmp_path, 3, device=0, before=2**20, **described))
        bytes_of[name] = held["bytes"][held.where(kind="optimizer_state")].tolist()
    assert bytes_of == {"plain": [4096], "fused": [4096, 512]}
