"""Where the tasks of a repeated window lie in a plan, and whose gap each of them has."""

import numpy as np
import pytest

from daydream import load, replay
from daydream.graph.lower import lower
from daydream.simulate.steady_state import repeatable


@pytest.fixture(scope="module")
def graph():
    return replay(load("examples/synthetic_gpt_gpu.json.gz")).graph


def test_the_window_is_repeated_after_what_is_before_it(graph):
    lowered = lower(graph, 3, repeatable(graph))
    copies = [lowered.task[lowered.copy == copy].tolist() for copy in range(3)]

    assert lowered.copy.tolist() == sorted(lowered.copy.tolist())
    assert copies[1] == copies[2] == copies[0][-len(copies[1]) :]
    assert len(copies[1]) < len(copies[0])


def test_between_copies_stands_the_gap_that_led_into_the_window(graph):
    window = repeatable(graph)
    lowered = lower(graph, 3, window)
    lane, (begin, _) = lowered.plan.lane, window
    ahead = graph.columns["order"][lowered.task] < begin
    other = np.flatnonzero(lowered.gap_of != lowered.task)

    assert len(other)
    for entry in other.tolist():
        later = np.flatnonzero(lane[entry + 1 :] == lane[entry]) + entry + 1
        assert lowered.copy[later[0]] == lowered.copy[entry] + 1
        assert lowered.gap_of[entry] == lowered.task[np.flatnonzero(ahead & (lane == lane[entry]))[-1]]
