"""The public traces beside the repository, for tests that skip where they are absent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import daydream

TRACES = Path(__file__).resolve().parent.parent.parent / "shared" / "traces"


@cache
def _replay(path: Path) -> daydream.Replay:
    return daydream.replay(daydream.load(path))


def shared_trace(name: str) -> Path:
    """Return the path of a public trace, or skip the test."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the public trace {name} is not at hand")
    return path


def shared_replay(name: str) -> daydream.Replay:
    """Return the replay of a public trace (made once), or skip the test."""
    return _replay(shared_trace(name))
