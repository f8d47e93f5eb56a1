"""Lanes, gaps and launches on graphs small enough to draw, with the sums written out."""

import pytest
from small_graphs import at, kernels, launched, named, put, starts, thread, with_sync

from daydream import Graph, GraphError, simulate
from daydream.graph.plan import Cause

# -- lanes, gaps, launches ---------------------------------------------------------------------------


def test_the_gpu_waits_for_slow_launches():
    #  thread 1  |launch a 6|gap 2|launch b 6|
    #  stream 7              |a 4|            |b 4|
    graph = Graph()
    first = put(graph, "launch a", "thread 1", 6, gap_ns=2)
    second = put(graph, "launch b", "thread 1", 6, after=[first])
    a = put(graph, "a", "stream 7", 4, after=[first])
    put(graph, "b", "stream 7", 4, after=[a, second])

    assert simulate(graph).makespan_ns == 6 + 2 + 6 + 4
    kernels(graph).scale(0.5)
    assert simulate(graph).makespan_ns == 6 + 2 + 6 + 2  # twice as fast, hardly any gain


def test_a_gap_holds_its_own_lane_only():
    #  thread 1  |a 6|gap 9       |b 3|
    #  stream 7      |k 4|
    graph = thread("a 6 +9, b 3")
    put(graph, "k", "stream 7", 4, after=[0])

    assert starts(graph) == at("a 0, b 6+9, k 6")
    assert simulate(graph).makespan_ns == 6 + 9 + 3


def test_the_gap_of_the_last_task_does_not_count():
    assert simulate(thread("a 6 +9")).makespan_ns == 6


def test_a_kernel_starts_a_latency_after_its_launch_began():
    #  thread 1  |launch a 6|launch b 6|
    #  stream 7     +4 |a 20       |1|b 20|
    graph = launched("a 20, b 20")

    assert starts(graph) == at("begin 0, launch a 0, a 4, launch b 6, b 4+20+1")
    named(graph, "a").set(duration_ns=3)
    assert starts(graph)["b"] == 6 + 4


def test_work_without_a_launch_is_held_to_its_release():
    graph = Graph()
    put(graph, "k", "stream 7", 4, release_ns=11)
    assert starts(graph) == {"k": 11}


def test_a_wait_is_the_time_a_lane_stood_ready():
    #  thread 1  |launch 6| ............ |sync 3|
    #  stream 7     +4 |a 20             |
    graph = launched("a 20")
    sync = with_sync(graph)

    timeline = simulate(graph)
    at = timeline.task.tolist().index(sync)
    assert timeline.start_ns[at] == 4 + 20
    assert timeline.wait_ns[at] == 4 + 20 - 6


# -- lanes with a policy -----------------------------------------------------------------------------


def test_a_scheduled_lane_takes_the_ready_task_of_least_key():
    #  thread 1  |a 1|b 1|c 1|
    #  link          |a 10     |c 10     |b 10     |       c is more urgent than b once both are ready
    graph = thread("a 1, b 1, c 1")
    for task in range(3):
        name = f"send {'abc'[task]}"
        put(graph, name, "link", 10, after=[task])
    in_order = starts(graph)
    assert [in_order[f"send {x}"] for x in "abc"] == [1, 11, 21]

    graph.schedule("link", key=lambda sends: [0, 2, 1])
    urgent_first = starts(graph)
    assert [urgent_first[f"send {x}"] for x in "abc"] == [1, 21, 11]


def test_a_task_inserted_on_a_scheduled_lane_later_is_asked_for_its_key_too():
    graph = thread("a 1")
    put(graph, "x", "link", 10, after=[0])
    graph.schedule("link", key="duration_ns")
    put(graph, "y", "link", 9, after=[0])

    assert starts(graph) == at("a 0, y 1, x 10")


def test_a_lane_that_is_not_there_cannot_be_scheduled():
    with pytest.raises(GraphError, match="no lane 'link'; the lanes are 'thread 1'"):
        thread("a 1").schedule("link", key="duration_ns")


# -- links between threads ---------------------------------------------------------------------------


def handed_over():
    #  main      |a 5|              |b 5|c 5|       main waits for the end of y
    #  worker        |x 7|gap 1|y 7|
    graph = thread("a 5, b 5, c 5")
    put(graph, "x", "worker", 7, gap_ns=1)
    put(graph, "y", "worker", 7)
    graph.link([0], [3], cause=Cause.HANDOFF)
    graph.link([4], [1], cause=Cause.HANDOFF)
    return graph


def test_a_hand_off_makes_the_caller_wait_for_the_worker():
    assert starts(handed_over()) == at("a 0, x 5, y 5+7+1, b 20, c 25")


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("x", {"a": 0, "y": 5, "b": 12, "c": 17}),  # y is now the first to be woken
        ("y", {"a": 0, "x": 5, "b": 12, "c": 17}),  # x is now the last to be waited for
        ("b", {"a": 0, "x": 5, "y": 13, "c": 20}),  # c now stands where b stood
    ],
)
def test_the_next_task_of_a_lane_stands_in_for_the_removed_end_of_a_hand_off(removed, expected):
    graph = handed_over()
    graph.select(name=removed).remove()

    assert starts(graph) == expected


def test_a_worker_that_is_gone_is_not_waited_for():
    graph = handed_over()
    graph.select(lane="worker").remove()

    assert starts(graph) == at("a 0, b 5, c 10")


def test_a_users_link_goes_with_its_task():
    graph = thread("a 5, b 5")
    put(graph, "x", "worker", 50)
    put(graph, "y", "worker", 1)
    graph.link([2], [1])
    assert starts(graph)["b"] == 50

    graph.select(name="x").remove()
    assert starts(graph)["b"] == 5
