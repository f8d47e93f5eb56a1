"""Many ranks as lanes of one plan: every time equals that of the same ranks written out."""

import numpy as np
import pytest
from graph.random_graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate.written_out import explicit
from strategies import plans, written

from daydream.errors import GraphError
from daydream.graph.lower import lower
from daydream.simulate.engine import run
from daydream.simulate.ranks import ALL_MEET, ends, factors_of

FACTORS = st.sampled_from([0.0, 0.5, 0.75, 1.0, 1.0, 1.0, 1.3, 2.0])


@st.composite
def ranks_of(draw, plan, *, most=6):
    """Return factors of ranks, few distinct ones, and the row of each task of a plan: any are collectives."""
    count, rows = draw(st.integers(1, most)), draw(st.integers(1, 3))
    factors = st.lists(FACTORS, min_size=count, max_size=count)
    row = st.lists(st.integers(ALL_MEET, rows - 1), min_size=len(plan), max_size=len(plan))
    return np.array(draw(st.lists(factors, min_size=rows, max_size=rows))), np.array(draw(row))


def written_out(plan, factors, row):
    whole, place = explicit(plan, factors, row)
    return run(whole)[1][place].tolist()


@given(st.data())
def test_every_task_ends_on_every_rank_as_if_all_ranks_were_written_out(data):
    plan = data.draw(plans())
    ranks = data.draw(ranks_of(plan))

    assert ends(plan, *ranks, np.arange(len(plan))).tolist() == written_out(plan, *ranks)


@settings(max_examples=40)
@given(st.data())
def test_what_is_asked_of_a_few_tasks_is_what_they_say_among_all(data):
    plan = data.draw(plans(max_tasks=24, max_time=40, least_latency=-20))
    ranks = data.draw(ranks_of(plan))
    tasks = np.array(data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=4)), np.int64)

    found = ends(plan, *ranks, tasks)

    assert found.tolist() == np.array(written_out(plan, *ranks))[tasks].tolist()


@given(st.data())
def test_programs_with_launches_waits_and_queues(data):
    plan = lower(data.draw(graphs())).plan
    ranks = data.draw(ranks_of(plan, most=4))

    assert ends(plan, *ranks, np.arange(len(plan))).tolist() == written_out(plan, *ranks)


@settings(max_examples=40)
@given(st.data())
def test_a_slower_rank_makes_no_rank_faster(data):
    plan = data.draw(plans())
    factors, row = data.draw(ranks_of(plan))
    slower = factors.copy()
    slower[:, data.draw(st.integers(0, factors.shape[1] - 1))] *= 1.5

    tasks = np.arange(len(plan))
    assert (ends(plan, slower, row, tasks) >= ends(plan, factors, row, tasks)).all()


def step():
    #  thread   |backward 8|gap 2|optimizer 4|       the optimizer waits for the all-reduce
    #  link              |all-reduce 5|
    return written("0 8 +2, 1 5, 0 4", "0>1 1, 1>2")


def test_a_collective_begins_with_the_last_of_its_members():
    plan = step()

    found = ends(plan, np.array([[1.0, 1.5, 1.0, 1.0]]), np.array([0, ALL_MEET, 0]), np.arange(3))

    # Rank 1 takes 12 for its backward pass and 6 for its optimizer; all of them reduce from 12 + 1 on.
    assert found.tolist() == [[8, 12, 8, 8], [18] * 4, [18 + 4, 18 + 6, 18 + 4, 18 + 4]]


def test_a_thousand_ranks_that_meet_in_each_step_take_the_sum_of_the_slowest():
    steps, ranks = 12, 1_000
    plan = written(", ".join(["0 100000, 0 30"] * steps))
    factors = factors_of(ranks, steps, 0.1, 1.0, 3)
    reduces = np.arange(2 * steps) % 2 == 1
    row = np.where(reduces, ALL_MEET, np.arange(2 * steps) // 2)

    found = ends(plan, factors, row, np.array([2 * steps - 1]))

    slowest = np.floor(100_000 * factors.max(axis=1) + 0.5).astype(int) + 30
    assert found.tolist() == [[slowest.sum()] * ranks]


def test_a_lane_with_a_policy_is_refused_for_several_ranks():
    plan = written("0 5, 0 3", priority={0: [1, 0]})

    with pytest.raises(GraphError, match="scheduled by priority"):
        ends(plan, np.array([[1.0, 2.0]]), np.zeros(2, int), np.arange(1))
