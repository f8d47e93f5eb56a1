"""The fuzzer, for as long as CI has time: `python -m tests.fuzz` runs it by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_no_hostile_input_does_harm():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", "20000", "--seconds", "90"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    sys.stdout.write(done.stdout)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
