"""No test reads or writes the cache of whoever runs it; those of the cache name a folder of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["DAYDREAM_CACHE"] = "off"

SKIPPED = os.environ.get(
    "SKIPPED_TESTS"
)  # a file that gets the ids of what is skipped: `pytest @FILE` runs it


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if SKIPPED and report.skipped and not hasattr(report, "wasxfail"):
        with Path(SKIPPED).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(scope="session")
def sixty_steps(tmp_path_factory):
    """A trace of sixty steps, as a file, beside it `trace.json`, as a profiler would write it."""
    from long_recording import record

    return record(tmp_path_factory.mktemp("sixty_steps"))


@pytest.fixture
def long(sixty_steps, monkeypatch):
    """The trace of sixty steps, which is a long recording here: a third of it is enough."""
    from long_recording import look_at_some

    look_at_some(sixty_steps, monkeypatch)
    return sixty_steps
