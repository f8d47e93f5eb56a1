"""`daydream mcp` without a client: what an answer holds, and what is said without the package."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name
from unittest import mock

import msgspec
import pytest
from cli.command_line import daydream as command_line

from daydream.agents.questions import RECORDS, brief, schema
from daydream.cli import main


def run(*words):
    """Run `daydream mcp` where its package is missing."""
    with mock.patch.dict(sys.modules, {"mcp": None}):
        return command_line("mcp", *words, folder=".")


def test_help_and_the_skill_need_no_package():
    for words, first in ((["--help"], "Usage: daydream mcp"), (["--skill"], "---\nname: daydream")):
        done = run(*words)
        assert done.code == 0, done.err
        assert done.out.startswith(first)
    path = Path(run("--skill-path").out.strip())
    assert path.read_text(encoding="utf-8") == run("--skill").out


def test_without_the_package_it_says_what_to_install():
    done = run()
    assert done.code == 1
    assert done.out == ""
    assert "pip install -e '.[mcp]'" in done.err
    assert "Traceback" not in done.err


def test_a_root_that_is_none_is_said(capsys):
    with pytest.raises(SystemExit) as done:
        main(["mcp", "--root", "/no/such/folder"])
    assert done.value.code == 1
    assert capsys.readouterr().err.startswith("error: --root /no/such/folder: ")


def test_an_answer_has_the_largest_parts_and_the_length_of_what_was_cut():
    document = {
        "schema": 1,
        "trace": "/home/someone/t.parquet",
        "speedup": 1.23456,
        "options": {"ratio": 0.000001},
        "notes": [f"note {number}\x1b[31m" for number in range(7)],
        "rules": ["x" * 1000],
        "uncertainty_ns": dict.fromkeys("abcdefgh", 1),
        "before": {"by_layer": {"a": 1, "b": -9, "c": 3, "d": 4, "e": 5, "f": 6}},
        "steps": [{"name": "1", "rank": 0, "replayed_ns": 10, "predicted_ns": None}],
    }

    found = brief("whatif", document, {})

    assert {"schema", "trace"}.isdisjoint(found)
    assert found["cut"] == {"notes": 7}
    assert found["notes"] == [f"note {number}?[31m" for number in range(5)]
    assert len(found["rules"][0]) == 160
    assert found["before"] == {"by_layer": {"b": -9, "f": 6, "e": 5, "d": 4, "c": 3}}
    assert (found["speedup"], found["options"]) == (1.2346, {"ratio": 0.000001})
    assert len(found["uncertainty_ns"]) == 8  # some may be unknown: none is larger
    assert found["steps"] == document["steps"]


def test_lists_within_lists_are_shorter_and_a_command_is_whole():
    command = ["daydream", "whatif", "amp"]
    document = {"avoidable": [{"whatifs": [{"command": command, "notes": ["a", "b"]}, {}]}] * 9}

    found = brief("explain", document, {"avoidable": 2})

    assert found == {"avoidable": [{"whatifs": [{"command": command, "notes": ["a"]}]}] * 2,
                     "cut": {"avoidable": 9}}  # fmt: skip


@pytest.mark.parametrize("tool", RECORDS)
def test_the_schema_of_an_answer_is_that_of_the_record(tool):
    record = resolve_name(RECORDS[tool])
    found = schema(tool)
    assert list(found["properties"]) == [*record.__struct_encode_fields__, "cut", "falsified_by"]
    assert found["$defs"] == msgspec.json.schema(record)["$defs"]
