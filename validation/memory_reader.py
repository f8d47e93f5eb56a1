"""The memory that a file of torch's profiler records for a CPU: a reader of its own, so that it can judge daydream's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

CPU = 0  # the device type of a row


@dataclass(frozen=True)
class Steps:
    """What marked steps hold, in bytes: before each and after the last, the most of each, and in which phase that is."""

    STEP: ClassVar[str] = "measured step "  # the names of the marks
    PHASE: ClassVar[str] = "measured phase "

    before: list[int]
    peaks: list[int]
    phases: list[str]


def read(path: Path) -> Steps:
    """Return what the marked steps of a recording hold; it must have begun before there were any tensors.

    Raises `ValueError` where the running sum contradicts the total that each row tells.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    held, events = 0, []
    memory = [row for row in rows if row["name"] == "[memory]" and row["args"]["Device Type"] == CPU]
    for row in sorted(memory, key=lambda row: (row["ts"], row["args"]["Ev Idx"])):
        held += row["args"]["Bytes"]
        if held != row["args"]["Total Allocated"]:
            raise ValueError(
                f"{held:,} bytes are held by the sum of rows, {row['args']['Total Allocated']:,} by a row"
            )
        events.append((row["ts"], held))
    steps = sorted((row["ts"], row["dur"]) for row in rows if _named(row, Steps.STEP))
    phases = [row for row in rows if _named(row, Steps.PHASE)]
    before, peaks, at = [], [], []
    for start, duration in steps:
        before.append(_last(events, start))
        inside = [event for event in events if start <= event[0] <= start + duration]
        when, most = max(inside, key=lambda event: event[1])
        peaks.append(max(most, before[-1]))
        at.append(_phase(phases, when))
    before.append(_last(events, sum(steps[-1])))
    return Steps(before, peaks, at)


def _named(row: dict[str, Any], mark: str) -> bool:
    return row.get("cat") == "user_annotation" and row["name"].startswith(mark)


def _last(events: list[tuple[float, int]], until: float) -> int:
    return next((held for when, held in reversed(events) if when < until), 0)


def _phase(phases: list[dict[str, Any]], when: float) -> str:
    inside = [row for row in phases if row["ts"] <= when <= row["ts"] + row["dur"]]
    return str(inside[0]["name"].removeprefix(Steps.PHASE)) if inside else "between"
