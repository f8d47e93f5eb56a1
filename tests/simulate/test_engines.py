"""Every engine gives the same timeline, and it is the one that the sums by hand give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Task, drawn, plans, written

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


def starts(run, plan):
    start, end = run(plan)
    assert (end - start).tolist() == plan.duration_ns.tolist()
    return start.tolist()


# -- drawn by hand ---------------------------------------------------------------------------------

LONG = 2**55 + 1
CASES = {  # tasks, edges and starts of them
    #  lane 0  |0: 6|gap 2|1: 3|
    #  lane 1        |2: 4|              follows the end of 0, not its gap
    "a gap holds its own lane only": ("0 6 +2, 0 3, 1 4", "0>2", [0, 6 + 2, 6]),
    #  lane 0  |launch 10        |launch 10        |
    #  lane 1     +4 |kernel 20                    |kernel 20 |     the second waits for its stream
    "a kernel can begin before its launch returns": (
        "0 10, 1 20, 0 10, 1 20",
        "0>1 4 start, 2>3 4 start",
        [0, 4, 10, 4 + 20],
    ),
    #  lane 0  |launch 5|sync 1 ..........|next 7|
    #  lane 1    +3 |kernel 30        | +2
    "a synchronization waits for the device and the rest follows": (
        "0 5, 1 30, 0 1, 0 7",
        "0>1 3 start, 1>2 2",
        [0, 3, 3 + 30 + 2, 3 + 30 + 2 + 1],
    ),
    #  a queue of two: launch 2 waits for the end of kernel 0, launch 3 for that of kernel 1
    #  lane 0  |0: 1|1: 1|..... |2: 1|....    |3: 1|
    #  lane 1  |k0: 10          |k1: 10       |k2: 10      |k3: 10 |
    "a full launch queue blocks the launch": (
        "0 1, 1 10, 0 1, 1 10, 0 1, 1 10, 0 1, 1 10",
        "0>1 start, 2>3 start, 4>5 start, 6>7 start, 1>4 QUEUE, 3>6 QUEUE",
        [0, 0, 1, 10, 10, 20, 20, 30],
    ),
    "with negative latency a task begins before its cause ends": ("0 10, 1 1", "0>1 -4", [0, 10 - 4]),
    "but not before time zero": ("0 3, 1 1", "0>1 -9", [0, 0]),
    "a release holds a task and all behind it": ("0 5, 0 5 @12, 0 5", "", [0, 12, 12 + 5]),
    #  lane 0  |0: 4|gap 3|1: 4|gap 1| |2: 4|
    "the start-up cost between neighbors overlaps the gap": (
        "0 4 +3, 0 4 +1, 0 4",
        "0>1 2, 1>2 2",
        [0, 4 + 3, 4 + 3 + 4 + 2],
    ),
    #  lane 0  |0: 2|1: 2|  |2: 2|    2 follows the end of 0 by 7
    "an edge may reach over tasks of its lane": ("0 2, 0 2, 0 2, 0 2", "0>2 7", [0, 2, 2 + 7, 2 + 7 + 2]),
    "times beyond the precision of floats": (
        f"0 {LONG} +1, 1 {LONG}, 0 {LONG}",
        "0>1 1, 1>2 1",
        [0, LONG + 1, 2 * LONG + 2],
    ),
    "nothing": ("", "", []),
}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_by_hand(name, case):
    tasks, edges, expected = CASES[case]
    assert starts(ENGINES[name], written(tasks, edges)) == expected


# Scheduled lanes: lane 0 is a CPU, 1 and 2 are links; which tasks go first on each.
SCHEDULED = {
    #  cpu   |0: 2|1: 2|2: 2|
    #  link       |3: 10        |5: 10 |4: 10 |     4 is ready at 4, 5 at 6 but more urgent
    "the urgent task overtakes the one that was ready first": (
        "0 2, 0 2, 0 2, 1 10, 1 10, 1 10",
        "0>3, 1>4, 2>5",
        {1: [5, 3, 4]},
        [0, 2, 4, 2, 2 + 10 + 10, 2 + 10],
    ),
    #  link  |1: 10   |2: 3|      1 is ready at 0; 2, more urgent, at 1
    "what runs is not interrupted": ("0 1, 1 10, 1 3", "0>2", {1: [2, 1]}, [0, 0, 10]),
    #  link  |0: 5|gap 3|2: 1|1: 1|      2 is ready at 7, when the gap still holds the lane
    "a gap delays the decision": ("1 5 +3, 1 1 @1, 1 1 @7", "", {1: [2, 0, 1]}, [0, 9, 8]),
    "equal priority goes by ready time, then by id": (
        "1 10, 1 1 @6, 1 1 @5, 1 1 @6",
        "",
        {1: []},
        [0, 10 + 1, 10, 10 + 1 + 1],
    ),
    #  link   |0: 4|2: 4|           2 needs 1 from the other lane, which ends at 3, so it is there at 4
    #  other  |1: 3|     3: 5 (less urgent than 2, ready at 0)
    "two scheduled lanes decide in the order of time": (
        "1 4, 2 3, 1 4, 1 5",
        "1>2",
        {1: [0, 2, 3], 2: [1]},
        [0, 0, 4, 8],
    ),
}


@pytest.mark.parametrize("run", [reference, engine.run], ids=["algorithm 1", "default"])
@pytest.mark.parametrize("case", SCHEDULED)
def test_scheduled_lanes_by_hand(run, case):
    tasks, edges, priority, expected = SCHEDULED[case]
    assert starts(run, written(tasks, edges, priority)) == expected


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
        random.integers(0, lanes, n),
        random.integers(0, 1000, n),
        random.integers(0, 3, n) * 50,
        (random.random(n) < 0.01) * random.integers(0, n * 300, n),
        src,
        dst,
        random.integers(-300, 300, edges),
        random.random(edges) < 0.5,
        np.full(edges, Cause.USER),
    )


@pytest.mark.parametrize("edges", [0, 40, 400, 6000])
def test_engines_are_equal_on_larger_plans(edges):
    plan = random_plan(3000, lanes=6, edges=edges, reach=2000, seed=edges)
    expected = starts(reference, plan)
    assert {name for name, run in ENGINES.items() if starts(run, plan) != expected} == set()


# -- scheduled lanes: a clock that ticks through time picks the same ----------------------------------


def tick_through_time(plan):
    """Return the starts by looking at every lane at every tick; needs latencies of 0 and more."""
    n = len(plan)
    start = [None] * n
    free = [0] * plan.lanes
    pairs = list(zip(plan.edge_src.tolist(), plan.edge_delay_ns.tolist(), strict=True))
    edges = [pairs[slice(*plan.edge_ptr[task : task + 2])] for task in range(n)]

    def ready(task):
        """Return when a task may start, or None while one of its causes has not."""
        if any(start[src] is None for src, _ in edges[task]):
            return None
        return max([int(plan.release_ns[task])] + [start[src] + delay for src, delay in edges[task]])

    def startable(now):
        """Return the next task to start now: ordered lanes first, then scheduled ones, lowest lane first."""
        for lane in sorted(range(plan.lanes), key=lambda number: (number in plan.scheduled, number)):
            if free[lane] > now:
                continue
            left = [task for task in range(n) if plan.lane[task] == lane and start[task] is None]
            if lane not in plan.scheduled:
                left = left[:1]
            able = [task for task in left if ready(task) is not None and ready(task) <= now]
            if able:
                return min(able, key=lambda task: (plan.priority[task], ready(task), task))
        return None

    now = 0
    while None in start:
        task = startable(now)
        if task is None:
            now += 1
            continue
        start[task] = now
        free[plan.lane[task]] = now + int(plan.duration_ns[task] + plan.gap_ns[task])
    return start


@given(plans(scheduled=True, max_tasks=10, max_lanes=3, least_latency=0))
def test_the_reference_decides_as_a_ticking_clock_does(plan):
    assert engine.algorithm_1(plan)[0].tolist() == tick_through_time(plan)


@given(plans(scheduled=True, max_tasks=24))
def test_the_default_engine_equals_algorithm_1(plan):
    start, end = engine.run(plan)
    assert start.tolist() == engine.algorithm_1(plan)[0].tolist()
    assert (end - start).tolist() == plan.duration_ns.tolist()


@given(plans(scheduled=True, max_tasks=24))
def test_the_order_that_came_out_put_down_as_fixed_gives_the_same_timeline(plan):
    fixed, ran = engine.fix_order(plan)
    assert not fixed.scheduled
    assert sorted(ran.tolist()) == list(range(len(plan)))
    assert engine.run(fixed)[0].tolist() == engine.run(plan)[0][ran].tolist()


# -- what a plan refuses ---------------------------------------------------------------------------


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


def test_a_plan_cannot_be_changed_in_place_and_leaves_the_callers_arrays_alone():
    durations = np.array([1, 2])
    plan = drawn([Task(0, 3)] * 2, []).with_costs(durations, [0, 0])
    with pytest.raises(ValueError, match="read-only"):
        plan.duration_ns[0] = 5
    durations[0] = 7
