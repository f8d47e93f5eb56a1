"""A command line run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Done:
    """A finished process."""

    code: int
    out: str
    err: str


def daydream(*args: str, folder: Path, **environment: str) -> Done:
    """Run the command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "daydream", *args], cwd=folder, capture_output=True, encoding="utf-8",
        env={**os.environ, "COLUMNS": "80", **environment}, timeout=300, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)
