"""Durations of steps that run without a profiler, between the same hooks as the captured ones."""

from __future__ import annotations

import time
from collections.abc import Callable


class UnprofiledSteps:
    """Takes the time at every end of a step until `wanted` ordinary steps are known.

    The first step runs on cold caches and is left out; so are steps without an update.
    """

    def __init__(self, wanted: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._wanted, self._clock = wanted, clock
        self._ends = [clock()]
        self._left_out: set[int] = {1}

    @property
    def enough(self) -> bool:
        """Whether as many are known as were wanted."""
        return len(self.durations_ns()) >= self._wanted

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        self._left_out.add(len(self._ends))

    def end_step(self) -> None:
        """Take the time."""
        self._ends.append(self._clock())

    def durations_ns(self) -> list[int]:
        """Return the durations of the ordinary steps."""
        ends = self._ends
        return [ends[at] - ends[at - 1] for at in range(1, len(ends)) if at not in self._left_out]
