"""A prediction beside what came of it: the change was made for real, in the run that was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from daydream.collect.live.alternating import steps_needed
from daydream.errors import DaydreamError, GraphError
from daydream.predict.difference import Difference, compare
from daydream.predict.prediction import Prediction
from daydream.text import counted
from daydream.trace.trace import Trace

FEWEST_ROUNDS = 3  # of fewer no median is worth much
ROUNDS, BLOCK_STEPS = 5, 5  # if not asked otherwise
SHORT_BLOCKS = 2  # steps of a block, for scripts of few steps
APART = 0.1  # recorded steps that tell a speedup this far from the timed ones' were held up by something
PREDICTED = ("predicted_ns", "predicted_low_ns", "predicted_high_ns")
PREDICTION, CHANGED = "the prediction", "the changed steps"
RESTLESS = 0.05  # an A/A control further from 1 tells of a machine that changes its speed


@dataclass(frozen=True)
class Blocks:
    """Mean step times of blocks that took turns, in ns, one a round: unchanged, again, changed."""

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
    `difference` holds the recorded steps with the change against the prediction for recorded ones: where
    in the step it came true. None where the changed steps could not be recorded.
    """

    comparison: Prediction
    blocks: Blocks
    difference: Difference | None = None

    @property
    def predicted_speedup(self) -> float | None:
        """The predicted one; of the step without a profiler where it is known. None without a prediction."""
        if self.comparison.reason:
            return None
        known = self.comparison.as_run
        return known.replayed_ns / known.simulated_ns if known.simulated_ns else float("inf")

    @property
    def predicted_ns(self) -> float | None:
        """The predicted step: the measured baseline over the predicted speedup."""
        times = self.predicted_speedup
        return None if times is None else self.blocks.baseline_ns / times

    @property
    def predicted_range_ns(self) -> tuple[int, int] | None:
        """Both ends of the predicted step's range, of the same step as `predicted_ns`; None without one."""
        middle, known = self.predicted_ns, self.comparison.as_run
        if middle is None or not known.predicted_ns:
            return None
        scale, off = middle / known.predicted_ns, known.uncertainty
        return max(round(middle - scale * off.shorter_ns), 0), round(middle + scale * off.total_ns)

    @property
    def error(self) -> float | None:
        """Relative error of the predicted step time, signed."""
        return None if self.predicted_ns is None else self.predicted_ns / self.blocks.confirmed_ns - 1

    @property
    def restless(self) -> bool:
        """Whether the machine changed its speed too much for the confirmed figure to be believed."""
        return abs(self.blocks.control - 1) > RESTLESS

    @property
    def recorded_speedup(self) -> float | None:
        """How many times faster the changed step is as recorded; None where it was not."""
        if self.difference is None or not self.difference.after.step_ns:
            return None
        return self.comparison.replayed_ns / self.difference.after.step_ns

    @property
    def apart(self) -> bool:
        """Whether the recorded steps tell another speedup than the timed ones: something disturbed them."""
        recorded = self.recorded_speedup
        return recorded is not None and abs(recorded / self.blocks.speedup - 1) > APART

    def to_json(self) -> dict[str, Any]:
        """Return the comparison's document, with what was confirmed.

        `predicted_ns` and both ends of its range are of the step that was timed, without a profiler; those of
        the recorded step begin with `recorded_`.
        """
        document = self.comparison.to_json()
        low, high = self.predicted_range_ns or (None, None)
        return {
            **document,
            **{f"recorded_{key}": document[key] for key in PREDICTED},
            "predicted_low_ns": low,
            "predicted_high_ns": high,
            "baseline_ns": round(self.blocks.baseline_ns),
            "predicted_ns": None if self.predicted_ns is None else round(self.predicted_ns),
            "confirmed_ns": round(self.blocks.confirmed_ns),
            "predicted_speedup": self.predicted_speedup,
            "confirmed_speedup": self.blocks.speedup,
            "error": self.error,
            "control": self.blocks.control,
            "rounds": self.blocks.rounds,
            "recorded_speedup": self.recorded_speedup,
            "difference": None if self.difference is None else self.difference.to_json(),
        }


def confirmation(comparison: Prediction, recorded: Trace, changed: Trace | None) -> Confirmation:
    """Return a prediction beside what came of it.

    `recorded` is the trace that it was made from, with the blocks that were timed, `changed` that of the
    steps with the change. Raises `DaydreamError` if the change could not be made, or the script
    ended too soon.
    """
    found = None
    if changed is not None:
        try:
            found = compare(comparison, changed, names=(PREDICTION, CHANGED))
        except GraphError:  # too few steps were recorded before the script ended
            found = None
    return Confirmation(comparison, blocks_of(recorded), found)


def blocks_of(trace: Trace, *, rounds: int = ROUNDS, block_steps: int = BLOCK_STEPS) -> Blocks:
    """Return the blocks that a run of `daydream confirm` left in its trace.

    Raises `DaydreamError` if the change could not be made, or the script ended too soon; how many steps
    it should have had is told for so many `rounds` and `block_steps`.
    """
    found = trace.metadata.get("confirmed")
    if found and "failed" in found:
        raise DaydreamError(f"the change could not be made in the script: {found['failed']}")
    blocks = Blocks(**found) if found else Blocks([], [], [])
    if blocks.rounds < FEWEST_ROUNDS:
        done = (
            f"after {counted(blocks.rounds, 'round')} with and without the change" if found
            else "before the change could be made"
        )  # fmt: skip
        raise DaydreamError(f"the script ended {done}.{_too_short(trace, rounds, block_steps)}")
    return blocks


def _too_short(trace: Trace, rounds: int, block_steps: int) -> str:
    """Return how many training steps a script needs, and how many more it should have had."""
    asked = trace.metadata.get("collected", {})
    captures = asked.get("captures", 1)  # again on a busy machine, a step after the one before
    captured = (asked.get("steps", 3) + 1) * captures + captures - 1
    begin = asked.get("warmup", 5) + captured + asked.get("unprofiled", 20) + 1
    least, whole, short = (
        begin + steps_needed(*each)
        for each in ((FEWEST_ROUNDS, block_steps), (rounds, block_steps), (FEWEST_ROUNDS, SHORT_BLOCKS))
    )
    ran, times = asked.get("ran"), trace.metadata.get("unprofiled_step_ns")
    said = f"\n{counted(rounds, 'round')} take {whole:,} training steps"
    said += f", the fewest, {FEWEST_ROUNDS}, take {least:,}" if rounds > FEWEST_ROUNDS else ""
    if ran is not None:
        longer = whole - ran
        took = f", {longer * median(times) / 1e9:,.1f} s at this step time" if times else ""
        said += f"; {ran:,} ran. Let it train about {counted(longer, 'step')} longer{took}"
    if block_steps > SHORT_BLOCKS:
        said += f".\n--rounds {FEWEST_ROUNDS} --block-steps {SHORT_BLOCKS} takes {short:,} steps"
    return said + "."
