"""`daydream example`: what comes with daydream is written where one is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daydream.cli.collect import EXAMPLES

SOURCE = Path(__file__).resolve().parents[2] / "examples"


def test_without_a_name_they_are_listed(run):
    done = run("example")

    assert [line.split()[0] for line in done.out.splitlines()] == list(EXAMPLES)
    assert done.err == "next: daydream example synthetic_gpt_gpu.json.gz\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_the_repository_holds(run, folder, name):
    done = run("example", name, "-o", f"copy_of_{name}")

    assert done.code == 0
    assert (folder / f"copy_of_{name}").read_bytes() == (SOURCE / name).read_bytes()
    assert f"copy_of_{name}" in done.err.splitlines()[-1]


def test_the_command_that_is_named_next_answers(run, folder):
    run("example", "mlp_cpu.json.gz")

    assert run("explain", "--trace", "mlp_cpu.json.gz").code == 0


def test_nothing_is_written_over_and_unknown_names_are_refused(run, folder):
    (folder / "train_gpt.py").write_text("mine")
    kept, unknown = run("example", "train_gpt.py"), run("example", "gpt")

    assert (kept.code, unknown.code) == (1, 1)
    assert (folder / "train_gpt.py").read_text() == "mine"
    assert "unknown example 'gpt'; choose synthetic_gpt_gpu.json.gz" in unknown.err
    assert run("example", "train_gpt.py", "--force").code == 0


def test_json_says_where_it_is(run, folder):
    found = json.loads(run("example", "mlp_cpu.json.gz", "--json").out)

    assert (folder / found["path"]).stat().st_size == found["bytes"]
    assert [each["name"] for each in json.loads(run("example", "--json").out)["examples"]] == list(EXAMPLES)
