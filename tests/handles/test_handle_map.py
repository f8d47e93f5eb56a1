"""The map of debug handles: its builder's rules, its shares, its JSON."""

import json
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from graph.small_traces import call, kernel, kineto, op, trace, write
from hypothesis import given
from hypothesis import strategies as st
from machine.programs import PROGRAMS
from shared import shared_trace

import daydream
from daydream import DebugHandleMap, DebugHandleMapBuilder, GraphError, Handle, HandleError, build
from daydream.collect.captures_beside import attach_capture, read_handles
from daydream.collect.importers import join_ranks
from daydream.collect.importers.kineto.blocks import launched_kernels

MAP = DebugHandleMap(
    {
        "fused_a:1": [Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3)],
        "fused_a:2": [Handle("aten::mul", "head", phase="backward")],
    },
    rule="bytes",
)


def kernels(names, durations=None, **columns):
    """A trace of kernels, one after the other, each of 10 ns."""
    return trace(
        (kernel(name, at / 100, at / 100 + ns / 1000, **{key: each[at] for key, each in columns.items()})
         for at, (name, ns) in enumerate(zip(names, durations or [10] * len(names), strict=True))),
        notes=[],
    )  # fmt: skip


def test_calls_of_one_name_have_their_identifiers_in_turn():
    trace = kernels(["fused_a", "gemm", "fused_a", "fused_a", "fused_a"])
    assert trace.attach_handles(MAP) is trace
    assert trace["handle"].tolist() == [0, -1, 1, 0, 1]
    assert trace.values("layer") == ["blocks.1", None, "head", "blocks.1", "head"]
    assert trace.values("op") == ["aten::relu", None, "aten::mul", "aten::relu", "aten::mul"]
    assert trace.values("phase") == [None, None, "backward", None, "backward"]
    assert trace.values("name", [0]) == ["fused_a"]
    assert trace.metadata["notes"][:1] == [
        "4 of 5 rows, 80.0% of their time, have debug handles (joined by name; 2 of 2 identifiers were met)."
    ]


def test_by_graph_node_id():
    nodes = DebugHandleMap({5: [Handle("aten::mm", "a")], 9: [Handle("aten::mm", "b")]})
    trace = kernels(["x", "y", "z"], graph_id=[1, 1, 1], graph_node=[9, -1, 5])
    assert trace.attach_handles(nodes, "graph node id")["handle"].tolist() == [1, -1, 0]
    two = kernels(["x", "y"], graph_id=[1, 2], graph_node=[9, 9])
    with pytest.raises(HandleError, match="by graph node id"):
        two.attach_handles(nodes, "graph node id")  # which graph's node 9 it is cannot be told
    named = DebugHandleMap({"1:9": [Handle("aten::mm", "a")], "2:9": [Handle("aten::mm", "b")]})
    assert two.attach_handles(named, "graph node id").values("layer") == ["a", "b"]


def test_what_cannot_be_joined_is_refused():
    trace = kernels(["x"])
    with pytest.raises(HandleError, match="no row has a graph node id"):
        trace.attach_handles(MAP, "graph node id")
    with pytest.raises(HandleError, match="unknown way"):
        trace.attach_handles(MAP, "luck")
    with pytest.raises(HandleError, match="whole number of rounds"):
        trace.attach_handles(MAP, "order")
    with pytest.raises(HandleError, match="out of range"):
        trace.set_handles(MAP, np.array([2]))
    trace.set_handles(MAP, np.array([1]))
    with pytest.raises(HandleError, match="already"):
        trace.set_handles(MAP, np.array([1]))


def ranks(*maps):
    """Two kernels on each rank, with the map of each."""
    traces = []
    for rank, handles in enumerate(maps):
        trace = kernels(["x", "y"])
        trace.metadata.update(
            rank=rank, steps=[], step_source="none", phases_assumed=0.0, origin_ns=0, vendor="cuda"
        )
        traces.append(trace if handles is None else trace.attach_handles(handles, "order"))
    return join_ranks(traces)


def test_identifiers_of_ranks_that_compiled_differently_tell_the_rank():
    other = DebugHandleMap({4: [Handle("aten::mm", "head")], 7: [Handle("aten::mm", "tail")]})
    joined = ranks(MAP, other)
    assert joined.handles.identifiers == ["0/fused_a:1", "0/fused_a:2", "1/4", "1/7"]
    assert joined["handle"].tolist() == [0, 1, 2, 3]
    assert joined.handles["1/7"] == other[7]
    assert joined.handles.rule == "equal"  # of "bytes" and "equal"
    assert joined.values("layer") == ["blocks.1", "head", "head", "tail"]


