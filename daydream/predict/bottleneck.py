"""What a predicted step waits for most, and why a change that was made may not move it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daydream.predict.prediction import Comparison
    from daydream.simulate.steady import Settled

BOUND_BY = {  # what stands on the chain of causes, in a word
    "kernel": "GPU",
    "memset": "GPU",
    "start-up between device tasks": "GPU",
    "graph": "GPU",
    "memcpy": "copies",
    "collective": "communication",
    "communication": "communication",
    "cpu": "CPU",
    "untraced CPU time": "CPU",
    "launch latency": "CPU",
    "thread hand-off": "CPU",
    "synchronization": "CPU",
    "driver's lock": "CPU",
}
UNMOVED = 0.002  # of the step: less is shown as 1.00x
WORDS = {"GPU": "the GPU", "CPU": "the CPU"}


def waited_for_ns(settled: Settled) -> dict[str, int]:
    """Return what a settled step waits for, in ns, by the chain of causes behind it; mean over the steps."""
    parts: dict[str, int] = {}
    for cause, ns in settled.timeline.breakdown(settled.copy, *settled.step_times())["by_cause"].items():
        what = BOUND_BY.get(cause, "other causes")
        parts[what] = parts.get(what, 0) + ns
    return parts


def bound_by(comparison: Comparison) -> tuple[str, float]:
    """Return what most of a step waits for, and its share, from the chain of causes behind it."""
    shares = comparison.waited_for_ns
    total = sum(shares.values())
    if total <= 0:
        return "nothing", 0.0
    most = max(shares, key=lambda what: shares[what])
    return most, shares[most] / total


def why_unmoved(comparison: Comparison) -> str | None:
    """Return what the step waits for instead, in a sentence, where the change leaves its time as it was."""
    if abs(comparison.simulated_ns - comparison.replayed_ns) > UNMOVED * comparison.replayed_ns:
        return None
    what, share = comparison.bound
    return (
        f"The step's time does not move with this change: it waits for {WORDS.get(what, what)} ({share:.0%})."
    )
