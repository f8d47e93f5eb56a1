"""A prediction beside what came of it: the change was made for real, in the run that was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from daydream.comparison import Comparison
from daydream.errors import DaydreamError
from daydream.trace import Trace

FEWEST_ROUNDS = 3  # of fewer no median is worth much
RESTLESS = 0.05  # an A/A control further from 1 tells of a machine that changes its speed


@dataclass(frozen=True)
class Blocks:
    """Median step times of blocks that took turns, in ns, one a round: unchanged, again, changed."""

    base: list[float]
    again: list[float]
    changed: list[float]

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return len(self.base)

    @property
    def baseline_ns(self) -> float:
        """The unchanged step."""
        return median(self.base)

    @property
    def confirmed_ns(self) -> float:
        """The changed step: the unchanged one times what the change leaves, by rounds."""
        return self.baseline_ns * self._ratio(self.changed)

    @property
    def speedup(self) -> float:
        """How many times faster the changed step is; compared within rounds."""
        return 1 / self._ratio(self.changed)

    @property
    def control(self) -> float:
        """The unchanged step against itself: 1 on a machine at rest."""
        return self._ratio(self.again)

    def _ratio(self, times: list[float]) -> float:
        return median(one / other for one, other in zip(times, self.base, strict=True))


@dataclass(frozen=True)
class Confirmation:
    """What was predicted from the recorded steps alone, and what the real change gave.

    Both are of the step without a profiler; where the trace cannot say that, of the recorded one.
    """

    comparison: Comparison
    blocks: Blocks

    @property
    def predicted_speedup(self) -> float:
        """The predicted one; of the step without a profiler where it is known."""
        return (self.comparison.anchored or self.comparison.unprofiled or self.comparison).speedup

    @property
    def predicted_ns(self) -> float:
        """The predicted step: the measured baseline over the predicted speedup."""
        return self.blocks.baseline_ns / self.predicted_speedup

    @property
    def error(self) -> float:
        """Relative error of the predicted step time, signed."""
        return self.predicted_ns / self.blocks.confirmed_ns - 1

    @property
    def restless(self) -> bool:
        """Whether the machine changed its speed too much for the confirmed figure to be believed."""
        return abs(self.blocks.control - 1) > RESTLESS

    def to_json(self) -> dict[str, Any]:
        """Return the comparison's document, with what was confirmed."""
        document = self.comparison.to_json()
        return {
            **document,
            "recorded_predicted_ns": document["predicted_ns"],
            "baseline_ns": round(self.blocks.baseline_ns),
            "predicted_ns": round(self.predicted_ns),
            "confirmed_ns": round(self.blocks.confirmed_ns),
            "predicted_speedup": self.predicted_speedup,
            "confirmed_speedup": self.blocks.speedup,
            "error": self.error,
            "control": self.blocks.control,
            "rounds": self.blocks.rounds,
        }


def blocks_of(trace: Trace) -> Blocks:
    """Return the blocks that a run of `daydream confirm` left in its trace.

    Raises `DaydreamError` if the change could not be made, or the script ended too soon.
    """
    found = trace.metadata.get("confirmed")
    if not found:
        raise DaydreamError(
            "the script ended before the change could be made: it takes about 35 steps more than `collect`, "
            "or fewer with --rounds and --block-steps"
        )
    if "failed" in found:
        raise DaydreamError(f"the change could not be made in the script: {found['failed']}")
    blocks = Blocks(**found)
    if blocks.rounds < FEWEST_ROUNDS:
        raise DaydreamError(
            f"the script ended after {blocks.rounds} rounds with and without the change; "
            f"at least {FEWEST_ROUNDS} are needed: let it train longer, or take a lower --block-steps"
        )
    return blocks
