"""A few of the kills and races that `python -m tests.kills` runs by the hundred."""

import re
import subprocess
import sys

import pytest
from shared import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and locks of processes that were killed"),
]


def counted(*asked):
    """Run it in a process of its own: pytest's has threads, and is not to be forked."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kills", *asked],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_command_killed_at_any_moment_damages_nothing_and_the_next_leaves_nothing_behind():
    said = counted("--kills", "24", "--seed", "1")

    assert "24 kills: 0 damaged, 0 left behind" in said
    assert sum(int(number) for number in re.findall(r"(\d+) of them with something begun", said)) > 0


def test_of_three_writers_without_force_exactly_one_succeeds():
    assert "exactly one succeeded in 30" in counted("--rounds", "30")
