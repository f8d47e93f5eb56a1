"""`daydream rank`: the screen, and the object of `--json`."""

import pytest
from test_cli_json import parsed


def test_the_first_is_what_whatif_says(ask):
    best = parsed(ask("rank --trace step.parquet --json --no-curves"))["changes"][0]
    alone = parsed(ask("whatif", best["optimization"], "--trace", "step.parquet", "--json"))

    for key in ("predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup", "changed", "removed"):
        assert best[key] == alone[key]


@pytest.mark.parametrize("wrong", [["--top", "0"], ["--pairs", "-1"], ["--top", "many"], []])
def test_wrong_options_are_usage_errors(ask, wrong):
    done = ask("rank", *wrong) if not wrong else ask("rank --trace step.parquet", *wrong)

    assert (done.code, done.out) == (2, "")
