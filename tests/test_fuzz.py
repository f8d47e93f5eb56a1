"""The one campaign of hostile input, for as long as there is time: `python -m tests.fuzz` runs it by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("cases", "seconds"), [("150", "60"), pytest.param("20000", "90", marks=pytest.mark.slow)]
)
def test_no_hostile_input_does_harm(cases, seconds):
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", cases, "--seconds", seconds],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    sys.stdout.write(done.stdout)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
