"""How much of a recording its steps are, and what lies outside."""

from typing import Any

import numpy as np

from daydream import Trace
from daydream.trace.recorded_time import LongRow, recorded_time

MS = 1_000_000


def recorded(rows, steps):
    """Return a trace of ranges (name, begin, end in ms) with steps (begin, end in ms, covered)."""
    names = [name for name, _, _ in rows]
    columns = {
        "kind": np.zeros(len(rows), np.int8), "name": np.arange(len(rows)),
        "start_ns": np.array([begin * MS for _, begin, _ in rows]),
        "duration_ns": np.array([(end - begin) * MS for _, begin, end in rows]),
    }  # fmt: skip
    listed: list[dict[str, Any]] = [
        {
            "name": f"step {number}", "rank": 0, "start_ns": begin * MS, "end_ns": end * MS,
            "completion_ns": end * MS, "measured_ns": (end - begin) * MS, "covered": covered,
        }
        for number, (begin, end, covered) in enumerate(steps)
    ]  # fmt: skip
    return Trace(columns, {"kind": ["annotation"], "name": names}, {"steps": listed})


STEPS = [(400, 500, False), (500, 600, True), (600, 700, True)]


def test_what_lies_in_no_step_is_named():
    rows = [
        ("run", 0, 1000), ("load weights", 10, 300), ("read file", 20, 290), ("compile", 310, 390),
        ("step", 400, 700), ("evaluate", 710, 990),
    ]  # fmt: skip
    found = recorded_time(recorded(rows, STEPS))
    assert found is not None
    assert (found.covered_share, found.outside_share) == (0.2, 0.7)
    assert [(each.where, each.duration_ns // MS) for each in found.outside] == [
        ("before", 400),
        ("behind", 300),
    ]
    assert [(row.name, row.duration_ns // MS) for row in found.outside[0].longest] == [
        ("load weights", 290),
        ("compile", 80),
    ]
    assert found.note() == (
        "The covered steps are 20% of the recording; in no step are 400 ms before them (load weights 290 "
        "ms, compile 80.0 ms) and 300 ms behind them (evaluate 280 ms). Predictions leave that time out."
    )
    assert found.to_json()["outside"][1]["longest"] == [{"name": "evaluate", "duration_ns": 280 * MS}]


def test_a_stall_between_steps_is_named():
    steps = [(0, 100, False), (100, 200, True), (400, 500, True)]
    found = recorded_time(recorded([("run", 0, 500), ("save", 210, 380)], steps))
    assert found is not None
    (stall,) = found.outside
    assert (stall.where, stall.longest) == ("between", (LongRow("save", 170 * MS),))


def test_without_rows_or_steps_nothing_is_told():
    assert recorded_time(recorded([("run", 0, 5)], [])) is None
    assert recorded_time(recorded([], STEPS)) is None
