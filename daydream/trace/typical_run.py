"""The steps that stand for a long recording: an answer takes no longer, however much was recorded.

A run of steps that follow each other is typical where its mean measured step is that of all covered steps
within 1 %. So what comes now and then (a slow batch, an evaluation) is in it as often as in the recording.
Where no short run is typical, longer ones are looked at, in the end all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

TYPICAL = "typical"
ENOUGH = 200_000  # rows: an answer from so many takes two seconds
LONG = 2 * ENOUGH  # rows: of fewer all steps are looked at
FEWEST = 4  # steps: fewer tell little of how steps vary
ALIKE = 0.01  # of the mean step


class TypicalRun(NamedTuple):
    """Steps of each rank from `first` to before `end`, counted from 0, which stand for all `of` them.

    Their mean measured step is `off` that of all, relatively.
    """

    first: int
    end: int
    of: int
    off: float

    @property
    def note(self) -> str:
        """What a reader of an answer should know."""
        off = f"{100 * max(self.off, 0.001):.1f} %"
        return (
            f"{self.end - self.first:,} of {self.of:,} steps stand for all (--steps {self.first}:{self.end}, "
            f"with a mean within {off} of that of all); --steps : takes them all."
        )


def steps_by_rank(steps: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Return the numbers of the steps of each rank, in their order."""
    found: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        found.setdefault(int(step.get("rank", 0)), []).append(number)
    return found


def is_long(rows: int) -> bool:
    """Return whether a recording of so many rows may be answered from some of its steps."""
    return rows > LONG


def typical_run(metadata: Mapping[str, Any], rows: int) -> TypicalRun | None:
    """Return the shortest typical run of a recording of so many rows; None if all its steps are looked at.

    All are where it is short, or where its ranks have different numbers of steps. Of equally long runs it is
    the one of which about as many steps are longer than the median as of all, the last of those.
    """
    steps = metadata.get("steps", [])
    by_rank = list(steps_by_rank(steps).values())
    count = len(by_rank[0]) if by_rank else 0
    length = max(FEWEST, ENOUGH * count // max(rows, 1))
    if not is_long(rows) or length >= count or any(len(mine) != count for mine in by_rank):
        return None
    covered, measured = (  # of each place, the ranks' steps together
        np.array([[steps[number].get(name) or 0 for number in mine] for mine in by_rank], np.int64)
        for name in ("covered", "measured_ns")
    )
    measured *= covered
    median = np.median(measured[covered > 0]) if covered.any() else 0
    judged, total, above = (
        np.append(0, np.cumsum(each.sum(axis=0))) for each in (covered, measured, measured > median)
    )
    if total[-1] <= 0:
        return None
    mean, share = total[-1] / judged[-1], above[-1] / judged[-1]
    while length < count:
        inside, took, longer = (each[length:] - each[:-length] for each in (judged, total, above))
        enough = inside >= FEWEST * len(by_rank)
        inside = np.maximum(inside, 1)
        off = np.where(enough, np.abs(took / inside - mean) / mean, np.inf)
        if (off <= ALIKE).any():
            unlike = np.where(off <= ALIKE, np.abs(longer / inside - share), np.inf)
            first = len(unlike) - 1 - int(np.argmin(unlike[::-1]))
            return TypicalRun(first, first + length, count, float(off[first]))
        length += length // 4
    return None
