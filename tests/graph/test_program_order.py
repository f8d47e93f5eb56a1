"""Program order: the same as sorting by key and id, whichever way is taken."""

import numpy as np
import pytest

from daydream.graph.graph import Graph
from daydream.graph.select import among, in_program_order
from daydream.graph.tables import Lane


def made(order):
    graph = Graph()
    graph.add_lane(Lane("thread"))
    graph.add(len(order), order=np.array(order, np.int64))
    return graph


def test_by_key_then_by_id():
    graph = made([30, 10, 20, 10, 0])
    everything = np.arange(5)
    assert in_program_order(graph, everything).tolist() == [4, 1, 3, 2, 0]
    assert in_program_order(graph, np.array([3, 1])).tolist() == [1, 3]
    assert in_program_order(graph, np.array([2, 0])).tolist() == [2, 0]  # stood so already
    assert in_program_order(graph, np.array([0, 2, 2])).tolist() == [2, 2, 0]  # repeated ones stay
    assert in_program_order(graph, np.array([], np.int64)).tolist() == []


def test_removed_tasks_keep_their_place():
    graph = made([30, 10, 20])
    graph.alive[1] = False
    assert in_program_order(graph, np.array([0, 1, 2])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_as_a_sort_says(seed):
    random = np.random.default_rng(seed)
    graph = made(random.integers(0, 50, 200).tolist())
    for size in (3, 20, 200, 300):
        ids = random.integers(0, 200, size) if size > 20 else random.permutation(200)[:size]
        expected = ids[np.lexsort((ids, graph.columns["order"][ids]))]
        assert in_program_order(graph, ids).tolist() == expected.tolist()


def test_among():
    assert among(made([1, 2, 3]), np.array([2, 0, 2])).tolist() == [True, False, True]
