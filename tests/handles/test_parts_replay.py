"""Fused kernels in parts: no replay changes, and the parts add up to the kernels."""

from pathlib import Path

import numpy as np
import pytest
from machine.programs import PROGRAMS
from shared import shared_trace

import daydream
from daydream import DebugHandleMap, Handle


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


def test_what_is_no_identifier_gets_the_nearest_one():
    path = Path(daydream.__file__).parents[1] / "examples" / "synthetic_gpt_gpu.json.gz"
    trace = daydream.load(path)
    with pytest.raises(daydream.GraphError, match="has no debug handles"):
        daydream.build(trace).select(handle="x")
    graph = daydream.build(fused(trace))
    known = next(iter(graph.trace.handles))
    with pytest.raises(daydream.GraphError, match="Did you mean"):
        graph.select(handle=known + "x")


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
