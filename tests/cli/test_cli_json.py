"""`--json`: one object with exactly the contract's keys, and nothing else on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

REPLAY = [
    "schema", "trace", "ranks", "steps", "measured_ns", "replayed_ns", "typical_measured_ns",
    "typical_replayed_ns", "error", "max_error",
    "basis", "basis_ns", "basis_measured_ns", "basis_error", "start_error_ns",
    "tasks", "edges", "kernels", "kernels_linked", "kernels_orphaned", "event_waits", "queue_depth",
    "collectives", "notes",
]  # fmt: skip
WHATIF = [
    "schema", "optimization", "options", "replayed_ns", "predicted_ns", "predicted_low_ns",
    "predicted_high_ns", "saving_ns", "speedup", "reason", "changed", "inserted", "removed", "throughput",
    "memory",
    "notes", "basis", "measured_ns", "replay_error", "typical_measured_ns", "typical_replayed_ns",
    "typical_predicted_ns", "uncertainty_ns", "held_ns", "left_in_replays_ns", "recorded", "steps", "before",
    "after", "contention", "rules", "code",
]  # fmt: skip


def parsed(done: Any) -> dict[str, Any]:
    """Return the one object a command printed; anything else, NaN and infinity included, fails."""
    assert done.code == 0, done.err

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    result: dict[str, Any] = json.loads(done.out, parse_constant=refuse)
    return result


def test_replay_prints_the_keys_of_the_contract(ask):
    result = parsed(ask("replay", "--trace", "step.parquet", "--json"))

    assert list(result) == REPLAY
    assert result["schema"] == 1
    assert result["trace"] == "step.parquet"
    assert [list(step) for step in result["steps"]] == [
        ["name", "rank", "measured_ns", "replayed_ns", "error"]
    ] * 3
    assert list(result["start_error_ns"]) == ["p50", "p95"]
    assert list(result["event_waits"]) == ["recorded", "inferred", "unresolved"]
    assert result["error"] == pytest.approx(result["replayed_ns"] / result["measured_ns"] - 1)


def test_replay_of_several_ranks_lists_collectives(ask):
    result = parsed(ask("replay", "--trace", "ranks", "--json"))

    assert result["ranks"] == [0, 1]
    keys = ["index", "name", "bytes", "ranks", "measured_end_spread_ns", "replayed_end_spread_ns"]
    assert [list(each) for each in result["collectives"]] == [keys] * 12
    assert {tuple(each["ranks"]) for each in result["collectives"]} == {(0, 1)}


def test_whatif_prints_the_keys_of_the_contract(ask):
    result = parsed(ask("whatif", "amp", "--json", "--trace", "step.parquet", "--math-speedup", "2.5"))

    assert list(result) == WHATIF
    assert result["schema"] == 1
    assert result["optimization"] == "amp"
    assert result["options"] == {"math_speedup": 2.5, "memory_speedup": 2.0, "model": "measured"}
    assert [list(step) for step in result["steps"]] == [["name", "rank", "replayed_ns", "predicted_ns"]] * 3
    parts = ["ns_by_cause", "ns_by_bound", "by_phase", "by_layer"]
    assert list(result["before"]) == list(result["after"]) == parts
    for side in (result["before"], result["after"]):
        assert len({sum(side[part].values()) for part in parts}) == 1  # each adds up to the step
    assert result["speedup"] == pytest.approx(result["replayed_ns"] / result["predicted_ns"])
    assert result["predicted_low_ns"] <= result["predicted_ns"] <= result["predicted_high_ns"]


def test_a_raw_trace_answers_as_its_import_does(ask):
    raw = parsed(ask("whatif", "amp", "--trace", "step.json.gz", "--json"))

    assert raw == parsed(ask("whatif", "amp", "--trace", "step.parquet", "--json"))


def test_the_same_question_gives_the_same_bytes(run):
    question = ("whatif", "scale", "--factor", "0.5", "--on", "cpu", "--trace", "step.parquet", "--json")

    assert run(*question).out == run(*question).out


def test_list_prints_every_optimization_with_its_options(ask):
    result = parsed(ask("whatif", "--list", "--json"))

    assert list(result) == ["schema", "optimizations"]
    by_name = {each["name"]: each for each in result["optimizations"]}
    assert {"amp", "fused-adam", "scale"} <= set(by_name)
    assert [list(each) for each in by_name.values()] == [["name", "summary", "options"]] * len(by_name)
    assert by_name["amp"]["options"][0] == {
        "name": "math_speedup", "flag": "--math-speedup", "type": "float", "default": 3.0, "required": False
    }  # fmt: skip
    factor = next(option for option in by_name["scale"]["options"] if option["name"] == "factor")
    assert (factor["default"], factor["required"]) == (None, True)


def test_info_and_import_print_one_object(ask, folder: Path):
    info = parsed(ask("info", "step.parquet", "--json"))
    imported = parsed(ask("import", "step.json.gz", "-o", "new.parquet", "--json"))

    assert list(info)[:3] == ["schema", "trace", "source"]
    assert info["covered"] == imported["covered"] == 3
    assert info["rows"] == imported["rows"] == sum(info["rows_by_kind"].values())
    assert info["verdicts"]["replay"]["answer"] == "yes"
    assert imported["trace"] == "new.parquet"
    assert imported["bytes"] == (folder / "new.parquet").stat().st_size


def test_what_a_users_code_prints_goes_to_stderr(run, folder: Path):
    (folder / "chatty.py").write_text(
        "print('loading')\n\ndef chatty(graph, *, loud: bool = False):\n    print('editing', loud)\n"
        "    graph.select().scale(1)\n"
    )

    done = run("whatif", "./chatty.py", "--loud", "--trace", "step.parquet", "--json")

    assert parsed(done)["options"] == {"loud": True}
    # Once for the estimated step, once for the recorded one.
    assert done.err == "loading\nediting True\nediting True\n"
