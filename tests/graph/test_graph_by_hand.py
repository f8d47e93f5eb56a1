"""Lanes, gaps and launches on graphs small enough to draw, with the sums written out."""

import pytest
from small_graphs import at, kernels, put, starts, thread

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


def test_work_without_a_launch_is_held_to_its_release():
    graph = Graph()
    put(graph, "k", "stream 7", 4, release_ns=11)
    assert starts(graph) == {"k": 11}


# -- lanes with a policy -----------------------------------------------------------------------------


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


def test_a_users_link_goes_with_its_task():
    graph = thread("a 5, b 5")
    put(graph, "x", "worker", 50)
    put(graph, "y", "worker", 1)
    graph.link([2], [1])
    assert starts(graph)["b"] == 50

    graph.select(name="x").remove()
    assert starts(graph)["b"] == 5
