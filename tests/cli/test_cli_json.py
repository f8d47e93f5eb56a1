"""`--json`: one object with exactly the keys of docs/json.md, and nothing else on stdout."""

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def parsed(done):
    """Return the one object a command printed; anything else, NaN and infinity included, fails."""
    assert done.code == 0, done.err

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(done.out, parse_constant=refuse)


@pytest.mark.parametrize(
    "command",
    [
        "info step.parquet", "replay --trace step.parquet", "whatif amp --trace step.parquet",
        "explain --trace step.parquet", "rank --pairs 0 --no-curves --trace step.parquet",
        "sweep scale --on gpu --set factor=0.5 --trace step.parquet", "compare step.parquet step.parquet",
        "scaling --workers 1,4 --bandwidth 10 --gradient-mb 10 --trace step.parquet",
    ],
)  # fmt: skip
def test_json_has_the_keys_of_the_page(ask, command):
    result = parsed(ask(*command.split(), "--json"))

    section = PAGE.partition(f"## `daydream {command.split()[0]} --json`\n")[2].partition("\n##")[0]
    assert result.pop("schema") == 1
    assert result.pop("trace", "step.parquet") == "step.parquet"
    rows = [line.partition(" | ")[0] for line in section.splitlines() if line.startswith("`")]
    assert set(re.findall(r"`(\w+)", " ".join(rows))) - {"schema", "trace"} <= set(result)


def test_replay_of_several_ranks_lists_collectives(ask):
    result = parsed(ask("replay --trace ranks --json"))

    assert result["ranks"] == [0, 1]
    assert [each["ranks"] for each in result["collectives"]] == [[0, 1]] * 12
    assert result["error"] == pytest.approx(result["replayed_ns"] / result["measured_ns"] - 1)


def test_each_breakdown_adds_up_to_the_step(ask):
    result = parsed(ask("whatif amp --json --trace step.parquet --math-speedup 2.5"))

    assert result["options"] == {"math_speedup": 2.5, "memory_speedup": 2.0, "model": "measured"}
    for side in (result["before"], result["after"]):
        assert len({sum(part.values()) for part in side.values()}) == 1
    assert result["speedup"] == pytest.approx(result["replayed_ns"] / result["predicted_ns"])
    assert result["predicted_low_ns"] <= result["predicted_ns"] <= result["predicted_high_ns"]


def test_a_raw_trace_answers_as_its_import_does(ask):
    raw = parsed(ask("whatif amp --trace step.json.gz --json"))

    assert raw == parsed(ask("whatif amp --trace step.parquet --json"))


def test_the_same_question_gives_the_same_bytes(ask):
    question = ("whatif", "scale", "--factor", "0.5", "--on", "cpu", "--trace", "step.parquet", "--json")

    assert ask(*question).out == ask(*question).out


def test_list_prints_every_optimization_with_its_options(ask):
    listed = parsed(ask("whatif --list --json"))["optimizations"]

    options = {each["name"]: each["options"] for each in listed}
    assert options["amp"][0] == {
        "name": "math_speedup", "flag": "--math-speedup", "type": "float", "default": 3.0, "required": False
    }  # fmt: skip
    (factor,) = [each for each in options["scale"] if each["name"] == "factor"]
    assert (factor["default"], factor["required"]) == (None, True)


def test_what_a_users_code_prints_goes_to_stderr(ask, folder):
    (folder / "chatty.py").write_text(
        "print('loading')\n\ndef chatty(graph, *, loud: bool = False):\n    print('editing', loud)\n"
        "    graph.select().scale(1)\n"
    )

    done = ask("whatif ./chatty.py --loud --trace step.parquet --json")

    assert parsed(done)["options"] == {"loud": True}
    # Once for the estimated step, once for the recorded one.
    assert done.err == "loading\nediting True\nediting True\n"
