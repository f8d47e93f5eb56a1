"""Joining a map to a trace: which row has which identifier, and what is said of the rest."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from machine.programs import PROGRAMS
from shared import shared_trace

import daydream
from daydream import DebugHandleMap, Handle, HandleError, Trace
from daydream.cli import main
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
    texts = list(dict.fromkeys(names))
    count = len(names)
    given = {
        "kind": np.zeros(count, np.int32),
        "name": np.array([texts.index(name) for name in names], np.int32),
        "start_ns": np.arange(count) * 10,
        "duration_ns": np.array(durations or [10] * count),
        "stream": np.full(count, 7),
        **{name: np.array(values) for name, values in columns.items()},
    }
    return Trace(given, {"kind": ["kernel"], "name": texts}, {"notes": []})


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


EXAMPLE = Path(__file__).parents[2] / "examples" / "synthetic_gpt_gpu.json.gz"


@pytest.fixture
def imported(tmp_path, capsys):
    def run(text):
        path, output = tmp_path / "map.json", tmp_path / "t.parquet"
        path.write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["import", str(EXAMPLE), "--handles", str(path), "-o", str(output), "--json"])
        return int(ended.value.code or 0), *capsys.readouterr(), output

    return run


def test_a_map_by_name_is_joined_and_kept(imported):
    trace = daydream.load(EXAMPLE)
    kernels = trace.is_kind("kernel")
    name = trace.text("name")[int(trace["name"][kernels][0])]
    handles = daydream.DebugHandleMap({name: [daydream.Handle("aten::add", "mine")]})
    code, out, err, output = imported(handles.to_json())
    assert code == 0, err
    read = daydream.load(output)
    assert read.handles == handles
    rows = trace.is_kind("kernel") & (trace["name"] == trace.code("name", name))
    assert (read["handle"] >= 0).tolist() == rows.tolist()
    assert any("have debug handles" in note for note in json.loads(out)["notes"])


@pytest.mark.parametrize("text", ["{}", '{"format": "daydream.handles", "version": 1, "entries": []}'])
def test_a_file_that_joins_nothing_is_one_line(imported, text):
    code, _, err, output = imported(text)
    assert code == 1
    assert "map.json" in err
    assert not output.exists()


# -- a capture beside its replay, and files of handles ---------------------------------------------------


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
