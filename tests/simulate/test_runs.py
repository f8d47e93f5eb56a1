"""Runs of tasks that follow each other on a lane: which tasks are heads, and what is spread from them."""

from __future__ import annotations

from strategies import Edge, Task, drawn

from daydream.simulate import reference
from daydream.simulate.runs import runs_of


def heads(plan) -> list[int]:
    runs = runs_of(plan)
    return runs.order[runs.head].tolist()


def test_a_run_ends_where_something_comes_in():
    #  lane 0  |0: 5|1: 5|   |4: 5|5: 5|      4 waits for 3
    #  lane 1       |2: 9|3: 9|               2 follows 0, whose run goes on
    plan = drawn(
        [Task(0, 5), Task(0, 5), Task(1, 9), Task(1, 9), Task(0, 5), Task(0, 5)], [Edge(0, 2), Edge(3, 4)]
    )
    assert heads(plan) == [0, 4, 2]
    assert runs_of(plan).length.tolist() == [2, 2, 2]


def test_what_the_order_says_already_and_longer_gaps_part_no_run():
    tasks = [Task(0, 5, gap=1), Task(0, 5), Task(0, 5)]
    assert heads(drawn(tasks, [Edge(0, 1), Edge(1, 2, 7)])) == [0]
    assert heads(drawn(tasks, [Edge(0, 2, 7)])) == [0, 2]  # over a task: what it adds depends on that one


def test_a_release_begins_a_run():
    assert heads(drawn([Task(0, 5), Task(0, 5, release=50), Task(0, 5)], [])) == [0, 1]


def test_on_a_lane_with_a_policy_each_task_is_a_run():
    plan = drawn([Task(0, 5), Task(0, 5), Task(1, 5), Task(1, 5)], [], {0: [1, 0]})
    assert heads(plan) == [0, 1, 2]


def test_starts_are_those_of_heads_and_the_costs_in_between():
    plan = drawn([Task(0, 5, gap=1), Task(0, 4), Task(1, 9), Task(0, 3)], [Edge(2, 3)])
    runs = runs_of(plan)
    before = runs.before(plan)
    start, _ = reference.run(plan)
    shift = start[runs.order[runs.head]] - before[runs.head]
    assert runs.spread(shift, before).tolist() == start.tolist() == [0, 6, 0, 10]
