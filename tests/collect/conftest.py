"""Traces from events that are written down in a test, and from files made unsound."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kineto_text import document, write

from daydream.collect.importers import import_trace
from daydream.errors import TraceError
from daydream.trace.trace import Trace


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Trace]:
    """Import events of Kineto, written to a file; options are those of the import."""

    def load(events: list[dict[str, Any]], **options: Any) -> Trace:
        return import_trace([write(tmp_path / "trace.json", document(events))], **options)

    return load


@pytest.fixture
def refusals() -> Callable[..., list[str]]:
    """Import 300 damaged copies of files, in turn; return what those that are refused say."""

    def load(files: dict[Path, bytes], *, seed: int) -> list[str]:
        chance, said = random.Random(seed), []
        for number in range(300):
            path, sound = list(files.items())[number % len(files)]
            damaged = bytearray(sound)
            if number % 3:
                for _ in range(chance.randint(1, 4)):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            else:
                del damaged[chance.randrange(len(damaged)) :]
            path.write_bytes(damaged)
            try:
                import_trace([path])
            except TraceError as error:
                said.append(str(error))
        return said

    return load
