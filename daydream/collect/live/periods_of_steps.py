"""Steps from the sequence of markers: which of several optimizers ends a step, and which steps are alike."""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.live.step_hooks import BACKWARD
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

UNLIKE = 0.1  # share of a step's operators: more than logging now and then, less than a second backward pass
DIFFERENT = "its operators differ from those of the other steps (a skipped update, an evaluation, a start-up)"


class Anchor:
    """Which of the markers that came in so far ends a step.

    Of several optimizers it is the one that steps least often, of equals the last. One
    that has stepped once only counts until the others show that it does not come again:
    after as many markers as came before it, twice. Backward passes count where no
    optimizer steps. Costs the same however many markers came in: it is asked in every step.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._steps = 0  # markers of optimizers
        self.value: int | None = None  # None while no marker has come in

    def add(self, marker: int) -> None:
        """Take a marker in."""
        if marker == BACKWARD:
            self.value = BACKWARD if self.value is None else self.value
            return
        self._counts[marker] = self._counts.get(marker, 0) + 1
        self._first.setdefault(marker, self._steps)
        self._last[marker] = self._steps
        self._steps += 1
        alive = [each for each in self._counts if self._comes_again(each)] or list(self._counts)
        self.value = min(alive, key=lambda each: (self._counts[each], -self._last[each]))

    def _comes_again(self, marker: int) -> bool:
        first = self._first[marker]
        last = self._last[marker]
        count = self._counts[marker]
        period = (last - first) / (count - 1) if count > 1 else first + 1
        return self._steps - 1 - last <= 2 * period + 1


def unlike_steps(recording: Recording, step: np.ndarray, count: int) -> list[int]:
    """Return the steps whose operators differ from those that most steps have.

    An update that a gradient scaler skipped calls no hook: two iterations look like one step.
    Where no two steps in three are alike, none is called different: the work itself varies.
    """
    operator = recording.is_kind("operator")
    names = len(recording.text("name"))
    profiles = [
        np.bincount(recording["name"][operator & (step == index)], minlength=names) for index in range(count)
    ]
    if count < 3:
        return []
    sizes = [int(profile.sum()) for profile in profiles]
    alike = [
        [int(np.abs(one - other).sum()) <= UNLIKE * max(size, theirs, 1)
         for other, theirs in zip(profiles, sizes, strict=True)]
        for one, size in zip(profiles, sizes, strict=True)
    ]  # fmt: skip
    friends = [sum(row) for row in alike]
    typical = int(np.argmax(friends))
    if friends[typical] * 3 < count * 2:
        return []
    return [index for index in range(count) if not alike[typical][index]]


def set_apart_unlike_steps(trace: Trace) -> None:
    """Mark the steps that are not like most as not covered, and say why."""
    steps = trace.metadata["steps"]
    recording = Recording(trace.columns, trace.texts)
    step = np.asarray(trace["step"]) if "step" in trace.columns else np.full(len(trace), UNKNOWN)
    for index in unlike_steps(recording, step, len(steps)):
        if steps[index]["covered"]:
            steps[index].update(covered=False, why_not=DIFFERENT)
