"""Chakra files: by the schema, and run from the files alone they give the simulation back, to the ns."""

import json
import sys
from collections import defaultdict

import pytest
from shared import shared_trace

import daydream
from daydream import DaydreamError, Graph, simulate
from daydream.costs.network.simulated_times import node_of
from daydream.report.chakra import message_class, write_chakra

proto = pytest.importorskip("google.protobuf.proto", reason="needs the extra `chakra`")


def read(path):
    """Return the metadata and the nodes of a file; attributes stand beside the fields."""
    messages = []
    with path.open("rb") as file:
        kind = message_class("GlobalMetadata")
        while (message := proto.parse_length_prefixed(kind, file)) is not None:
            messages.append(_plain(message))
            kind = message_class("Node")
    return messages[0], messages[1:]


def _plain(message):
    found = {
        field.name: list(value) if field.is_repeated else value
        for field, value in message.ListFields()
        if field.name != "attr"
    }
    for attribute in message.attr:
        which = attribute.WhichOneof("value")
        value = getattr(attribute, which)
        assert attribute.name not in found, attribute.name
        found[attribute.name] = list(value.values) if which.endswith("_list") else value
    return found


def run(ranks):
    """Return (start, end) in ns of each (rank, node), by the files alone: data_deps and their attributes."""
    nodes = {(rank, node["id"]): node for rank, given in enumerate(ranks) for node in given}
    members = defaultdict(list)
    for key, node in nodes.items():
        if "collective_id" in node:
            members[node["collective_id"]].append(key)
    ready = {}
    times = {}
    waiting = list(nodes)
    while waiting:
        left = []
        for key in waiting:
            node, rank = nodes[key], key[0]
            after = [(rank, each) for each in node.get("data_deps", [])]
            if key not in ready and all(each in times for each in after):
                latencies = node.get("dep_latency_ns", [0] * len(after))
                starts = node.get("dep_from_start", [False] * len(after))
                came = [
                    times[each][0 if begins else 1] + latency
                    for each, latency, begins in zip(after, latencies, starts, strict=True)
                ]
                ready[key] = max([node.get("release_ns", 0), *came])
            peers = members[node["collective_id"]] if node.get("waits_for_peers") else [key]
            if key in ready and all(each in ready for each in peers):
                begin = max(ready[each] for each in peers)
                times[key] = begin, begin + node["duration_ns"]
            else:
                left.append(key)
        assert len(left) < len(waiting), "the nodes wait for each other"
        waiting = left
    return times


# Chakra files: by the schema, and run from the files alone they give the simulation back, to the ns


COMP, COMM_COLL = 4, 7


def small():
    #  thread 1  |launch a 6|gap 2|launch b 6|
    #  stream 7       |a 4|             |b 3|      link  |all-reduce 20| after a
    graph = Graph()
    first = graph.insert("launch a", kind="cpu", lane="thread 1", duration_ns=6, gap_ns=2)
    graph.insert("launch b", kind="cpu", lane="thread 1", duration_ns=6)
    a = graph.insert("a", kind="kernel", lane="stream 7", duration_ns=4, after=[first])
    graph.insert(
        "all-reduce",
        kind="collective",
        lane="link",
        duration_ns=20,
        after=[a],
        collective="all_reduce",
        bytes=4096,
    )
    graph.insert("b", kind="kernel", lane="stream 7", duration_ns=3, after=[a])
    return graph


def written(timeline, folder):
    """Return the nodes of each rank's file."""
    done = write_chakra(folder / "job.et", timeline)
    return [read(file)[1] for file in done.files if file.suffix == ".et"]


def test_a_task_is_a_node_and_the_time_behind_it_another(tmp_path):
    (nodes,) = written(simulate(small()), tmp_path)
    named = {node["name"]: node for node in nodes}
    assert sorted(named) == ["a", "all-reduce", "b", "launch a", "launch b", "untraced time"]
    assert named["untraced time"]["data_deps"] == [named["launch a"]["id"]]
    assert named["launch b"]["data_deps"] == [named["untraced time"]["id"]]
    assert [named[name]["is_cpu_op"] for name in ("launch a", "untraced time", "a")] == [True, True, False]
    assert named["a"]["type"] == COMP
    reduce = named["all-reduce"]
    assert (reduce["type"], reduce.get("comm_type"), reduce["comm_size"]) == (COMM_COLL, 0, 4096)
    assert reduce["data_deps"] == [named["a"]["id"]]


