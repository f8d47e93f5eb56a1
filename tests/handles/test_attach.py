"""Joining a map to a trace: which row has which identifier, and what is said of the rest."""

import json
from pathlib import Path

import numpy as np
import pytest

import daydream
from daydream import DebugHandleMap, Handle, HandleError, Trace
from daydream.cli import main
from daydream.collect.importers import join_ranks

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
