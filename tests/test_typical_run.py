"""Of a long recording some steps stand for all: a run whose mean step is that of all, and answers say so."""

import pytest

import daydream
from daydream.trace import step_range as module
from daydream.trace.step_range import TypicalRun, typical_run

ROWS = 500_000  # a run of 200,000 of them is enough: two steps of five


def recording(*ranks, without=()):
    """Return the metadata of steps that took so many ns, by rank; those at some places are not covered."""
    return {
        "steps": [
            {"rank": rank, "covered": place not in without, "measured_ns": ns}
            for rank, times in enumerate(ranks)
            for place, ns in enumerate(times)
        ]
    }


def test_of_equal_steps_the_last_are_taken():
    assert typical_run(recording([10] * 100), ROWS) == TypicalRun(60, 100, 100, 0.0)


def test_what_comes_now_and_then_is_in_the_run_as_often_as_in_the_recording():
    """Every tenth step takes 50: the mean is 14, and any 40 steps hold four of them."""
    run = typical_run(recording([50 if place % 10 == 9 else 10 for place in range(100)]), ROWS)

    assert run == TypicalRun(60, 100, 100, 0.0)


def test_where_no_run_is_like_all_steps_all_are_looked_at():
    """One step takes 1000, 99 take 10: with it every run is longer by more than 1 %, without it shorter."""
    assert typical_run(recording([10] * 50 + [1000] + [10] * 49), ROWS) is None


@pytest.mark.parametrize(
    "metadata", [{}, {"steps": []}, recording([0] * 100), recording([10] * 50, without=range(50))]
)
def test_without_judged_steps_nothing_is_left_out(metadata):
    assert typical_run(metadata, ROWS) is None


def covered(trace):
    return sum(bool(step["covered"]) for step in trace.metadata["steps"])


@pytest.mark.parametrize("name", ["amp", "cuda-graphs"])
def test_the_answer_is_that_of_all_steps(long, name):
    """The machine's steps are alike: some of them tell what all do, to the run's own 1 %."""
    some, all_ = (daydream.whatif(of, name) for of in (long, daydream.load(long)))

    assert some.replayed_ns == pytest.approx(all_.replayed_ns, rel=module.ALIKE)
    assert some.speedup == pytest.approx(all_.speedup, rel=module.ALIKE)
