"""Which of the markers that come in end a step, told while the script runs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from daydream.collect.derive.steps import Ranges
from daydream.collect.live.events import Marker
from daydream.collect.live.messages import INTERRUPTED_EARLY
from daydream.collect.live.parameter_versions import Updates
from daydream.collect.live.periods_of_steps import Anchor
from daydream.collect.live.step_hooks import BACKWARD, any_optimizer_exists
from daydream.text import counted

MEMORY = 256  # markers that are looked back on while waiting
PATIENCE = 32  # backward passes without an update before they count as steps, where an optimizer exists
INTERRUPTED = "Ctrl-C"  # what ended the recording
SHORT_PATIENCE = 8  # the same where none exists: an update can hide, as one of `parameter.data` does


class StepSequence:
    """Optimizer steps as they come in, or backward passes where no optimizer's step is seen.

    Of several backward passes between two updates the first one ends the step before.
    """

    def __init__(self) -> None:
        self.markers: list[int] = []
        self._anchor = Anchor()
        self.steps = 0  # that have ended so far, as well as that is known
        self._skipped: set[int] = set()
        self._updates: Updates | None = None
        self._optimizer_exists = False
        self._passes = 0  # backward passes since updates are watched
        self._settled = False

    @property
    def anchor(self) -> int | None:
        """The marker that ends a step, as well as that is known; None before the first."""
        return self._anchor.value

    @property
    def by_backward(self) -> bool:
        """Whether backward passes tell the steps so far."""
        return self.anchor == BACKWARD

    def wants(self, which: int) -> bool:
        """Return whether a marker is one of the sequence: a backward pass is not where optimizers step."""
        if which != BACKWARD:
            return True
        if self.anchor not in {None, BACKWARD}:
            return False
        if self._updates is None:
            return True
        self._passes += 1
        updated = self._updates.since_last()
        return updated or not self._updates.seen

    def add(self, which: int, *, skipped: bool = False) -> bool:
        """Take a marker in. Returns whether it may end a step."""
        self.markers.append(which)
        self._anchor.add(which)
        if skipped:
            self._skipped.add(len(self.markers) - 1)
        if which != self.anchor:
            return False
        self.steps += 1
        return True

    def may_capture(self, which: int, warmup: int) -> bool:
        """Return whether enough is known of what makes a step, while waiting behind a marker."""
        if which != BACKWARD or self._settled:
            return True
        if self._updates is None:
            if self.steps < max(warmup, 1):
                return False
            self._updates = Updates()
            self._optimizer_exists = any_optimizer_exists()
            return False
        patience = PATIENCE if self._optimizer_exists else SHORT_PATIENCE
        if not self._updates.seen and self._passes < patience:
            return False
        self._settled = True
        if not self._updates.seen:
            self._updates = None  # updates cannot be seen here: every backward pass is a step
        return True

    def forget_the_past(self) -> None:
        """Let go of what came long ago. Not while capturing: positions change."""
        gone = len(self.markers) - MEMORY
        if gone > 0:
            del self.markers[:gone]
            self._skipped = {at - gone for at in self._skipped if at >= gone}

    def ends(self) -> list[int]:
        """Return the positions of the markers that end steps."""
        return [at for at, marker in enumerate(self.markers) if marker == self.anchor]

    def taken_since(self, began: int) -> tuple[int, int]:
        """Return how many steps with an update, and how many at all, have ended behind a position."""
        ends = [end for end in self.ends() if end >= began]
        skipped = sum(self.skipped(end, before) for before, end in pairwise(ends)) if self._skipped else 0
        return len(ends) - 1 - skipped, len(ends) - 1

    def ranges(
        self, markers: list[Marker], first: int, optimizers: list[Any]
    ) -> tuple[tuple[Ranges, str], set[str]]:
        """Return the steps between recorded markers, what ends them, and which have no update.

        `first` numbers the first of them. There are none where fewer than two markers end a step.
        """
        ends = set(self.ends())
        found = [(number, at) for number, at in markers if number in ends]
        if len(found) < 2:
            return ([], ""), set()
        anchor = self.markers[max(ends)]
        source = (
            "ends of backward passes, as no torch.optim optimizer was seen to step" if anchor == BACKWARD
            else f"steps of the optimizer {type(optimizers[anchor]).__name__}"
        )  # fmt: skip
        ranges = []
        skipped = set()
        begin = found[0][1]
        for index, ((before, _), (number, at)) in enumerate(pairwise(found)):
            name = f"step {first + index}"
            ranges.append((name, begin, at))
            begin = at + 1
            if self.skipped(number, before):
                skipped.add(name)
        return (ranges, source), skipped

    def skipped(self, position: int, before: int) -> bool:
        """Return whether an update between two markers, the later one included, was skipped."""
        return any(before < at <= position for at in self._skipped)


def why_nothing(sequence: StepSequence, warmup: int, reason: str, *, profiled: bool) -> str:
    """Return why no step was captured before the recording's end; `profiled`: the script did so itself."""
    if reason == INTERRUPTED:
        ran = f"{counted(sequence.steps, 'training step')} had run, the first {warmup} are to warm up."
        return f"{INTERRUPTED_EARLY}: {ran}"
    if profiled and sequence.steps > warmup:
        return (
            f"no step was captured before {reason}: the script's own torch.profiler ran all the while. "
            "Run the script without it, or profile fewer of its steps."
        )
    if not sequence.markers:
        return (
            f"no training step was seen before {reason}: no torch.optim optimizer stepped and "
            "torch.autograd.backward was not called. daydream records training steps."
        )
    return (
        f"only {counted(sequence.steps, 'training step')} ran before {reason}; {warmup} to warm up and at "
        "least 1 more to record are needed. Run more steps, or lower --warmup."
    )
