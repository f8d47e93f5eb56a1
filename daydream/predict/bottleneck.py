"""What a predicted step waits for most, and why a change that was made may not move it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.simulate.causes import Bound, by_bound
from daydream.simulate.path_causes import ns_by_cause

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.simulate.steady import Settled

UNMOVED = 0.002  # of the step: less is shown as 1.00x


def waited_for_ns(settled: Settled) -> dict[Bound, int]:
    """Return what a settled step waits for, in ns, by the chain of causes behind it; mean over the steps."""
    return by_bound(ns_by_cause(settled.timeline, settled.copy, list(settled.step_times())))


def bound_by(comparison: Prediction) -> tuple[Bound, float]:
    """Return what most of a step waits for, and its share, from the chain of causes behind it."""
    shares = comparison.waited_for_ns
    total = sum(shares.values())
    if total <= 0:
        return Bound.NOTHING, 0.0
    most = max(shares, key=lambda what: shares[what])
    return most, shares[most] / total


def why_unmoved(comparison: Prediction) -> str | None:
    """Return what the step waits for instead, in a sentence, where the change leaves its time as it was."""
    if abs(comparison.simulated_ns - comparison.replayed_ns) > UNMOVED * comparison.replayed_ns:
        return None
    what, share = comparison.bound
    return f"The step's time does not move with this change: it waits for {what.awaited} ({share:.0%})."
