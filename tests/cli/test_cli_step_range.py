"""`--steps A:B`: questions about some of the steps, from a profiler's file, a parquet trace, the cache."""

import json


def steps_of(done):
    """Return the names of the steps that `replay --json` tells of."""
    assert done.code == 0, done.err
    return [step["name"] for step in json.loads(done.out)["steps"]]


def test_a_range_is_the_same_from_every_source(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("DAYDREAM_CACHE", str(tmp_path / "cache"))
    whole = steps_of(ask("replay --trace step.parquet --json"))
    first = ask("replay --trace step.parquet --steps 1:3 --json")

    assert steps_of(first) == whole[:2] != whole
    assert ask("replay --trace step.parquet --steps 1:3 --json") == first  # kept
    assert steps_of(ask("replay --trace step.json.gz --steps 1:3 --json")) == whole[:2]
    assert steps_of(ask("replay --trace step.parquet --json")) == whole  # another question

    assert ask("import step.json.gz --steps 1:3 -o few.parquet").code == 0
    assert steps_of(ask("replay --trace few.parquet --json")) == whole[:2]


def test_a_range_without_a_step_is_one_line(ask):
    done = ask("info step.parquet --steps 50:")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "step.parquet: it has none of the steps 50:" in done.err
