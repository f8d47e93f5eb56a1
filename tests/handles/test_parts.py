"""Fused kernels in the graph: each owner's part, and what-ifs bounded by it."""

from pathlib import Path

import numpy as np
import pytest
from handles.test_attach import kernels
from machine.programs import PROGRAMS
from shared import shared_trace

import daydream
from daydream import DebugHandleMap, GraphError, Handle, build

FUSED = DebugHandleMap(
    {
        "fused": [
            Handle("aten::add", "blocks.1.fc1", phase="forward", weight=7),
            Handle("aten::gelu", "blocks.1.fc2", phase="forward", weight=2),
            Handle("aten::mul", "blocks.1.fc2", phase="forward", weight=1),
        ]
    },
    rule="bytes",
)


def compiled():
    #  stream 7  |gemm 100|fused 200: fc1 140, fc2 40 + 20|
    trace = kernels(["gemm", "fused"], [100, 200])
    trace.columns["start_ns"] = np.array([0, 100])
    return trace.attach_handles(FUSED)


def test_a_fused_kernel_is_one_part_for_each_owner():
    tasks = build(compiled()).select(name="fused")
    assert tasks.duration_ns.tolist() == [140, 40, 20]
    assert tasks.layer.tolist() == ["blocks.1.fc1", "blocks.1.fc2", "blocks.1.fc2"]
    assert tasks.op.tolist() == ["aten::add", "aten::gelu", "aten::mul"]
    assert tasks.measured_start_ns.tolist() == [100, 240, 280]


def test_an_identifier_selects_all_parts():
    graph = build(compiled())
    assert graph.select(handle="fused").total("duration_ns") == 200
    with pytest.raises(GraphError, match="no compiled piece has the identifier 'other'"):
        graph.select(handle="other")


def fused(trace):
    """Say of every kernel that a third of it is of layer a, two thirds of b."""
    kernels = np.flatnonzero(trace.is_kind("kernel"))
    owners = (Handle("aten::add", "a", weight=1), Handle("aten::mul", "b", weight=2))
    names = dict.fromkeys(trace.values("name", kernels))
    return trace.attach_handles(DebugHandleMap(dict.fromkeys(names, owners), rule="flop"))


def replays_alike(path):
    """Check that parts of fused kernels change no step; tell whether they add up in a what-if, too."""
    whole, parted = daydream.replay(path), daydream.replay(fused(daydream.load(path)))
    assert [step.replayed_ns for step in parted.steps] == [step.replayed_ns for step in whole.steps]
    kernels = whole.graph.select(kind="kernel").where(lambda tasks: tasks.row >= 0)  # not untraced work
    parts = parted.graph.select(layer=("a", "b"), kind="kernel")
    assert int(parts.duration_ns.sum()) == int(kernels.duration_ns.sum())
    assert any("by their FLOP" in note for note in parted.graph.trace.metadata["notes"])
    halved = daydream.whatif(parted, "scale", layer="a", kind="kernel", factor=0)
    thirds = daydream.whatif(whole, "scale", kind="kernel", factor=2 / 3)
    assert halved.changed == len(kernels)
    if halved.predicted_ns is None or len(whole.graph.select(name="^untraced")):
        return True
    return halved.predicted_ns == pytest.approx(thirds.predicted_ns, rel=1e-4)


@pytest.mark.parametrize("program", ["synchronizing", "multi_stream", "graphs", "gpu_bound", "queue_full_16"])
def test_sharing_changes_no_replay(program, tmp_path):
    assert replays_alike(PROGRAMS[program]().run(steps=6).write(tmp_path / "t.json", 2, 5))


@pytest.mark.parametrize("name", ["mi300x_torch_compile_triton", "vllm_decode_graph_replay"])
def test_shares_of_public_traces_add_up_and_replay_as_before(name):
    assert replays_alike(shared_trace(f"kineto/{name}.json.gz"))


@pytest.fixture
def example():
    return Path(daydream.__file__).parents[1] / "examples" / "synthetic_gpt_gpu.json.gz"


def test_parts_of_a_kernel_are_one_kernel_and_not_fused_again(example):
    whole, parted = daydream.replay(example), daydream.replay(fused(daydream.load(example)))
    assert parted.to_json()["kernels"] == whole.to_json()["kernels"]
    assert parted.to_json()["kernels_linked"] == whole.to_json()["kernels_linked"]
    assert daydream.whatif(whole, "compile").predicted_ns is not None
    with pytest.raises(daydream.NotApplicableError, match="compiled kernels already"):
        daydream.whatif(parted, "compile")
