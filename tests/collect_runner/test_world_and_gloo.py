"""A fake world asks for the collectives of the real job, and holds as much memory: two and four ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs real jobs")
pytestmark = pytest.mark.slow

WORLDS = Path(__file__).parents[2] / "validation" / "worlds.py"


def test_collectives_and_peaks_are_those_of_the_real_job():
    words = [sys.executable, WORLDS, "--part", "asked", "--model", "MLP", "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)

    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == [
        "ddp", "fsdp", "tp", "1f1b", "ddp", "fsdp", "tp", "fsdp x tp", "1f1b",
    ]  # fmt: skip
    assert [row["unequal"] for row in rows] == [[]] * len(rows)
    assert all(row["asked"] >= 48 and abs(row["peak_error"]) <= 0.02 for row in rows)
