"""Traces from events that are written down in a test, or from files beside the repository."""

import pytest
from graph.small_traces import kineto, write

from daydream.collect.importers import import_trace


@pytest.fixture
def imported(tmp_path):
    """Import rows, written to a file as Kineto's events; options are those of the import."""

    def load(*rows, header=None, **options):
        return import_trace([write(tmp_path / "trace.json", kineto(*rows, **header or {}))], **options)

    return load
