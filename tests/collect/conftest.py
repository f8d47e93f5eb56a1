"""Traces from events that are written down in a test."""

import pytest
from kineto_text import document, write

from daydream.collect.importers import import_trace


@pytest.fixture
def imported(tmp_path):
    """Import events of Kineto, written to a file; options are those of the import."""

    def load(events, **options):
        return import_trace([write(tmp_path / "trace.json", document(events))], **options)

    return load
