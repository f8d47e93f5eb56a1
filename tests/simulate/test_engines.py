"""Every engine gives the same timeline, and it is the one that the sums by hand give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Edge, Task, drawn, plans

from daydream.errors import GraphError
from daydream.graph.plan import Cause, Plan
from daydream.simulate import engine


def started(starts_of):
    """Return an engine that gives starts and ends, from one that gives starts."""

    def run(plan):
        start = starts_of(plan)
        return start, start + plan.duration_ns

    return run


reference = started(lambda plan: engine.algorithm_1(plan)[0])
ENGINES = {
    "algorithm 1": reference,
    "default": engine.run,
    "heads of runs": started(engine.in_python),
}


@pytest.fixture(params=ENGINES)
def run(request):
    return ENGINES[request.param]


def starts(run, plan):
    start, end = run(plan)
    assert (end - start).tolist() == plan.duration_ns.tolist()
    return start.tolist()


# -- drawn by hand ---------------------------------------------------------------------------------


def test_a_gap_holds_its_own_lane_only(run):
    #  lane 0  |0: 6|gap 2|1: 3|
    #  lane 1        |2: 4|              follows the end of 0, not its gap
    plan = drawn([Task(0, 6, gap=2), Task(0, 3), Task(1, 4)], [Edge(0, 2)])
    assert starts(run, plan) == [0, 6 + 2, 6]


def test_a_kernel_can_begin_before_its_launch_returns(run):
    #  lane 0  |launch 10        |launch 10        |
    #  lane 1     +4 |kernel 20                    |kernel 20 |     the second waits for its stream
    plan = drawn(
        [Task(0, 10), Task(1, 20), Task(0, 10), Task(1, 20)],
        [Edge(0, 1, latency=4, from_start=True), Edge(2, 3, latency=4, from_start=True)],
    )
    assert starts(run, plan) == [0, 4, 10, 4 + 20]


def test_a_synchronization_waits_for_the_device_and_the_rest_follows(run):
    #  lane 0  |launch 5|sync 1 ..........|next 7|
    #  lane 1    +3 |kernel 30        | +2
    plan = drawn(
        [Task(0, 5), Task(1, 30), Task(0, 1), Task(0, 7)],
        [Edge(0, 1, latency=3, from_start=True), Edge(1, 2, latency=2)],
    )
    assert starts(run, plan) == [0, 3, 3 + 30 + 2, 3 + 30 + 2 + 1]


def test_a_full_launch_queue_blocks_the_launch(run):
    #  a queue of two: launch 2 waits for the end of kernel 0, launch 3 for that of kernel 1
    #  lane 0  |0: 1|1: 1|..... |2: 1|....    |3: 1|
    #  lane 1  |k0: 10          |k1: 10       |k2: 10      |k3: 10 |
    plan = drawn(
        [Task(0, 1), Task(1, 10), Task(0, 1), Task(1, 10), Task(0, 1), Task(1, 10), Task(0, 1), Task(1, 10)],
        [Edge(launch, launch + 1, from_start=True) for launch in (0, 2, 4, 6)]
        + [Edge(1, 4, cause=Cause.QUEUE), Edge(3, 6, cause=Cause.QUEUE)],
    )
    assert starts(run, plan) == [0, 0, 1, 10, 10, 20, 20, 30]


def test_an_edge_with_negative_latency_lets_a_task_begin_before_its_cause_ends(run):
    plan = drawn([Task(0, 10), Task(1, 1)], [Edge(0, 1, latency=-4)])
    assert starts(run, plan) == [0, 10 - 4]


def test_the_start_up_cost_between_neighbours_overlaps_the_gap(run):
    #  lane 0  |0: 4|gap 3|1: 4|gap 1| |2: 4|     edges 0 -> 1 and 1 -> 2 with latency 2 from the end
    plan = drawn([Task(0, 4, gap=3), Task(0, 4, gap=1), Task(0, 4)], [Edge(0, 1, 2), Edge(1, 2, 2)])
    assert starts(run, plan) == [0, 4 + 3, 4 + 3 + 4 + 2]


def test_an_edge_may_reach_over_tasks_of_the_same_lane(run):
    #  lane 0  |0: 2|1: 2|  |2: 2|    2 follows the end of 0 by 7
    plan = drawn([Task(0, 2), Task(0, 2), Task(0, 2), Task(0, 2)], [Edge(0, 2, 7)])
    assert starts(run, plan) == [0, 2, 2 + 7, 2 + 7 + 2]


def test_times_beyond_the_precision_of_floats_stay_exact(run):
    long = 2**55 + 1
    plan = drawn([Task(0, long, gap=1), Task(1, long), Task(0, long)], [Edge(0, 1, 1), Edge(1, 2, 1)])
    assert starts(run, plan) == [0, long + 1, 2 * long + 2]


# -- laws over random plans ------------------------------------------------------------------------


@given(plans())
def test_all_engines_are_equal(plan):
    expected = [column.tolist() for column in reference(plan)]
    for name, run in ENGINES.items():
        assert [column.tolist() for column in run(plan)] == expected, name


@given(plans())
def test_a_task_starts_when_the_last_of_its_causes_lets_it(plan):
    start, end = engine.run(plan)
    allowed = plan.release_ns.copy()
    previous = {}
    for task, lane in enumerate(plan.lane.tolist()):
        if lane in previous:
            allowed[task] = max(allowed[task], end[previous[lane]] + plan.gap_ns[previous[lane]])
        previous[lane] = task
    counted_from = np.where(plan.edge_from_start, start[plan.edge_src], end[plan.edge_src])
    np.maximum.at(allowed, plan.edge_dst, counted_from + plan.edge_latency_ns)
    assert start.tolist() == allowed.tolist()


@given(plans(), st.data())
def test_other_costs_on_a_plan_that_has_run_give_what_a_new_plan_gives(plan, data):
    engine.run(plan)
    other = st.lists(st.integers(0, 9), min_size=len(plan), max_size=len(plan))
    changed = plan.with_costs(data.draw(other), data.draw(other))
    assert changed.cache is plan.cache
    assert (
        starts(engine.run, changed) == starts(ENGINES["heads of runs"], changed) == starts(reference, changed)
    )


def random_plan(n, lanes, edges, reach, seed):
    """Return a larger plan whose edges reach back over up to `reach` tasks."""
    random = np.random.default_rng(seed)
    dst = random.integers(1, n, edges)
    src = np.maximum(dst - random.integers(1, reach + 1, edges), 0)
    return Plan.from_edges(
        random.integers(0, lanes, n), random.integers(0, 1000, n), random.integers(0, 3, n) * 50,
        (random.random(n) < 0.01) * random.integers(0, n * 300, n),
        src, dst, random.integers(-300, 300, edges), random.random(edges) < 0.5, np.full(edges, Cause.USER),
    )  # fmt: skip


@pytest.mark.parametrize("edges", [0, 40, 400, 6000])
def test_engines_are_equal_on_larger_plans(edges):
    plan = random_plan(3000, lanes=6, edges=edges, reach=2000, seed=edges)
    expected = starts(reference, plan)
    assert {name for name, run in ENGINES.items() if starts(run, plan) != expected} == set()


# -- what a plan refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [Edge(2, 1), Edge(1, 1), Edge(0, 3), Edge(-1, 1)])
def test_an_edge_that_does_not_go_upwards_is_named(edge):
    with pytest.raises(GraphError, match=f"edge {edge.src} -> {edge.dst} among 3 tasks"):
        drawn([Task(0, 1)] * 3, [Edge(0, 1), edge])


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (Task(-1, 1), "lane"),
        (Task(0, -1), "duration_ns"),
        (Task(0, 1, gap=-1), "gap_ns"),
        (Task(0, 1, release=-1), "release_ns"),
    ],
)
def test_a_negative_time_is_named(task, what):
    with pytest.raises(GraphError, match=f"{what} of task 1 is -1"):
        drawn([Task(0, 1), task], [])


def test_columns_must_agree_in_length():
    with pytest.raises(GraphError, match="differ in shape"):
        Plan.from_edges([0, 0], [1], [0, 0], [0, 0], [], [], [], [], [])
    with pytest.raises(GraphError, match="differ in shape"):
        drawn([Task(0, 1)] * 2, []).with_costs([1, 2, 3])


def test_fractions_of_a_nanosecond_are_refused_not_cut_off():
    with pytest.raises(GraphError, match="whole numbers"):
        drawn([Task(0, 3)] * 2, []).with_costs([1.5, 2.5])


def test_a_plan_cannot_be_changed_in_place_and_leaves_the_callers_arrays_alone():
    durations = np.array([1, 2])
    plan = drawn([Task(0, 3)] * 2, []).with_costs(durations)
    with pytest.raises(ValueError, match="read-only"):
        plan.duration_ns[0] = 5
    durations[0] = 7
