"""Peaks that were measured, the readers that judge, and how errors are summed up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "validation"))

from memory_changes import CHANGES, UNCHANGED  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "accuracy_of_memory", ROOT / "validation" / "memory_accuracy.py"
)
ledger: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = ledger  # as dataclasses ask for it
spec.loader.exec_module(ledger)


# -- the reader that judges: torch's own rows, by hand ------------------------------------------------


# -- what was measured --------------------------------------------------------------------------------


def test_all_ways_to_measure_agree():
    recordings = ledger.measured()["recordings"].values()
    alone = [
        one for recording in recordings for title, one in recording["peaks"].items()
        if title == UNCHANGED or CHANGES[title].ranks == 1
    ]  # fmt: skip

    assert len(alone) == 96
    for (
        one
    ) in alone:  # twice by the profiler, once below torch; and nothing is held but tensors that are known
        assert one["peak_bytes"] == one["again_bytes"] == one["counted_bytes"] == max(one["steps_bytes"])
        assert one["held_by_no_tensor_bytes"] == 0


def test_changes_are_predicted_from_the_trace_of_the_unchanged_step(monkeypatch):
    document = ledger.measured()
    monkeypatch.setattr(ledger, "measured", lambda: {"recordings": {"CNN": document["recordings"]["CNN"]}})
    found = list(ledger.rows())

    assert len(found) == 1 + len(CHANGES)
    assert not [one.refused for one in found if one.refused]
    assert abs(found[0].error) < 0.001  # the buffers of its norms are not listed in the trace
    assert all(abs(one.error) < 0.06 for one in found)


# -- how errors are summed up -------------------------------------------------------------------------
