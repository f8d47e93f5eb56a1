"""The ledger: what is measured beside what is predicted, and how that is summed up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "validation"))

import ledger  # noqa: E402


def entry(title: str, measured: float, predicted: float, *, recording: str = "a") -> ledger.Entry:
    return ledger.Entry("model", recording, title, measured, predicted, predicted * 0.9, predicted * 1.1)


def test_an_error_is_of_the_predicted_step_and_a_range_holds_or_does_not():
    near, far = entry("near", 0.50, 0.51), entry("far", 0.50, 0.60)
    assert (round(near.error, 6), near.in_range) == (0.02, True)
    assert (round(far.error, 6), far.in_range) == (0.20, False)


def test_pairs_are_ranked_within_a_recording_where_the_measurement_can_tell():
    # a: 0.5 and 0.8 right, 0.8 and 1.2 wrong, 0.5 and 1.2 right; 1.2 and 1.21 are too near to count, and
    # what is measured in another recording is compared with nothing here.
    found = [
        entry("half", 0.5, 0.5), entry("less", 0.8, 1.0), entry("more", 1.2, 0.9),
        entry("as much", 1.21, 0.7),
        entry("elsewhere", 0.1, 9.0, recording="b"),
    ]  # fmt: skip
    # half-less right, half-more right, half-as much right, less-more wrong, less-as much wrong
    assert ledger._ranked(found) == (3, 5)


def test_a_recorded_cpu_is_predicted_from_its_traces():
    folder = ROOT / "validation" / "cpu"
    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    recording = document["recordings"]["MLP"][0]
    replay = ledger.daydream.replay(folder / recording["trace"])
    found = [
        ledger._entry(replay, "MLP", recording["trace"], title, change)
        for title, change in recording["changes"].items()
    ]
    assert len(found) == 6
    assert not [one.refused for one in found if one.refused]
    assert all(abs(one.error) < 0.25 for one in found)


def test_a_row_is_the_median_of_the_recordings():
    found = [entry("half", 0.5, 0.5), entry("half", 0.52, 0.5, recording="b")]  # errors 0 and -3.8 %
    assert ledger._row(found) == "| model | half | 0.510 | 0.500 | -1.9% (-3.8% to +0.0%) |"


def test_the_page_says_which_public_traces_are_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "entries", lambda _: iter([entry("half", 0.5, 0.5)]))
    lines = list(ledger.page())
    assert sum("traces not at hand" in line for line in lines) == 9
    assert (lines[0], lines[-1]) == (ledger.BEGIN, ledger.END)
