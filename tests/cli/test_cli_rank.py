"""`daydream rank`: the screen, and the object of `--json`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from graph.small_traces import op, trace
from test_cli_json import parsed
from test_cli_startup import HEAVY, modules_after
from test_ranking import ALL, steps
from view_text import view_text

import daydream
from daydream.transforms.registry import names

GOLDEN = Path(__file__).parent.parent / "golden"
KEYS = [
    "schema", "trace", "basis", "measured_ns", "replayed_ns", "replay_error", "bound", "bound_share",
    "changes", "pairs", "left_out", "curves", "notes", "by",
]  # fmt: skip
OPTIMIZATION = [
    "optimization", "options", "replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns",
    "saving_ns", "speedup", "reason", "changed", "inserted", "removed", "throughput",
    "memory", "notes", "summary",
    "needs", "code", "bound", "bound_share",
]  # fmt: skip
CURVE = ["sort", "name", "own_ns", "factors", "step_ns", "knee", "saving_ns"]


def fits(screen):
    lines = screen.splitlines()
    assert screen.isascii()
    assert max(map(len, lines[1:])) <= 100  # the first is the answer, never cut
    assert len(lines) <= 50
    assert not any(line != line.rstrip() for line in lines)


@pytest.mark.parametrize(("name", "verbose"), [("rank", False), ("rank_verbose", True)])
def test_the_screen_is_as_reviewed(name, verbose):
    screen = view_text(daydream.rank(steps(), ALL), top=4, verbose=verbose) + "\n"

    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        golden.write_text(screen, encoding="utf-8")
    assert screen == golden.read_text(encoding="utf-8")
    fits(screen)


def test_a_trace_to_which_nothing_applies_says_so_and_why():
    on_cpu = trace([op("data", 100 * n, 100 * n + 90) for n in range(3)], steps=(0, 100, 200, 300))
    screen = view_text(daydream.rank(on_cpu, ["amp", "fused-adam"], with_curves=False), top=4)

    assert "no optimization applies to this trace" in screen
    assert "\nleft out\n  amp: " in screen
    fits(screen)


def test_the_whole_command_fits_a_screen_and_says_what_to_type_next(run):
    done = run("rank", "--trace", "step.parquet", "--top", "8")

    assert done.code == 0, done.err
    assert done.out.startswith("amp: 3.064 -> 1.853 ms per step, 1.65x (90% interval ")
    ranked = json.loads(run("rank", "--trace", "step.parquet", "--json").out)["changes"]
    best = ranked[0]["optimization"]
    assert done.err == f"next: daydream whatif {best} step.parquet\n"
    fits(done.out)


def test_json_has_the_keys_of_the_contract(ask):
    result = parsed(ask("rank", "--trace", "step.parquet", "--json"))

    assert list(result) == KEYS
    assert (result["schema"], result["trace"]) == (1, "step.parquet")
    assert {tuple(each) for each in result["changes"] + result["pairs"]} == {tuple(OPTIMIZATION)}
    assert {tuple(each) for each in result["curves"]} == {tuple(CURVE)}
    assert {tuple(each) for each in result["left_out"]} <= {("optimization", "reason")}
    ranked = [each["optimization"] for each in result["changes"]]
    left_out = [each["optimization"] for each in result["left_out"] if "+" not in each["optimization"]]
    assert sorted(ranked + left_out) == names()
    gains = [each["speedup"] for each in result["changes"] if each["speedup"]]
    assert gains == sorted(gains, reverse=True)
    assert len(result["pairs"]) <= 3


def test_the_first_is_what_whatif_says(ask):
    best = parsed(ask("rank", "--trace", "step.parquet", "--json", "--no-curves"))["changes"][0]
    alone = parsed(ask("whatif", best["optimization"], "--trace", "step.parquet", "--json"))

    for key in ("predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup", "changed", "removed"):
        assert best[key] == alone[key]


def test_curves_and_pairs_can_be_left_out(ask):
    result = parsed(ask("rank", "--trace", "step.parquet", "--json", "--no-curves", "--pairs", "0"))

    assert result["curves"] == result["pairs"] == []


@pytest.mark.parametrize("wrong", [["--top", "0"], ["--pairs", "-1"], ["--top", "many"], []])
def test_wrong_options_are_usage_errors(ask, wrong):
    done = ask("rank", *wrong) if not wrong else ask("rank", "--trace", "step.parquet", *wrong)

    assert (done.code, done.out) == (2, "")


def test_nothing_heavy_is_imported(folder):
    assert not modules_after("rank", "--trace", "step.parquet", folder=folder) & HEAVY
