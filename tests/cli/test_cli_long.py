"""Of a long recording commands answer from the steps that stand for all, and say so."""

import pytest
from long_recording import SOME, STEPS

import daydream


@pytest.fixture
def asked(ask):
    """Return what a command prints that ends well."""

    def call(*words):
        done = ask(*words)
        assert done.code == 0, done.err
        return done.out

    return call


@pytest.mark.parametrize("words", [["whatif", "amp"], ["rank"], ["explain"], ["replay"]])
def test_answers_say_of_which_steps_they_are(asked, long, words):
    said = " ".join(asked(*words, "--trace", str(long)).split())
    run = daydream.load(long, steps="typical").metadata["typical_run"]

    assert run in said
    assert run.startswith(f"{SOME} of {STEPS} steps stand for all (--steps ")
    assert "stand for all" not in asked(*words, "--trace", str(long), "--steps", ":")


def test_compare_tells_it_of_both(asked, long):
    said = " ".join(asked("compare", "-v", str(long), str(long)).split())  # lines break by the path's length

    assert said.count(f"{SOME} of {STEPS} steps") == 2
