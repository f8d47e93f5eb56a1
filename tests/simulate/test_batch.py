"""Many variants at once: every task of every variant starts and ends as if it were simulated alone."""

from __future__ import annotations

import numpy as np
import pytest
from graph.random_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st
from strategies import Edge, Task, drawn, plans

from daydream import compiled
from daydream.errors import GraphError
from daydream.graph.graph import ORDER_STEP
from daydream.graph.lower import lower
from daydream.simulate import batch, reference, scan
from daydream.simulate.batch import ends, scaled

FACTORS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 4.0]), min_size=1, max_size=4)


@pytest.fixture(autouse=True, params=["side by side", "one by one"])
def ways(request, monkeypatch):
    """The compiled engine, and what there is without it."""
    if request.param == "one by one":
        monkeypatch.setattr(batch, "fits", lambda *_: False)
    elif compiled.engine() is None:
        pytest.skip("the loops are not built here, or turned off")


@st.composite
def changes(draw, plan):
    """Return changes of a plan: scaled selections, with gaps or without."""
    tasks = st.lists(st.integers(0, len(plan) - 1), unique=True)
    return [scaled(draw(tasks), draw(FACTORS), gaps_of=draw(tasks)) for _ in range(draw(st.integers(1, 3)))]


def alone(plan, chosen, run):
    return [run(variant)[1].tolist() for change in chosen for variant in change.plans(plan)]


@given(st.data())
def test_every_task_of_every_variant_ends_as_if_simulated_alone(data):
    plan = data.draw(plans())
    chosen = data.draw(changes(plan))

    found = ends(plan, chosen, np.arange(len(plan))).tolist()

    assert found == alone(plan, chosen, reference.run) == alone(plan, chosen, scan.run)


@given(st.data())
def test_what_is_asked_of_a_few_tasks_is_what_they_say_among_all(data):
    plan = data.draw(plans(max_tasks=24, max_time=40, least_latency=-20))
    chosen = data.draw(changes(plan))
    tasks = data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=4))

    found = ends(plan, chosen, tasks)

    assert found.tolist() == np.array(alone(plan, chosen, scan.run))[:, tasks].tolist()


@given(st.data())
def test_programs_with_launches_waits_and_queues_and_their_repetition(data):
    graph = data.draw(graphs())
    window = (0, int(graph.columns["order"].max()) // ORDER_STEP * ORDER_STEP + ORDER_STEP)
    plan = lower(graph, data.draw(st.integers(1, 3)), window).plan
    chosen = data.draw(changes(plan))

    found = ends(plan, chosen, np.arange(len(plan))).tolist()

    assert found == alone(plan, chosen, reference.run)


@given(st.data())
def test_lanes_with_a_policy_are_simulated_one_by_one(data):
    plan = data.draw(plans(scheduled=True))
    chosen = data.draw(changes(plan))

    assert ends(plan, chosen, np.arange(len(plan))).tolist() == alone(plan, chosen, reference.run)


def queue():
    #  lane 0  |launch 2|launch 2|launch 2| ...     each waits for the kernel two before it
    #  lane 1    |kernel 5     |kernel 5     | ...
    tasks = [task for _ in range(30) for task in (Task(0, 2), Task(1, 5))]
    edges = [Edge(2 * n, 2 * n + 1, latency=1, from_start=True) for n in range(30)]
    edges += [Edge(2 * n + 1, 2 * n + 4) for n in range(28)]
    return drawn(tasks, edges)


def test_a_variant_in_which_other_edges_bind_is_exact_too():
    plan = queue()
    kernels = np.arange(1, 60, 2)

    found = ends(plan, [scaled(kernels, (1, 0.2, 0))], [59])

    # Bound by the kernels, then by the launches: the last is launched at 29 * 2, its kernel starts 1 later.
    assert found[:, 0].tolist() == [1 + 30 * 5, 29 * 2 + 1 + 1, 29 * 2 + 1]


def test_scaling_rounds_half_up():
    plan = drawn([Task(0, 5, gap=3)], [])

    half, tenth = scaled([0], (0.5, 0.1), gaps_of=[0]).plans(plan)

    assert (half.duration_ns[0], half.gap_ns[0], tenth.duration_ns[0], tenth.gap_ns[0]) == (3, 2, 1, 0)


def test_nothing_to_vary_and_nothing_to_look_at():
    plan = queue()

    assert ends(plan, [], [3]).shape == (0, 1)
    assert ends(plan, [scaled([], (0.5,))], [1]).tolist() == [[6]]
    assert ends(plan, [scaled([1], (0.5,))], []).shape == (1, 0)
    assert ends(drawn([], []), [scaled([], (0.5, 0))], []).shape == (2, 0)


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_a_factor_is_a_number_from_0(factor):
    with pytest.raises(GraphError, match="a factor must be 0 or more"):
        scaled([0], (0.5, factor))
