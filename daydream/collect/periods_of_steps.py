"""Steps from the sequence of markers: which of several optimizers ends a step, and which steps are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from daydream.collect.recording import Recording
from daydream.collect.step_hooks import BACKWARD
from daydream.trace import UNKNOWN, Trace

UNLIKE = 0.1  # share of a step's operators: more than logging now and then, less than a second backward pass
DIFFERENT = "its operators differ from those of the other steps (a skipped update, an evaluation, a start-up)"


def anchor_of(markers: Sequence[int]) -> int | None:
    """Return the marker that ends a step, None if there is none yet.

    Of several optimizers it is the one that steps least often, of equals the last. One
    that has stepped once only counts until the others show that it does not come again:
    after as many markers as came before it, twice. Backward passes count where no
    optimizer steps.
    """
    steps = [marker for marker in markers if marker != BACKWARD]
    if not steps:
        return BACKWARD if BACKWARD in markers else None
    counts = Counter(steps)
    first = {marker: len(steps) for marker in counts}
    last = dict(first)
    for index, marker in enumerate(steps):
        first[marker] = min(first[marker], index)
        last[marker] = index
    alive = []
    for marker, count in counts.items():
        period = (last[marker] - first[marker]) / (count - 1) if count > 1 else first[marker] + 1
        if len(steps) - 1 - last[marker] <= 2 * period + 1:
            alive.append(marker)
    candidates = alive or list(counts)
    return min(candidates, key=lambda marker: (counts[marker], -last[marker]))


def periods(markers: Sequence[int]) -> list[int]:
    """Return the positions of the markers that end steps."""
    anchor = anchor_of(markers)
    return [index for index, marker in enumerate(markers) if marker == anchor]


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
