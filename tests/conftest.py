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