# -- a capture beside its replay, and files of handles ---------------------------------------------------


def capture_of(operators, names, path):
    """Write the recording of a capture: a launch in each operator, and none of their kernels."""
    made, end = [call("hipStreamBeginCapture", 1, 2)], 20 + 10 * len(operators)
    for number, (operator, name) in enumerate(zip(operators, names, strict=True), 1):
        at, named = 10 * number, {"kernel": name} if name else {}
        made += [op(operator, at, at + 8), call("hipLaunchKernel", at + 1, at + 3, 1000 + number, **named)]
    made += [call("hipLaunchKernel", end, end + 2, 7), kernel("ran", end + 5, end + 10, 7)]
    return write(path, kineto(made))


@pytest.fixture
def replays(tmp_path):
    """Replays of one graph by the machine model, and the names of its kernels in order."""
    trace = daydream.load(PROGRAMS["graphs"]().run(steps=6).write(tmp_path / "replays.json", 2, 5))
    kernels = np.flatnonzero(trace.is_kind("kernel"))
    launch = Counter(trace["parent"][kernels].tolist()).most_common(1)[0][0]
    mine = kernels[trace["parent"][kernels] == launch]
    return trace, trace.values("name", mine[np.argsort(trace["start_ns"][mine])].tolist())


@pytest.mark.parametrize("named", [True, False])
def test_every_kernel_of_a_replay_is_of_the_launch_captured(replays, tmp_path, named):
    trace, names = replays
    operators = [f"aten::op{at}" for at in range(len(names))]
    file = capture_of(operators, names if named else [""] * len(names), tmp_path / "capture.json")
    launched = launched_kernels(file)
    assert len(launched) == (len(names) if named else 0)
    attach_capture(trace, daydream.load(file), launched)
    kernels = np.flatnonzero(trace.is_kind("kernel"))
    for launch in np.unique(trace["parent"][kernels]).tolist():
        mine = kernels[trace["parent"][kernels] == launch]
        if len(mine) == len(names):
            assert trace.values("op", mine[np.argsort(trace["start_ns"][mine])].tolist()) == operators
    said = "kernel names of the capture are those" if named else "matched by their number and order alone"
    assert said in trace.metadata["notes"][-1]
    assert daydream.replay(trace).error == 0


def test_a_capture_of_another_graph_is_refused(replays, tmp_path):
    trace, names = replays
    shorter = capture_of(["aten::mm"] * (len(names) - 1), names[1:], tmp_path / "shorter.json")
    other = capture_of(["aten::mm"] * len(names), ["another kernel"] * len(names), tmp_path / "other.json")
    for file in (shorter, other):
        with pytest.raises(HandleError, match="do not fit"):
            attach_capture(trace, daydream.load(file), launched_kernels(file))
    with pytest.raises(HandleError, match="without a kernel of their own"):
        attach_capture(trace, trace, {})
    with pytest.raises(HandleError, match="no kernels of a graph launch"):
        attach_capture(daydream.load(shorter), trace, {})


@pytest.mark.parametrize(
    ("capture", "replay", "kernels"),
    [
        ("vllm_mi300x_capture_32_FULL", "vllm_mi300x_replay_decode", 421),
        ("sglang_mi300x_capture_bs32", "sglang_mi300x_replay_decode", 544),
    ],
)
def test_public_captures_name_every_kernel_of_their_replays(capture, replay, kernels):
    file = shared_trace(f"formats/kineto_graphs/{capture}.json.gz")
    trace = daydream.load(shared_trace(f"formats/kineto_graphs/{replay}.json.gz"))
    attach_capture(trace, daydream.load(file), launched_kernels(file))
    assert f"{kernels} of {kernels} kernel names" in trace.metadata["notes"][-1]
    assert int((trace["handle"] >= 0).sum()) == kernels


def test_node_mappings_of_inductor_give_operators(tmp_path):
    file = tmp_path / "inductor_provenance_tracking_node_mappings.json"
    nodes = ["mul_2", "add_tensor_1", "all_gather_into_tensor_3", "_to_copy"]
    file.write_text(json.dumps({"cppCodeToPost": {"triton_poi_fused_0:1": nodes}, "version": 2.0}))
    found = read_handles(file)
    assert [handle.operator for handle in found["triton_poi_fused_0:1"]] == [
        "aten::mul", "aten::add", "aten::all_gather_into_tensor", "aten::_to_copy",
    ]  # fmt: skip


# The map of debug handles: its builder's rules, its shares, its JSON


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
