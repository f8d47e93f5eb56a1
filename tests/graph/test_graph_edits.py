"""What insert, remove, replace, set and scale do to a graph small enough to draw."""

import numpy as np
import pytest
from small_graphs import at, kernels, lane, launched, named, names, put, starts, thread

from daydream import Graph, GraphError, simulate
from daydream.graph.tables import Lane

# -- insert ------------------------------------------------------------------------------------------


def test_work_that_brings_its_launch_runs_behind_what_its_predecessor_launched():
    #  thread 1  |launch a 6|launch 6|launch b 6|
    #  stream 7     +4 |a 20         |1|x 7|1|b 20|
    graph = launched("a 20, b 20")
    graph.columns["step"][:] = 3
    x = put(graph, "x", "stream 7", 7, gap_ns=1, launch_after=graph.select(name="launch a"))  # fmt: skip

    assert lane(graph, "thread 1") == "begin, launch a, launch, launch b"
    assert lane(graph, "stream 7") == "a, x, b"
    assert x.step.tolist() == x.launches().step.tolist() == [3]
    times = starts(graph)
    assert times["launch b"] == 6 + 6
    assert times["x"] == 4 + 20 + 1
    assert times["b"] == 4 + 20 + 1 + 7 + 1


@pytest.mark.parametrize("given", [[1], np.array([1])])
@pytest.mark.parametrize("where", ["after", "before"])
def test_a_task_that_was_removed_cannot_be_named(where, given):
    graph = thread("a 5, b 5")
    graph.select(name="b").remove()

    with pytest.raises(GraphError, match="task 1 is not in the graph; it may have been removed"):
        put(graph, "x", "thread 1", 1, **{where: given})


# -- remove, replace ---------------------------------------------------------------------------------


def test_removing_a_kernel_removes_its_launch():
    #  thread 1  |launch b 6|
    #  stream 7     +4 |b 20 |
    graph = launched("a 20, b 20")
    named(graph, "a").remove()

    assert starts(graph) == at("begin 0, launch b 0, b 4")
    assert graph.lint() == []


def test_a_launch_with_work_left_stays():
    #  thread 1  |launch a 6|
    #  stream 7     +4 |a 20 |1|a2 5|          one call launched both, as for a CUDA graph
    graph = launched("a 20")
    call = int(graph.select(name="launch a").ids[0])
    put(graph, "a2", "stream 7", 5, after=[named(graph, "a")])
    graph.columns["launch"][graph.select(name="a2").ids] = call

    named(graph, "a").remove()
    assert starts(graph) == at("begin 0, launch a 0, a2 0")
    graph.select(name="a2").remove()
    assert starts(graph) == {"begin": 0}


def test_one_task_takes_the_place_of_several():
    #  thread 1  |launch a 6|launch d 6|
    #  stream 7     +4 |one 9      |1|d 20|
    graph = launched("a 20, b 20, c 20, d 20")
    one = graph.select(name="^[abc]$").replace("one", duration_ns=9)

    assert names(one) == "one"
    assert starts(graph) == at("begin 0, launch a 0, one 4, launch d 6, d 4+9+1")


# -- set, scale --------------------------------------------------------------------------------------


def test_set_gives_new_costs_and_rounds_halves_up():
    graph = thread("a 6 +2, b 3")
    graph.select(name="a").set(duration_ns=7.5, gap_ns=1)

    assert starts(graph) == at("a 0, b 8+1")


def test_scale_leaves_gaps_alone_unless_asked():
    graph = thread("a 6 +2, b 3")
    graph.select(kind="cpu").scale(0.5)
    assert starts(graph) == at("a 0, b 3+2")
    assert simulate(graph).makespan_ns == 3 + 2 + 2  # half of 3 is rounded up

    graph = thread("a 6 +2, b 3")
    graph.select(kind="cpu").scale(0.5, gaps=True)
    assert starts(graph) == at("a 0, b 3+1")


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf")])
def test_a_factor_that_means_nothing_is_refused(factor):
    with pytest.raises(GraphError, match="a factor must be 0 or more, not"):
        thread("a 6 +2").select(kind="cpu").scale(factor)


@pytest.mark.parametrize("column", ["duration_ns", "gap_ns", "release_ns", "latency_ns"])
def test_negative_times_cannot_be_set(column):
    graph = thread("a 6 +2")
    with pytest.raises(GraphError, match=f"{column} cannot be negative"):
        graph.select(kind="cpu").set(**{column: -1})
    assert starts(graph) == {"a": 0}


def test_a_lane_cannot_be_set():
    with pytest.raises(GraphError, match="cannot give tasks 'lane'"):
        thread("a 6 +2").select(kind="cpu").set(lane=3)


@pytest.mark.parametrize("column", ["duration_ns", "gap_ns"])
def test_negative_times_cannot_be_inserted(column):
    times = {"duration_ns": 1, column: -5}
    with pytest.raises(GraphError, match=r"cannot be negative \(-5 ns\)"):
        Graph().insert("a", kind="cpu", lane="thread 1", **times)


def test_a_copy_is_independent():
    graph = launched("a 20, b 20")
    simulate(graph)
    twin = graph.copy()
    named(twin, "a").remove()
    named(twin, "b").scale(2)
    put(twin, "x", "thread 9", 1)

    assert starts(graph) == at("begin 0, launch a 0, a 4, launch b 6, b 25")
    assert [lane.name for lane in graph.lanes] == ["thread 1", "stream 7"]
    assert simulate(twin).makespan_ns == 4 + 40


# -- reading -----------------------------------------------------------------------------------------


def test_selections_combine():
    graph = launched("a 20, b 10")
    a, both = named(graph, "a"), kernels(graph)

    assert (names(a | both), names(a & both), names(both - a)) == ("a, b", "a", "b")
    assert names(both.where(lambda tasks: tasks.duration_ns > 15)) == "a"
    assert names(both.launches()) == "launch a, launch b"
    assert both.total("duration_ns") == 30


def test_a_selection_can_go_through_its_tasks_and_be_split():
    graph = launched("a 20, b 10, c 5")
    work = kernels(graph)
    work.set(step=[1, 0, 1])

    assert [task.name[0] for task in work] == ["a", "b", "c"]
    assert [part.name.tolist() for part in work.group_by("step")] == [["a", "c"], ["b"]]
    assert names(graph.select(step=1)) == "a, c"


def test_a_graph_notes_what_was_edited_and_not_what_was_looked_up():
    copy = Graph().copy()
    lane = copy.lane_id("thread")
    copy.add(1, lane=lane, layer=copy.code("layer", "a"))
    assert len(copy.select(layer="a", kind="cpu")) == 1
    assert not copy.edited_by
    copy.select(layer="a", kind="cpu").scale(0.5)
    assert list(copy.edited_by) == [(("kind", ("cpu",)), ("layer", ("a",)))]
    assert not Graph().copy().edited_by


def test_no_two_lanes_have_one_name():
    graph = Graph()
    numbers = [graph.add_lane(Lane("thread 7", rank)) for rank in (0, 1, 2)]
    assert [lane.name for lane in graph.lanes] == ["thread 7", "thread 7 (2)", "thread 7 (3)"]
    assert [graph.lane_id(graph.lanes[number].name) for number in numbers] == [0, 1, 2]
