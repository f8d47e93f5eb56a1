"""Where the tasks of a repeated window lie in a plan, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from daydream import load, replay
from daydream.graph.cached_plan import cached_plan, plan_arrays
from daydream.graph.layout import Repeats
from daydream.graph.lower import lower
from daydream.simulate.steady import repeatable

TWO_AND_THREE = Repeats(ahead=2, block=3, copies=3)  # ids 0 1 | 2 3 4 | 5 6 7 | 8 9 10


def test_values_of_the_window_are_those_of_each_copy():
    assert TWO_AND_THREE.of_tasks(np.array(list("abcde"))).tolist() == list("abcdecdecde")
    assert TWO_AND_THREE.numbers().tolist() == [0] * 5 + [1] * 3 + [2] * 3


def test_places_are_found_in_every_copy_and_back():
    assert TWO_AND_THREE.ids(np.array([4, 1, -1])).tolist() == [[4, 1, -1], [7, -1, -1], [10, -1, -1]]
    assert TWO_AND_THREE.all_ids(np.array([0, 3, 4])).tolist() == [0, 3, 4, 6, 7, 9, 10]
    place, copy = TWO_AND_THREE.places(np.arange(11))
    assert place.tolist() == [0, 1, *[2, 3, 4] * 3]
    assert copy.tolist() == TWO_AND_THREE.numbers().tolist()


def test_what_stands_between_copies_does_not_count():
    values = np.arange(5)
    plan = TWO_AND_THREE.of_tasks(values)
    plan[4] = 99  # a gap that led into the window
    assert TWO_AND_THREE.as_in(plan, values)
    for place in (1, 10):
        other = plan.copy()
        other[place] = 99
        assert not TWO_AND_THREE.as_in(other, values)


def test_a_program_that_is_not_repeated_is_the_plan():
    once = Repeats(ahead=0, block=3, copies=1)
    values = np.arange(3)
    assert once.of_tasks(values) is values
    assert once.all_ids(values).tolist() == [0, 1, 2]
    assert once.ids(np.array([2, -1])).tolist() == [[2, -1]]
    assert once.numbers().tolist() == [0, 0, 0]


def test_a_kept_plan_whose_window_is_another_one_is_refused():
    graph = replay(load("examples/synthetic_gpt_gpu.json.gz")).graph
    window = repeatable(graph)
    lowered = lower(graph, 2, window)
    arrays = plan_arrays(graph, 2, window)
    again = cached_plan(graph.copy(), 2, window, arrays)
    assert again.repeats == lowered.repeats

    ahead, block, copies = arrays["plan.repeats"].tolist()
    assert copies == 2
    for other in (
        (ahead + 2, block - 1, 2),
        (ahead - block, block, 3),
        (ahead, block, 1),
        (-block, block, 3),
    ):
        with pytest.raises(ValueError, match="window"):
            cached_plan(graph.copy(), 2, window, {**arrays, "plan.repeats": np.array(other)})
