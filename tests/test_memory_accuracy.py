"""Peaks that were measured, the readers that judge, and how errors are summed up."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "validation"))

from memory_changes import CHANGES, UNCHANGED  # noqa: E402
from memory_reader import Steps, read  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "accuracy_of_memory", ROOT / "validation" / "memory_accuracy.py"
)
ledger: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = ledger  # as dataclasses ask for it
spec.loader.exec_module(ledger)


def row(predicted, measured=100, low=0, high=0, **more):
    return ledger.Row("A", "change", "judgement", 50, measured, "backward", predicted, "", low, high, **more)


# -- the reader that judges: torch's own rows, by hand ------------------------------------------------


def recording(tmp_path, *rows):
    memory = [
        {"name": "[memory]", "ts": when, "args": {"Device Type": 0, "Bytes": nbytes, "Total Allocated": total,
                                                  "Ev Idx": place}}
        for place, (when, nbytes, total) in enumerate(rows)
    ]  # fmt: skip
    marks = [(Steps.STEP + "0", 10, 10), (Steps.STEP + "1", 30, 10), (Steps.PHASE + "forward", 10, 3)]
    marks += [(Steps.PHASE + "backward", 13, 7), (Steps.PHASE + "backward", 31, 8)]
    named = [{"name": name, "cat": "user_annotation", "ts": ts, "dur": dur} for name, ts, dur in marks]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*named, *reversed(memory)]}))
    return path


def test_a_step_holds_at_most_what_its_rows_sum_up_to(tmp_path):
    #        before   |----- step 0 -----|  between | step 1 |
    path = recording(
        tmp_path, (1, 100, 100), (11, 20, 120), (14, 30, 150), (15, -50, 100), (25, 7, 107), (32, 1, 108)
    )

    assert read(path) == Steps([100, 107, 108], [150, 108], ["backward", "backward"])


def test_a_sum_that_contradicts_a_total_judges_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"120 bytes .* 121 by a row"):
        read(recording(tmp_path, (1, 100, 100), (11, 20, 121)))


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


def test_a_refusal_is_a_miss_of_100_per_cent_and_outside_of_any_range():
    refused = row(None, refused="why")

    assert (refused.error, refused.holds) == (1.0, False)
    *_, line = ledger.table({"g": [refused]})
    assert (
        line == "| g | judgement | A | change | 0.00 | 0.00 |  | backward |  |  |  |  | +100.00% | no | why |"
    )


def test_a_range_holds_to_the_byte():
    assert row(110, 100, 90, 110).holds
    assert not row(100_040, 100_000, 100_040, 100_040).holds
