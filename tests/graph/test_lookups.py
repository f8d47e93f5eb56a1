"""Lookups: what rules find by lane is that of all tasks, however they were added."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daydream.graph.graph import Graph, Lane
from daydream.graph.lookups import Lookups

LANES = (
    Lane("thread 1"),
    Lane("stream 7", on_device=True),
    Lane("thread 2"),
    Lane("gloo 0", on_device=True, host=True),
)
tasks = st.lists(
    st.tuples(st.integers(0, len(LANES) - 1), st.integers(0, 9), st.integers(-1, 3)), max_size=12
)


def check(lookups: Lookups, graph: Graph) -> None:
    columns, ids = graph.columns, np.arange(graph.size)
    in_order = ids[np.argsort(columns["order"], kind="stable")]
    for number in range(len(LANES)):
        mine = in_order[columns["lane"][in_order] == number]
        assert lookups.on(number).tolist() == mine.tolist()
        assert ids[lookups.at(number)].tolist() == mine.tolist()
    assert lookups.threads() == [lane for lane in (0, 2) if len(lookups.on(lane))]
    assert [lane for lane, _ in lookups.streams()] == [1] * bool(len(lookups.on(1)))
    assert lookups.launched().tolist() == np.flatnonzero(columns["launch"] >= 0).tolist()
    for thread in (0, 2):
        work = [task for task in in_order.tolist() if columns["launch"][task] >= 0]
        mine = [task for task in work if columns["lane"][columns["launch"][task]] == thread]
        assert lookups.launched_by(thread).tolist() == mine


@given(st.lists(tasks, min_size=1, max_size=4))
def test_tasks_are_found_by_lane_whenever_they_were_added(portions):
    graph = Graph()
    for lane in LANES:
        graph.add_lane(lane)
    graph.add(4, lane=[0, 0, 2, 0], order=[1, 3, 5, 7])
    lookups = Lookups(graph)
    for portion in portions:
        lane, order, launch = np.array(portion, np.int64).reshape(-1, 3).T
        graph.add(len(portion), lane=lane, order=order, launch=launch)
        check(lookups, graph)


def test_a_task_that_moved_is_found_again_once_that_is_said():
    graph = Graph()
    for lane in LANES:
        graph.add_lane(lane)
    graph.add(3, lane=0, order=[1, 2, 3])
    lookups = Lookups(graph)
    check(lookups, graph)
    graph.columns["lane"][1], graph.columns["launch"][1] = 3, 0
    lookups.forget()
    check(lookups, graph)
