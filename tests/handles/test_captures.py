"""A capture beside its replay, and files of handles: made ones, Inductor's own, and public pairs."""

import json
from collections import Counter

import numpy as np
import pytest
from machine.programs import PROGRAMS
from shared import shared_trace

import daydream
from daydream.collect.captures_beside import attach_capture, read_handles
from daydream.collect.importers.kineto.blocks import launched_kernels
from daydream.errors import HandleError


def capture_of(operators, names, path):
    """Write the recording of a capture: a launch in each operator, and none of their kernels."""
    events = [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "hipStreamBeginCapture",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 1,
        },
    ]  # fmt: skip
    for at, (operator, name) in enumerate(zip(operators, names, strict=True)):
        start = 10 + 10 * at
        events += [
            {"ph": "X", "cat": "cpu_op", "name": operator, "pid": 1, "tid": 1, "ts": start, "dur": 8},
            {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "ts": start + 1,
             "dur": 2, "args": {"correlation": 1000 + at, **({"kernel": name} if name else {})}},
        ]  # fmt: skip
    end = 20 + 10 * len(operators)
    events += [
        {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "ts": end, "dur": 2,
         "args": {"correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "ran", "pid": 0, "tid": 7, "ts": end + 5, "dur": 5,
         "args": {"correlation": 7, "device": 0, "stream": 7}},
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cppCodeToPost": [1]}', "no node mapping of Inductor"),
        ('{"cppCodeToPost": {"a": "b"}}', "no node mapping of Inductor"),
        ("{", "no map of debug handles"),
    ],
)
def test_what_is_no_map_is_one_line(tmp_path, text, said):
    file = tmp_path / "map.json"
    file.write_text(text)
    with pytest.raises(HandleError, match=said):
        read_handles(file)
