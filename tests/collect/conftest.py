"""Traces from events that are written down in a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kineto_text import document, write

from daydream.collect.importers import import_trace
from daydream.trace.trace import Trace


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Trace]:
    """Import events of Kineto, written to a file; options are those of the import."""

    def load(events: list[dict[str, Any]], **options: Any) -> Trace:
        return import_trace([write(tmp_path / "trace.json", document(events))], **options)

    return load