def test_a_file_is_as_the_schema_has_it_byte_by_byte(tmp_path):
    """Field numbers and types of MLCommons' `et_def.proto`, written out by hand."""
    graph = Graph()
    graph.insert("a", kind="kernel", lane="s", duration_ns=1_500)
    done = write_chakra(tmp_path / "job.et", simulate(graph))

    def text(field, value):  # field << 3 | 2, length, bytes
        return bytes([field << 3 | 2, len(value)]) + value

    def attribute(field, name, value):  # `attr`: name is field 1
        return text(field, text(1, name) + value)

    size = b"\x48\xdc\x0b"  # `int64_val`, field 9: 9 << 3; 1500 is 0x5c | 0x80, 0x0b
    head = text(1, b"0.0.4") + attribute(2, b"generator", b"\xea\x01\x08daydream")  # field 29: 0xea 0x01
    head += attribute(2, b"makespan_ns", size)
    node = b"\x08" + bytes([node_of(0)]) + text(2, b"a") + b"\x18\x04"  # id, name, COMP_NODE
    node += b"\x38\x02"  # 1.5 us are 2; they start at 0, which is not written
    node += attribute(10, b"is_cpu_op", b"\xd8\x01\x00")  # `bool_val`, field 27
    node += attribute(10, b"lane", b"\xea\x01\x01s") + attribute(10, b"kind", b"\xea\x01\x06kernel")
    node += attribute(10, b"start_ns", b"\x48\x00") + attribute(10, b"duration_ns", size)
    assert done.files[0].read_bytes() == bytes([len(head)]) + head + bytes([len(node)]) + node


def test_without_protobuf_it_says_what_to_install(tmp_path, monkeypatch):
    message_class.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(DaydreamError, match=r"pip install -e '\.\[chakra\]'"):
        write_chakra(tmp_path / "job.et", simulate(small()))
    assert list(tmp_path.iterdir()) == []


EXAMPLES = ["examples/mlp_cpu.json.gz", "examples/synthetic_gpt_gpu.json.gz"]


@pytest.mark.parametrize("trace", EXAMPLES)
def test_a_replayed_trace_comes_back_to_the_ns(trace, tmp_path):
    assert comes_back(daydream.replay(trace).timeline, tmp_path)


def test_a_drawn_graph_comes_back_to_the_ns(tmp_path):
    timeline = simulate(small())
    comes_back(timeline, tmp_path)
    assert timeline.makespan_ns == 6 + 4 + 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "trace",
    [
        "formats/kineto_distributed/mi300_ddp_4ranks_unfused",
        "kineto/v100_dlrm_4_of_8_ranks",
        "kineto/a100_event_sync_multi_stream.json.gz",
        "kineto/a100_resnet_ddp_rank0of2.json.gz",
        "nsys/h100_pipeline_2gpu.sqlite.gz",
    ],
)
def test_public_traces_come_back_to_the_ns(trace, tmp_path):
    assert comes_back(daydream.replay(shared_trace(trace)).timeline, tmp_path)


def comes_back(timeline, tmp_path):
    done = write_chakra(tmp_path / "job.et", timeline)
    assert not any("left out" in note for note in done.notes)
    files = [read(file) for file in done.files if file.suffix == ".et"]
    nodes = [each for _, each in files]
    times = run(nodes)
    for rank, given in enumerate(nodes):
        for node in given:
            begin = node.get("start_ns", 0)
            assert times[rank, node["id"]] == (begin, begin + node["duration_ns"]), node
    assert max(end for _, end in times.values()) >= files[0][0]["makespan_ns"]
    return nodes


def test_groups_of_some_ranks_have_a_file_of_their_own(tmp_path):
    done = write_chakra(
        tmp_path / "job.et", daydream.replay(shared_trace("kineto/v100_dlrm_4_of_8_ranks")).timeline
    )
    nodes = [read(file)[1] for file in done.files if file.suffix == ".et"]
    used = {node["pg_name"] for rank in nodes for node in rank if "pg_name" in node}
    groups = [json.loads(file.read_text()) for file in done.files if file.suffix == ".json"]
    assert used == set().union(*groups)
