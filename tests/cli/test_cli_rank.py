"""`daydream rank`: the screen, and the object of `--json`."""

import pytest


@pytest.mark.parametrize("wrong", [["--top", "0"], ["--pairs", "-1"], ["--top", "many"], []])
def test_wrong_options_are_usage_errors(ask, wrong):
    done = ask("rank", *wrong) if not wrong else ask("rank --trace step.parquet", *wrong)

    assert (done.code, done.out) == (2, "")
