"""Columns: copies of a graph share what neither of them has written to."""

from __future__ import annotations

import numpy as np
import pytest

from daydream.graph.columns import OWN, Columns
from daydream.graph.graph import Graph
from daydream.graph.tables import COLUMNS, DEFAULTS

SIZES = (1_000, 2_000, 4_000)


def graph_of(tasks: int) -> Graph:
    graph = Graph()
    lane = graph.lane_id("thread 1")
    graph.add(tasks, lane=lane, duration_ns=np.arange(tasks), order=np.arange(tasks) * 10)
    return graph


def held(columns: Columns, other: Columns) -> set[str]:
    return {name for name in columns if np.shares_memory(columns[name], other[name])}


def test_a_copy_shares_all_but_times_until_it_is_written_to():
    graph = graph_of(4)
    copy = graph.copy()
    assert held(graph.columns, copy.columns) == set(COLUMNS) - set(OWN)
    copy.select().set(phase="forward")
    assert held(graph.columns, copy.columns) == set(COLUMNS) - set(OWN) - {"phase"}
    assert graph.columns["phase"].tolist() == [-1] * 4
    assert copy.columns["phase"].tolist() == [0 + copy.columns["phase"][0]] * 4 != [-1] * 4


def test_the_graph_that_was_copied_is_as_free_as_its_copy():
    graph = graph_of(3)
    copy = graph.copy()
    graph.select().set(step=7)
    graph.select().scale(2)
    assert copy.columns["step"].tolist() == [-1, -1, -1]
    assert copy.columns["duration_ns"].tolist() == [0, 1, 2]


def test_a_shared_column_cannot_be_written_to_by_mistake():
    graph = graph_of(2)
    copy = graph.copy()
    for each in (graph, copy):
        with pytest.raises(ValueError, match="read-only"):
            each.columns["order"][0] = 5
        each.columns["duration_ns"][0] = 5  # times may be


def test_appended_tasks_have_the_defaults_of_each_column():
    graph = graph_of(2)
    graph.add(2, duration_ns=[5, 6])
    graph.add(1)
    for name, dtype in COLUMNS.items():
        column = graph.columns[name]
        assert column.dtype == dtype
        assert column.shape == (5,)
        if name != "duration_ns":
            assert column[2:].tolist() == [DEFAULTS.get(name, 0)] * 3
    assert graph.columns["duration_ns"].tolist() == [0, 1, 5, 6, 0]


def test_what_was_given_may_be_written_to_afterwards():
    graph, given = Graph(), np.array([1, 2])
    graph.add(2, order=given)
    given[:] = 9
    assert graph.columns["order"].tolist() == [1, 2]


def test_an_insertion_before_the_first_of_a_lane_makes_room_as_in_a_graph_that_was_not_copied():
    names = []
    for copied in (False, True):
        graph = Graph()
        b = graph.insert("b", kind="cpu", lane="thread 1", duration_ns=1)
        graph.insert("a", kind="cpu", lane="thread 1", duration_ns=1, before=b)
        if copied:
            graph = graph.copy()
        for text in "cde":
            graph.insert(text, kind="cpu", lane="thread 1", duration_ns=1, before=graph.select(name="^b$"))
        names.append(graph.select().name.tolist())
    assert names[0] == names[1]
    assert names[0][-1] == "b"


def test_what_is_added_to_a_graph_is_not_seen_by_its_copy_nor_the_other_way():
    graph = graph_of(8)
    graph.add(1, order=70)  # leaves room behind the columns
    copy = graph.copy()
    graph.add(1, order=80)
    copy.add(1, order=90)
    assert graph.columns["order"].tolist() == [*range(0, 80, 10), 70, 80]
    assert copy.columns["order"].tolist() == [*range(0, 80, 10), 70, 90]


def test_room_that_was_made_is_written_to_and_no_further():
    graph = Graph()
    graph.columns.reserve(5)
    graph.add(3, lane=np.array([1, 2, 3]), duration_ns=7)
    before = {name: graph.columns[name] for name in COLUMNS}
    graph.add(2, lane=4)
    assert all(np.shares_memory(graph.columns[name], before[name]) for name in COLUMNS)
    graph.add(1, lane=5)  # no room is left
    assert not any(np.shares_memory(graph.columns[name], before[name]) for name in COLUMNS)
    assert graph.columns["lane"].tolist() == [1, 2, 3, 4, 4, 5]
    assert graph.columns["duration_ns"].tolist() == [7, 7, 7, 0, 0, 0]
    assert {name: graph.columns[name].dtype for name in COLUMNS} == COLUMNS


def joined_by(work, monkeypatch) -> int:
    """Return how many values are written to make columns longer."""
    written = 0
    copyto = np.copyto

    def count(into, values, **named):
        nonlocal written
        copyto(into, values, **named)
        written += into.size

    with monkeypatch.context() as patched:
        patched.setattr("daydream.graph.columns.np.copyto", count)
        work()
    return written


def test_many_additions_join_each_column_once(monkeypatch):
    found = []
    for tasks in SIZES:
        graph = graph_of(0)

        def work(graph=graph, tasks=tasks):
            for _ in range(tasks // 100):
                graph.add(100, lane=0)
            graph.columns.join()

        found.append(joined_by(work, monkeypatch))
    assert found == [tasks * len(COLUMNS) for tasks in SIZES]


def test_equal_columns_of_two_graphs_are_held_once_until_one_is_written_to():
    graph, other = graph_of(3), graph_of(3)
    other.select().scale(2)
    graph.columns.share(other.columns)
    assert held(graph.columns, other.columns) == set(COLUMNS) - set(OWN)
    graph.add(1, order=7)
    other.select().set(step=5)
    assert graph.columns["order"].tolist() == [0, 10, 20, 7]
    assert other.columns["order"].tolist() == [0, 10, 20]
    assert graph.columns["step"].tolist() == [-1] * 4
    assert graph.columns["duration_ns"].tolist() == [0, 1, 2, 0]


def test_a_column_as_it_is_costs_a_copy_nothing_until_it_is_written_to():
    graph = graph_of(3)
    copy = graph.copy()
    assert copy.columns.as_is("duration_ns") is graph.columns["duration_ns"]
    copy.columns["duration_ns"][1] = 7
    kept = copy.columns.as_is("duration_ns")
    copy.columns["duration_ns"][1] = 8
    assert kept.tolist() == [0, 7, 2]
    assert not np.shares_memory(graph.columns.as_is("duration_ns"), graph.columns["duration_ns"])
