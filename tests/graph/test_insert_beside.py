"""Bulk insertion: one new task beside each of a selection, with its launch."""

import numpy as np
import pytest
from small_graphs import at, kernels, lane, launched, named, names, starts, thread
from small_traces import call, kernel, trace
from small_traces import starts as starts_us

from daydream import Graph, GraphError, NoMatchError, build, simulate


def test_work_behind_each_kernel_brings_its_launch_behind_each_launch():
    #  thread 1  |launch a 6|launch 6|launch b 6|launch 6|
    #  stream 7     +4 |a 20         |1|q 5     |b 20 |1|q 5|     q has no start-up cost of its own here
    graph = launched("a 20, b 20")
    new = graph.insert_after(kernels(graph), "q", duration_ns=5)

    assert lane(graph, "thread 1") == "begin, launch a, launch, launch b, launch"
    assert lane(graph, "stream 7") == "a, q, b, q"
    assert names(new) == "q, q"
    timeline = simulate(graph)
    assert timeline.start_ns[timeline.column("kind") == "kernel"].tolist() == [
        4, 4 + 20 + 1, 4 + 20 + 1 + 5, 4 + 20 + 1 + 5 + 20 + 1,
    ]  # fmt: skip
    assert graph.lint() == []


def test_work_before_each_kernel_brings_its_launch_before_each_launch():
    #  thread 1  |launch 6|launch a 6|
    #  stream 7     +4 |q 5|  +4  |a 20|
    graph = launched("a 20, b 20")
    graph.insert_before(kernels(graph), "q", duration_ns=5)

    assert lane(graph, "thread 1") == "begin, launch, launch a, launch, launch b"
    assert lane(graph, "stream 7") == "q, a, q, b"
    assert starts(graph)["launch b"] == 3 * 6
    assert graph.lint() == []


def test_durations_and_columns_are_one_or_one_for_each():
    graph = launched("a 20, b 20")
    graph.columns["step"][:] = [0, 0, 0, 1, 1]
    new = graph.insert_after(
        kernels(graph), "q", duration_ns=[3.5, 8], bytes=[100, 200], dtype="bfloat16", layer=["x", None]
    )

    assert new.duration_ns.tolist() == [4, 8]
    assert new.bytes.tolist() == [100, 200]
    assert new.dtype.tolist() == ["bfloat16", "bfloat16"]
    assert new.layer.tolist() == ["x", None]
    assert new.step.tolist() == new.launches().step.tolist() == [0, 1]
    assert names(kernels(graph).where(dtype="bfloat16")) == "q, q"
    assert graph.select(name="^[ab]$").bytes.tolist() == [-1, -1]


def test_on_another_lane_it_follows_its_neighbour_and_delays_nothing():
    #  thread 1  |launch a 6|launch 6|launch b 6|launch 6|
    #  stream 7     +4 |a 20         |1|b 20          |
    #  copies                        |off 50 |               from 24, then from 74
    graph = launched("a 20, b 20")
    graph.insert_after(kernels(graph), "off", kind="memcpy", lane="copies", duration_ns=50)

    timeline = simulate(graph)
    chosen = timeline.column("name") == "off"
    assert timeline.start_ns[chosen].tolist() == [24, 74]
    assert starts(graph)["b"] == 25
    assert [each.on_device for each in graph.lanes] == [False, True, True]


def test_work_before_a_task_on_another_lane_holds_it():
    #  copies    launched at 6, starts at 10 |fetch 50|   then b
    graph = launched("a 20, b 20")
    graph.insert_before(
        named(graph, "b"), "fetch", kind="memcpy", lane="copies", duration_ns=50,
    )  # fmt: skip
    assert lane(graph, "thread 1") == "begin, launch a, launch, launch b"
    assert starts(graph)["fetch"] == 6 + 4
    assert starts(graph)["b"] == 6 + 4 + 50


def test_beside_cpu_tasks_come_cpu_tasks_or_launched_work():
    graph = thread("a 5, b 5")
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = 4, 6
    graph.insert_after(graph.select(name="a"), "x", duration_ns=2)
    graph.insert_after(graph.select(name="b"), "k", kind="kernel", lane="stream 7", duration_ns=2)

    assert lane(graph, "thread 1") == "a, x, b, launch"
    assert starts(graph) == at("a 0, x 5, b 7, launch 12, k 16")


