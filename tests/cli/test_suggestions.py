"""What `collect` suggests at its end: the largest gains, with their code; nothing that harms the run."""

import json
import time

import pytest

from daydream.cli import suggestions as module
from daydream.cli.suggestions import Suggestions, suggestions


def test_the_three_largest_of_a_trace_are_those_of_rank(folder, ask):
    found = suggestions(folder / "step.parquet", patience_s=100)
    ranked = json.loads(ask("rank --trace step.parquet --json").out)["changes"]

    assert found.missing is None
    assert found.entries[0] == ranked[0]
    assert 1 <= len(found.entries) <= 3
    assert len({each["code"] for each in found.entries}) == len(found.entries)
    lines = found.lines(folder / "step.parquet")
    assert lines[0].startswith("top suggestions")
    assert [line.strip() for line in lines[2::2]] == [each["code"] for each in found.entries]


def test_a_trace_that_cannot_be_ranked_is_told_in_a_line(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    found = suggestions(tmp_path / "broken.parquet", patience_s=100)

    assert found.entries == ()
    (line,) = found.lines(tmp_path / "broken.parquet")
    assert line.startswith("no suggestions: ranking failed (")


def test_ranking_is_not_waited_for(folder):
    began = time.monotonic()
    found = suggestions(folder / "step.parquet", patience_s=0.05)

    assert found.missing == "ranking took longer than 0.05 s"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_that_goes_wrong_gets_out(folder, monkeypatch, error):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(module.subprocess, "run", fail)

    assert suggestions(folder / "step.parquet").missing


def test_that_nothing_helps_is_said():
    (line,) = Suggestions().lines(module.Path("t.parquet"))

    assert line.startswith("no code change is predicted to shorten this step")
