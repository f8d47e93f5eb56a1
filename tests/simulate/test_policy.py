"""Scheduled lanes: what is picked, when, and that a clock that ticks through time picks the same."""

import pytest
from hypothesis import given
from strategies import Edge, Task, drawn, plans

from daydream.simulate import engine

CPU, LINK, OTHER = 0, 1, 2


@pytest.fixture(params=[engine.algorithm_1, engine.run], ids=["algorithm 1", "default"])
def run(request):
    return lambda plan: request.param(plan)[0].tolist()


def test_the_urgent_task_overtakes_the_one_that_was_ready_first(run):
    #  cpu   |0: 2|1: 2|2: 2|
    #  link       |3: 10        |5: 10 |4: 10 |     4 is ready at 4, 5 at 6 but more urgent
    plan = drawn(
        [Task(CPU, 2), Task(CPU, 2), Task(CPU, 2), Task(LINK, 10), Task(LINK, 10), Task(LINK, 10)],
        [Edge(0, 3), Edge(1, 4), Edge(2, 5)],
        priority={LINK: [5, 3, 4]},
    )
    assert run(plan) == [0, 2, 4, 2, 2 + 10 + 10, 2 + 10]


def test_what_runs_is_not_interrupted_and_the_lane_does_not_wait_for_the_urgent(run):
    #  link  |1: 10   |2: 3|      1 is ready at 0; 2, more urgent, at 1
    plan = drawn([Task(CPU, 1), Task(LINK, 10), Task(LINK, 3)], [Edge(0, 2)], priority={LINK: [2, 1]})
    assert run(plan) == [0, 0, 10]


def test_a_gap_on_a_scheduled_lane_delays_the_decision(run):
    #  link  |0: 5|gap 3|2: 1|1: 1|      2 is ready at 7, when the gap still holds the lane
    plan = drawn(
        [Task(LINK, 5, gap=3), Task(LINK, 1, release=1), Task(LINK, 1, release=7)],
        [],
        priority={LINK: [2, 0, 1]},
    )
    assert run(plan) == [0, 9, 8]


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
