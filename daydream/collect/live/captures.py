"""The captures of a session: one at a time, made once more where its steps disagree; the best one is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daydream.collect.live.capture import Capture
from daydream.collect.live.captured_steps import CapturedSteps
from daydream.collect.live.step_sequence import StepSequence

AsOurs = Callable[[Callable[[], Any]], Any]


class Captures:
    """Prepares, starts and stops the profiler, and keeps the steps worth most in `kept`.

    `as_ours` calls a function whose profiler is not one of the script's. `memory` says whether allocations
    are recorded: no longer once layers ran on threads that are not recorded with them.
    """

    def __init__(
        self,
        as_ours: AsOurs,
        tell: Callable[[str], None],
        *,
        with_stack: bool,
        memory: bool,
    ) -> None:
        self._as_ours = as_ours
        self._tell = tell
        self._with_stack = with_stack
        self.memory = memory
        self.kept: CapturedSteps | None = None
        self.anchor: int | None = None  # what ended the captured steps
        self._capture: Capture | None = None
        self._began = 0  # position of the marker at which the capture began
        self._first_step = 1  # number of the first captured step

    @property
    def prepared(self) -> bool:
        """Whether there is a capture, to be started or running."""
        return self._capture is not None

    def prepare(self) -> bool:
        """Make a capture ready; return whether it may start at once, which one with a device should not."""
        capture = self._capture = self._as_ours(
            lambda: Capture(with_stack=self._with_stack, memory=self.memory)
        )
        return not capture.slow_to_start

    def forget(self) -> None:
        """Let go of a capture that did not start."""
        capture = self._capture
        self._capture = None
        if capture is not None:
            self._as_ours(capture.discard)

    def abandon(self) -> None:
        """Leave a running capture to the parent of this forked process."""
        if self._capture is not None:
            self._capture.abandon()

    def start(self, sequence: StepSequence) -> None:
        """Begin to record, behind the last marker of the sequence."""
        assert self._capture is not None  # noqa: S101 - prepared before
        self._as_ours(self._capture.start)
        self._began = len(sequence.markers) - 1
        self._first_step = sequence.steps + 1
        self.mark(sequence)

    def mark(self, sequence: StepSequence) -> None:
        """Leave the last marker of the sequence in the recording."""
        if self._capture is not None:
            self._capture.mark(len(sequence.markers) - 1)

    def taken(self, sequence: StepSequence) -> tuple[int, int]:
        """Return how many steps with an update, and how many at all, the running capture holds."""
        return sequence.taken_since(self._began)

    def stop(self, sequence: StepSequence, optimizers: list[Any]) -> None:
        """End the capture, and keep it if it holds a whole step and is worth more than an earlier one."""
        capture = self._capture
        self._capture = None
        if capture is None:
            return
        captured = self._as_ours(lambda: capture.stop(optimizers))
        self.anchor = sequence.anchor
        ranges, skipped = sequence.ranges(captured.markers, self._first_step, optimizers)
        if len(captured.recording) and ranges[0]:
            self.kept = CapturedSteps(captured, ranges, skipped).or_rather(self.kept)

    def again(self) -> bool:
        """Return whether to capture once more, without memory."""
        if self.kept is not None and self.memory and self.kept.captured.unseen:
            self.memory = False
            self._tell("layers run on threads of the script; capturing once more, without memory")
            return True
        return False
