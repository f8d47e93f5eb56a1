"""`daydream compare` as typed: the screens as reviewed, the JSON object, errors in one line.

After a change that is meant, write the screens again with `DAYDREAM_GOLDEN=write` and read the difference.
"""

import os
from pathlib import Path

import pytest
from machine.programs import PROGRAMS, queue_full

GOLDEN = Path(__file__).parent.parent / "golden"
SCREEN = "compare step.json.gz faster.json.gz"


@pytest.fixture
def pair(folder):
    """A folder in which `faster.json.gz` is the same program on a GPU that is twice as fast."""
    PROGRAMS["synchronizing"]().run(steps=30, gpu=0.5).write(folder / "faster.json.gz", 24, 27)
    return folder


@pytest.fixture
def many(pair):
    """The same with `nightly/`, whose GPU is slower from run 3 on, and `job/`, where that of rank 1 is."""
    for name, gpus in (("nightly/run-{}.json", (0.5, 0.51, 0.5, 1.0, 1.01)), ("job/rank{}.json", (0.5, 1.0))):
        for number, gpu in enumerate(gpus):
            file = pair / name.format(number)
            file.parent.mkdir(exist_ok=True)
            PROGRAMS["synchronizing"]().run(steps=30, gpu=gpu).write(file, 24, 27)
    return pair


@pytest.mark.parametrize(
    ("name", "typed"), [("compare", SCREEN), ("series", "compare nightly"), ("blame", "blame job")]
)
def test_the_screen_is_as_reviewed(many, ask, name, typed):
    done = ask(*typed.split())

    assert done.code == 0, done.err
    golden = GOLDEN / f"{name}.txt"
    screen = f"$ daydream {typed}\n{done.out}"
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        golden.write_text(screen, encoding="utf-8")
    assert screen == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ("step.json.gz nothing.parquet", 1, "nothing.parquet"),
        ("step.json.gz", 2, "missing argument 'AFTER'"),
        ("step.parquet step.parquet --whatif apm", 1, "Did you mean 'amp'?"),
        ("step.parquet step.parquet --whatif", 2, "--whatif"),
        ("step.parquet step.parquet --factor 0.5", 2, "--factor"),
        ("step.parquet step.parquet --whatif scale --factor -1", 2, "factor"),
        ("step.parquet step.parquet --steps auto", 1, "step.parquet"),
        ("step.parquet step.parquet --top 0", 2, "--top"),
    ],
)
def test_errors_take_a_line(ask, asked, code, said):
    done = ask(f"compare {asked}")

    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_of_two_traces_an_error_says_which(folder, ask):
    queue_full().run(steps=6).write(folder / "one.json", 3, 3)  # its kernels began before it
    done = ask("compare step.parquet one.json")

    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("error: one.json: no step of this trace can be judged")
