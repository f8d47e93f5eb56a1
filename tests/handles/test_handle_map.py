"""The map of debug handles: its builder's rules, its shares, its JSON."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from handles.test_attach import kernels
from hypothesis import given
from hypothesis import strategies as st
from machine.programs import PROGRAMS
from shared import shared_trace

import daydream
from daydream import DebugHandleMap, DebugHandleMapBuilder, GraphError, Handle, HandleError, build

ADD, RELU = Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3)


class Node:
    """What a node of torch.fx looks like."""

    target = "aten.addmm.default"
    meta: ClassVar = {
        "nn_module_stack": {"a": ("L['self']", "GPT"), "b": ("L['self']._orig_mod.blocks[1].fc2", "Linear")},
        "stack_trace": '  File "/somewhere/model.py", line 12, in forward\n    return self.fc2(x)',
    }


def test_nodes_say_operator_layer_and_source():
    builder = DebugHandleMapBuilder(generated_identifiers=True)
    key = builder.insert(nodes=Node())
    assert builder.build()[key] == (Handle("aten::addmm", "blocks.1.fc2", "model.py(12): forward"),)


@pytest.mark.parametrize(
    ("generated", "given", "said"),
    [
        (False, {"handles": [ADD]}, "no identifier was given"),
        (True, {"handles": [ADD], "identifier": 3}, "makes its identifiers"),
        (False, {"identifier": 3}, "neither nodes nor handles"),
        (False, {"nodes": Node(), "handles": [ADD], "identifier": 3}, "both given"),
        (False, {"handles": [ADD], "identifier": 7}, "there already"),
        (False, {"handles": [ADD], "identifier": "seven"}, "another kind"),
        (False, {"handles": [ADD], "identifier": -2}, "out of range"),
        (False, {"handles": ["add"], "identifier": 8}, "a Handle was needed"),
        (False, {"nodes": [object()], "identifier": 8}, "no torch.fx.Node"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(generated, given, said):
    builder = DebugHandleMapBuilder(generated_identifiers=generated)
    if not generated:
        builder.insert(handles=ADD, identifier=7)
    before = len(builder.build())
    with pytest.raises(HandleError, match=said):
        builder.insert(**given)
    assert len(builder.build()) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"operator": ""}, "no operator"),
        ({"operator": "a", "phase": "sideways"}, "choose"),
        ({"operator": "a", "weight": -1.0}, "0 or more"),
        ({"operator": "a", "weight": float("nan")}, "0 or more"),
        ({"operator": "a\ud800"}, "UTF-8"),
    ],
)
def test_a_handle_is_checked(fields, said):
    with pytest.raises(HandleError, match=said):
        Handle(**fields)


def test_time_is_shared_by_weight_and_equally_where_one_is_unknown():
    entries = {0: [ADD, RELU], 1: [ADD, Handle("aten::mul")]}
    by_bytes = DebugHandleMap(entries, rule="bytes")
    assert by_bytes.shares(0).tolist() == [0.25, 0.75]
    assert by_bytes.shares(1).tolist() == [0.5, 0.5]
    assert DebugHandleMap(entries).shares(0).tolist() == [0.5, 0.5]


def test_a_map_comes_back_from_json_equal():
    handles = DebugHandleMap({"k:1": [ADD, RELU], "k:2": [Handle("é", phase="backward")]}, rule="flop")
    assert DebugHandleMap.from_json(handles.to_json()) == handles
    assert handles != DebugHandleMap({"k:1": [ADD, RELU]}, rule="flop")


GOOD = {"format": "daydream.handles", "version": 1, "entries": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no map"),
        ("[" * 100_000, "no map"),
        (json.dumps({**GOOD, "version": 2}), "Upgrade"),
        (json.dumps({**GOOD, "rule": "luck"}), "no map"),
        (json.dumps({**GOOD, "entries": [{"identifier": 1, "handles": [{"operator": 1}]}]}), "no map"),
        (json.dumps({**GOOD, "entries": [{"identifier": 1, "handles": [{"operator": "a"}]}] * 2}), "twice"),
        (
            json.dumps(
                {**GOOD, "entries": [{"identifier": i, "handles": [{"operator": "a"}]} for i in (1, "b")]}
            ),
            "another kind",
        ),
    ],
)
def test_json_that_is_no_map_is_refused_in_one_line(text, said):
    with pytest.raises(HandleError, match=said) as caught:
        DebugHandleMap.from_json(text)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60))
def test_no_bytes_are_more_than_one_line(text):
    with pytest.raises(HandleError):
        DebugHandleMap.from_json(text)


# -- fused kernels in the graph --------------------------------------------------------------------------

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
