"""A series of runs: which is the first slower one, and how likely that is by chance."""

from math import isclose, pi

import pytest
from graph.jobs import job

from daydream import GraphError, compare_series
from daydream.predict.compare import student

QUIET = (100, 120)


def series(*cpu, **how):
    return compare_series(
        [job(6, cpu=(100, each), **how) for each in cpu], [f"run {n}" for n in range(len(cpu))]
    )


@pytest.mark.parametrize(
    ("t", "freedom", "chance"),
    [
        (1.0, 1, 0.25),  # Cauchy: 1/2 - atan(1) / pi
        (2.0**0.5, 2, 0.5 - 2.0**0.5 / (2 * (2 + 2) ** 0.5)),
        (3.0**0.5, 3, 0.5 - (pi / 4 + 0.5) / pi),
        (2.776445, 4, 0.025),  # tables
        (1.812461, 10, 0.05),
        (-1.812461, 10, 0.95),
    ],
)
def test_chances_of_students_t(t, freedom, chance):
    assert isclose(student(t, freedom), chance, abs_tol=1e-6)


def test_the_first_slower_run_is_found():
    # means 121 and 141, within both +-1: s^2 = (2 + 2) / 4; t = 20 / sqrt(1/3 + 1/3), 15 pairs of ends
    found = series(120, 121, 122, 140, 141, 142)

    assert found.first_slow == "run 3"
    assert [run.slow for run in found.runs] == [False] * 3 + [True] * 3
    assert [run.step_ns for run in found.runs] == [130_000, 131_000, 132_000, 150_000, 151_000, 152_000]
    step = found.step
    assert (step.before_ns, step.after_ns, step.change_ns) == (131_000, 151_000, 20_000)
    assert step.spread_ns == 1_000
    assert isclose(step.chance, 15 * student(20 / (2 / 3) ** 0.5, 4))


def test_a_single_slow_run_is_found_between_others():
    found = series(120, 121, 119, 150, 120, 121)

    assert [run.slow for run in found.runs] == [False, False, False, True, False, False]


def test_runs_that_only_scatter_have_no_slower_one():
    found = series(120, 128, 122, 130, 121, 129)

    assert found.first_slow is None
    assert found.step is None
    assert not found.operators


def test_a_faster_run_is_none_that_is_slower():
    assert series(140, 141, 120, 121).first_slow is None


def test_operators_of_the_slower_runs_are_named():
    # Where there is a device its work is compared: kernels take longer, transfers do not.
    found = compare_series([job(6, gpu=(each, each)) for each in (200, 201, 260, 261)], ["a", "b", "c", "d"])

    assert found.first_slow == "c"
    assert [(each.name, each.change_ns) for each in found.operators] == [("k", 60_000)]


def test_two_runs_are_no_series():
    with pytest.raises(GraphError, match="three runs or more"):
        series(120, 121)
