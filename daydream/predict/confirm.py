"""A prediction beside what came of it: the change was made for real, in the run that was recorded."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from daydream.collect.live.timed_steps import steps_needed
from daydream.errors import DaydreamError, GraphError
from daydream.predict.compare import Difference, compare
from daydream.predict.prediction import Prediction
from daydream.results import Live, Record
from daydream.text import counted
from daydream.trace.trace import Trace

FEWEST_ROUNDS = 3  # of fewer no median is worth much
ROUNDS, BLOCK_STEPS = 5, 5  # if not asked otherwise
SHORT_BLOCKS = 2  # steps of a block, for scripts of few steps
APART = 0.1  # recorded steps that tell a speedup this far from the timed ones' were held up by something
PREDICTION = "the prediction"
CHANGED = "the changed steps"
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


class Confirmation(Record, kw_only=True):
    """The keys of `whatif`, and these: what the change gave for real, in ns per step.

    What was predicted rests on the recorded steps alone. All are of the step that was timed, without a
    profiler, in place of keys of the same name; those of the recorded step begin with `recorded_`.

    Attributes:
        recorded_predicted_ns: the predicted step of the recording.
        recorded_predicted_low_ns: the lower end of its 90% interval.
        recorded_predicted_high_ns: the upper end.
        predicted_low_ns: of its 90% interval; None without one.
        predicted_high_ns: the upper end.
        baseline_ns: the unchanged step, timed.
        predicted_ns: that over the predicted speedup; None without a prediction.
        confirmed_ns: the changed step, timed.
        predicted_speedup: None without a prediction.
        confirmed_speedup: compared within rounds.
        error: relative error of the predicted step time, signed.
        inside: whether `confirmed_ns` lies in the interval; None without one.
        control: the unchanged step against itself: 1 on a machine at rest.
        rounds: in how many rounds steps took turns.
        recorded_speedup: of the recorded steps; None where they were not.
        difference: the recorded steps with the change against the prediction for recorded ones: where in the
            step it came true. None where the changed steps could not be recorded.
    """

    recorded_predicted_ns: int | None
    recorded_predicted_low_ns: int | None
    recorded_predicted_high_ns: int | None
    predicted_low_ns: int | None
    predicted_high_ns: int | None
    baseline_ns: int
    predicted_ns: int | None
    confirmed_ns: int
    predicted_speedup: float | None
    confirmed_speedup: float
    error: float | None
    inside: bool | None
    control: float
    rounds: int
    recorded_speedup: float | None
    difference: Difference | None = None

    comparison = Live[
        Prediction
    ]()  # of the recorded step, or of the one without a profiler, as it tells
    blocks = Live[Blocks]()

    @property
    def restless(self) -> bool:
        """Whether the machine changed its speed too much for the confirmed figure to be believed."""
        return abs(self.control - 1) > RESTLESS

    @property
    def apart(self) -> bool:
        """Whether the recorded steps tell another speedup than the timed ones: something disturbed them."""
        recorded = self.recorded_speedup
        return recorded is not None and abs(recorded / self.confirmed_speedup - 1) > APART

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as an object of JSON, with what was confirmed."""
        return self.comparison.to_json() | super().to_json()


def confirmation(comparison: Prediction, recorded: Trace, changed: Trace | None) -> Confirmation:
    """Return a prediction beside what came of it.

    `recorded` is the trace that it was made from, with the blocks that were timed, `changed` that of the
    steps with the change. Raises `DaydreamError` if the change could not be made, or the script
    ended too soon.
    """
    found = None
    if changed is not None:
        with suppress(GraphError):  # too few steps were recorded before the script ended
            found = compare(comparison, changed, names=(PREDICTION, CHANGED))
    blocks = blocks_of(recorded)
    times = comparison.speedup
    confirmed_ns = round(blocks.confirmed_ns)
    predicted = None if times is None else blocks.baseline_ns / times
    low = None
    high = None
    recorded_speedup = None
    if predicted is not None and comparison.predicted_ns:
        scale = predicted / comparison.predicted_ns
        low = round(scale * (comparison.predicted_low_ns or 0))
        high = round(scale * (comparison.predicted_high_ns or 0))
    if found is not None and found.after.recorded_ns:
        recorded_speedup = comparison.replay.recording.settled.step_ns / found.after.recorded_ns
    return Confirmation(
        recorded_predicted_ns=comparison.predicted_ns,
        recorded_predicted_low_ns=comparison.predicted_low_ns,
        recorded_predicted_high_ns=comparison.predicted_high_ns,
        predicted_low_ns=low,
        predicted_high_ns=high,
        baseline_ns=round(blocks.baseline_ns),
        predicted_ns=None if predicted is None else round(predicted),
        confirmed_ns=confirmed_ns,
        predicted_speedup=times,
        confirmed_speedup=blocks.speedup,
        error=None if predicted is None else predicted / blocks.confirmed_ns - 1,
        inside=None if low is None or high is None else low <= confirmed_ns <= high,
        control=blocks.control,
        rounds=blocks.rounds,
        recorded_speedup=recorded_speedup,
        difference=found,
    ).having(comparison=comparison, blocks=blocks)


def blocks_of(trace: Trace, *, rounds: int = ROUNDS, block_steps: int = BLOCK_STEPS) -> Blocks:
    """Return the blocks that a run of `daydream confirm` left in its trace.

    Raises `DaydreamError` if the change could not be made, or the script ended too soon; how many steps
    it should have had is told for so many `rounds` and `block_steps`.
    """
    found = trace.metadata.get("confirmed")
    if found and "failed" in found:
        raise DaydreamError(f"the change could not be made in the script: {found['failed']}")
    blocks = Blocks(**found) if found else Blocks([], [], [])
    if blocks.rounds >= FEWEST_ROUNDS:
        return blocks
    done = "before the change could be made"
    if found:
        done = f"after {counted(blocks.rounds, 'round')} with and without the change"
    asked = trace.metadata.get("collected", {})
    captures = asked.get("captures", 1)  # again on a busy machine, a step after the one before
    captured = (asked.get("steps", 3) + 1) * captures + captures - 1
    begin = asked.get("warmup", 5) + captured + asked.get("unprofiled", 20) + 1
    least, whole, short = (
        begin + steps_needed(*each)
        for each in (
            (FEWEST_ROUNDS, block_steps),
            (rounds, block_steps),
            (FEWEST_ROUNDS, SHORT_BLOCKS),
        )
    )
    ran = asked.get("ran")
    times = trace.metadata.get("unprofiled_step_ns")
    said = f"the script ended {done}.\n{counted(rounds, 'round')} take {whole:,} training steps"
    if rounds > FEWEST_ROUNDS:
        said += f", the fewest, {FEWEST_ROUNDS}, take {least:,}"
    if ran is not None:
        said += f"; {ran:,} ran. Let it train about {counted(whole - ran, 'step')} longer"
        if times:
            said += f", {(whole - ran) * median(times) / 1e9:,.1f} s at this step time"
    if block_steps > SHORT_BLOCKS:
        said += f".\n--rounds {FEWEST_ROUNDS} --block-steps {SHORT_BLOCKS} takes {short:,} steps"
    raise DaydreamError(f"{said}.")