def test_cpu_work_beside_device_work_runs_where_that_is_launched():
    graph = launched("a 20, b 20")
    graph.insert_before(kernels(graph), "check", kind="cpu", duration_ns=3)
    graph.insert_after(kernels(graph), "log", kind="cpu", duration_ns=4)

    assert lane(graph, "thread 1") == "begin, check, launch a, log, check, launch b, log"  # fmt: skip
    assert starts(graph)["launch b"] == 3 + 6 + 4 + 3


def test_beside_a_node_of_a_device_graph_it_is_one_more_node():
    graph = launched("a 20, b 20")
    both = kernels(graph)
    both.group_by("kind").share_launch("cudaGraphLaunch")
    graph.insert_after(both, "q", duration_ns=5)

    assert lane(graph, "thread 1") == "begin, cudaGraphLaunch"
    assert lane(graph, "stream 7") == "a, q, b, q"
    assert len(np.unique(kernels(graph).launch)) == 1


def test_behind_a_blocking_copy_the_launch_waits_for_its_return():
    #  thread 1  |copy 5, blocked until 110, return|launch|after|
    recorded = trace(
        call("cudaMemcpy", 0, 120, 1),
        kernel("Memcpy DtoH (Device -> Pageable)", 10, 110, 1, kind="memcpy"),
        call("after", 120, 125),
    )
    graph = build(recorded)
    graph.insert_after(graph.select(kind="memcpy"), "q", kind="kernel", duration_ns=1_000)

    assert lane(graph, "thread 1") == "cudaMemcpy, cudaMemcpy, launch, after"
    assert starts_us(graph)["launch"] == 120
    assert graph.lint() == []


@pytest.mark.parametrize("behind", [True, False])
def test_there_is_room_however_close_the_neighbours_are(behind):
    graph = thread("a 1, b 1, c 1")
    graph.columns["order"][:] = [5, 5, 6]
    insert = graph.insert_after if behind else graph.insert_before
    for name in "xyz":
        insert(graph.select(name="[abc]"), name, duration_ns=1)

    expected = "azyxbzyxczyx" if behind else "xyzaxyzbxyzc"
    assert lane(graph, "thread 1") == ", ".join(expected)


def test_of_several_ranks_each_has_its_own_lane():
    graph = Graph()
    for rank in range(2):
        number = graph.lane_id(f"rank {rank} stream 7", on_device=True, rank=rank)
        graph.insert("a", kind="kernel", lane=number, duration_ns=10)
    graph.insert_after(kernels(graph), "reduce", kind="collective", lane="link", duration_ns=5)

    assert [each.name for each in graph.lanes[2:]] == ["rank 0 link", "rank 1 link"]
    assert graph.select(lane="link").rank.tolist() == [0, 1]
    assert len(graph.select(lane="stream 7")) == 2
    graph.schedule("link", key="duration_ns")
    assert sorted(graph.scheduled) == [2, 3]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"duration_ns": [1, 2, 3]}, "duration_ns: 3 values for 2 tasks"),
        ({"duration_ns": -1}, "cannot be negative"),
        ({"duration_ns": float("nan")}, "finite"),
        ({"duration_ns": "long"}, "a number of nanoseconds, not 'long'"),
        ({"duration_ns": 1, "kind": "gpu"}, "unknown kind 'gpu'"),
        ({"duration_ns": 1, "lane": "thread 1"}, "'thread 1' is a CPU thread"),
        ({"duration_ns": 1, "colour": "red"}, "cannot give tasks 'colour'"),
        ({"duration_ns": 1, "phase": "fwd"}, "unknown phase 'fwd'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(how, message):
    graph = launched("a 20, b 20")
    before = starts(graph)
    with pytest.raises(GraphError, match=message):
        graph.insert_after(kernels(graph), "q", **how)
    assert starts(graph) == before


def test_nothing_to_insert_beside_is_said():
    graph = thread("a 5")
    with pytest.raises(NoMatchError, match="no task matched kind='kernel'"):
        graph.insert_after(kernels(graph), "q", duration_ns=1)
    with pytest.raises(GraphError, match="needs its lane"):
        graph.insert_after(graph.select(), "q", kind="kernel", duration_ns=1)
    with pytest.raises(GraphError, match="another graph"):
        Graph().insert_after(graph.select(), "q", duration_ns=1)


def test_a_task_that_was_removed_has_no_neighbours():
    graph = launched("a 20, b 20")
    gone = named(graph, "a")
    gone.remove()

    with pytest.raises(GraphError, match="1 of 1 tasks were removed since they were selected: name="):
        graph.insert_after(gone, "q", duration_ns=1)
    with pytest.raises(GraphError, match="were removed"):
        graph.link(gone, named(graph, "b"))
