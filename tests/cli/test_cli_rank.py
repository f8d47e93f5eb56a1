"""`daydream rank`: the screen, and the object of `--json`."""

from pathlib import Path

import pytest
from test_cli_json import parsed

from daydream.transforms.registry import names

GOLDEN = Path(__file__).parent.parent / "golden"


def test_json_has_every_optimization_ranked_or_left_out(ask):
    result = parsed(ask("rank --trace step.parquet --json"))

    assert (result["schema"], result["trace"]) == (1, "step.parquet")
    ranked = [each["optimization"] for each in result["changes"]]
    left_out = [each["optimization"] for each in result["left_out"] if "+" not in each["optimization"]]
    assert sorted(ranked + left_out) == names()
    gains = [each["speedup"] for each in result["changes"] if each["speedup"]]
    assert gains == sorted(gains, reverse=True)
    assert len(result["pairs"]) <= 3


def test_the_first_is_what_whatif_says(ask):
    best = parsed(ask("rank --trace step.parquet --json --no-curves"))["changes"][0]
    alone = parsed(ask("whatif", best["optimization"], "--trace", "step.parquet", "--json"))

    for key in ("predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup", "changed", "removed"):
        assert best[key] == alone[key]


def test_curves_and_pairs_can_be_left_out(ask):
    result = parsed(ask("rank --trace step.parquet --json --no-curves --pairs 0"))

    assert result["curves"] == result["pairs"] == []


@pytest.mark.parametrize("wrong", [["--top", "0"], ["--pairs", "-1"], ["--top", "many"], []])
def test_wrong_options_are_usage_errors(ask, wrong):
    done = ask("rank", *wrong) if not wrong else ask("rank --trace step.parquet", *wrong)

    assert (done.code, done.out) == (2, "")
