"""How much of a recording its covered steps are, and what the longest stretches in no step hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

MUCH = 0.2
"""Of a recording in no step at all, from which it is worth a note."""
WORTH_NAMING = 0.1
"""Of a stretch, and of the recording, that is named."""
MOST_NAMES = 2


@dataclass(frozen=True)
class Stretch:
    """A stretch of a recording that lies in no step, and its longest rows with their durations in ns."""

    start_ns: int
    end_ns: int
    where: str  # before, between or behind the steps
    longest: tuple[tuple[str, int], ...]

    @property
    def duration_ns(self) -> int:
        """How long it lasts."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RecordedTime:
    """What covered steps are of a recording (0 to 1), and where time lies in no step."""

    covered: float
    outside: float
    stretches: tuple[Stretch, ...]

    def note(self) -> str | None:
        """Return a sentence where much of the recording lies in no step."""
        if self.outside < MUCH or not self.stretches:
            return None
        parts = []
        for stretch in self.stretches:
            named = ", ".join(f"{name} {_ms(ns)}" for name, ns in stretch.longest)
            parts.append(
                f"{_ms(stretch.duration_ns)} {stretch.where} them" + (f" ({named})" if named else "")
            )
        return (
            f"The covered steps are {100 * self.covered:.0f} % of the recording; in no step are "
            f"{' and '.join(parts)}. Predictions leave that time out."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the share of covered steps and the stretches, for JSON."""
        return {
            "covered_share": self.covered,
            "outside": [
                {
                    "where": stretch.where, "start_ns": stretch.start_ns, "duration_ns": stretch.duration_ns,
                    "longest": [{"name": name, "duration_ns": ns} for name, ns in stretch.longest],
                }
                for stretch in self.stretches
            ],
        }  # fmt: skip


def recorded_time(trace: Trace) -> RecordedTime | None:
    """Return how much of a recording its steps are: the mean of its ranks, and stretches of the worst one.

    None where there are no rows or no steps with times.
    """
    steps: list[dict[str, Any]] = trace.metadata.get("steps", [])
    if not len(trace) or not steps:
        return None
    found = [_of_rank(trace, rank, steps) for rank in sorted({int(step.get("rank", 0)) for step in steps})]
    known = [each for each in found if each is not None]
    if not known:
        return None
    return replace(
        max(known, key=lambda each: each.outside), covered=float(np.mean([each.covered for each in known]))
    )


def _of_rank(trace: Trace, rank: int, steps: list[dict[str, Any]]) -> RecordedTime | None:
    mine = [step for step in steps if int(step.get("rank", 0)) == rank and "end_ns" in step]
    several = len({int(step.get("rank", 0)) for step in steps}) > 1
    start = np.asarray(trace["start_ns"], np.int64)
    rows = np.flatnonzero(np.asarray(trace["rank"]) == rank) if several else np.arange(len(trace))
    if not len(rows) or not mine:
        return None
    end = start + np.asarray(trace["duration_ns"], np.int64)
    first, last = int(start[rows].min()), int(end[rows].max())
    whole = max(last - first, 1)
    covered = sum(int(step.get("measured_ns") or 0) for step in mine if step.get("covered"))
    taken = sorted(
        (int(step["start_ns"]), max(int(step.get("completion_ns", 0)), int(step["end_ns"]))) for step in mine
    )
    stretches, at = [], first
    for begin, stop in [*taken, (last, last)]:
        if begin - at >= WORTH_NAMING * whole:
            where = "before" if at == first else "behind" if begin == last else "between"
            stretches.append(Stretch(at, begin, where, _longest(trace, rows, start, end, at, begin)))
        at = max(at, stop)
    outside = sum(stretch.duration_ns for stretch in stretches)
    return RecordedTime(min(covered / whole, 1.0), outside / whole, tuple(stretches))


def _longest(
    trace: Trace, rows: np.ndarray, start: np.ndarray, end: np.ndarray, begin: int, stop: int
) -> tuple[tuple[str, int], ...]:
    """Return the longest rows of the host inside a stretch, that do not overlap."""
    host = trace.is_kind("operator", "annotation", "runtime")[rows]
    inside = rows[host & (start[rows] >= begin) & (end[rows] <= stop)]
    order = inside[np.lexsort((inside, -(end - start)[inside]))]
    found: list[int] = []
    for row in order[:64].tolist():
        if end[row] - start[row] < WORTH_NAMING * (stop - begin) or len(found) == MOST_NAMES:
            break
        if all(end[row] <= start[other] or start[row] >= end[other] for other in found):
            found.append(row)
    names = trace.values("name", np.array(found, np.int64))
    return tuple(
        (_short(str(name)), int(end[row] - start[row])) for name, row in zip(names, found, strict=True)
    )


def _short(name: str) -> str:
    return name if len(name) <= 48 else name[:47] + "…"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.{0 if ns >= 100e6 else 1}f} ms"
