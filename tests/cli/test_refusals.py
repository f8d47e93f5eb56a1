"""Where an optimization does not apply: the reason, and what to do, on every example."""

import re
from pathlib import Path

import pytest

from daydream.transforms.registry import names

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("example", ["mlp_cpu.json.gz", "synthetic_gpt_gpu.json.gz"])
@pytest.mark.parametrize("name", names())
def test_every_refusal_has_a_next_step(ask, name, example):
    done = ask("whatif", name, "--json", "--trace", str(EXAMPLES / example))

    if done.code:
        assert re.search(r"daydream (rank|collect) |--help'|give --\w+", done.err), done.err


def test_a_report_of_nsight_systems_is_refused_with_the_command_that_exports_it(ask, folder):
    (folder / "run.nsys-rep").write_bytes(b"NSYS" + bytes(range(256)))

    assert "nsys export --type sqlite run.nsys-rep" in ask("info run.nsys-rep").err


def test_info_notes_on_stderr_once_that_the_compiled_engine_is_missing(ask, monkeypatch):
    from daydream import compiled
    from daydream.cli import source

    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "_built", lambda: None)
    source.note_missing_engine.cache_clear()

    assert "compiled engine is missing" in ask("info step.json.gz").err
    assert "compiled engine" not in ask("info step.json.gz").err
