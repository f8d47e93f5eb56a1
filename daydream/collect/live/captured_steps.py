"""The captured steps of a recording, from the profiler's stop to the saved trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daydream.collect.derive.steps import Ranges
from daydream.collect.live.capture import Captured
from daydream.collect.live.periods_of_steps import DIFFERENT
from daydream.parallel.engines import hand_back_freed_memory
from daydream.text import counted
from daydream.trace.trace import Trace

SKIPPED = "its update was skipped: the gradient scaler found infinite gradients"


@dataclass(frozen=True)
class CapturedSteps:
    """What the profiler recorded, the ranges of the steps in it, and the names of those without an update."""

    captured: Captured
    ranges: tuple[Ranges, str]
    skipped: set[str]

    @property
    def count(self) -> int:
        """How many steps have a step time: the first has none before it."""
        return len(self.ranges[0]) - 1

    @property
    def metadata(self) -> dict[str, Any]:
        """What goes with the trace."""
        return self.captured.recording.metadata

    def or_rather(self, earlier: CapturedSteps | None) -> CapturedSteps:
        """Return these steps or those captured earlier: all that were wanted, on all threads."""
        if earlier is None or self.worth > earlier.worth:
            return self
        return earlier

    @property
    def worth(self) -> tuple[int, ...]:
        """How many steps, and how many of their layers; the larger the better."""
        return self.count, -self.captured.unseen

    def save(self, output: Path, *, force: bool, wanted: int, reason: str) -> Trace:
        """Write the trace and return it; fewer steps than `wanted` are noted with the reason."""
        if self.count < wanted:
            self.metadata["notes"].append(
                f"{counted(self.count, 'step')} of {wanted} could be measured before {reason}."
            )
        hand_back_freed_memory()
        trace = self.captured.trace(self.ranges)
        for step in trace.metadata["steps"]:
            if step["name"] in self.skipped and (step["covered"] or step["why_not"] == DIFFERENT):
                step.update(covered=False, why_not=SKIPPED)
        trace.save(output, force=force)
        return trace
