"""The file that the profiler writes: its owner's alone, and gone whatever comes of it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import MODELS  # noqa: E402
from live_recording import record, train  # noqa: E402

from daydream.collect.live import capture  # noqa: E402
from daydream.errors import DaydreamError, TraceError  # noqa: E402


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int]]:
    """Return the profiler's files as they are read, with their modes; reading fails."""
    found: list[tuple[Path, int]] = []

    def read(path: Path, *_: Any) -> Any:
        found.append((path, stat.S_IMODE(path.stat().st_mode)))
        raise TraceError("it ends early")

    monkeypatch.setattr(capture, "read_profile", read)
    return found


def test_the_profilers_file_is_its_owners_and_a_full_disk_is_one_line(tmp_path, written) -> None:
    with pytest.raises(DaydreamError, match=r"^cannot write what the profiler recorded to .*disk full\?.*$"):
        record(train(*MODELS["mlp"]()), tmp_path)

    [(path, mode)] = written
    assert mode == 0o600
    assert not path.parent.exists()
