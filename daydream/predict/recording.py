"""Whether what recording cost moves an answer, where a trace does not say what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from daydream.predict.bottleneck import waited_for_ns
from daydream.predict.replay import LARGEST_SHARE, Replay
from daydream.simulate.causes import Bound

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction

SHOWS = 0.01  # of the step: less is not worth a second simulation


def may_count(prediction: Prediction) -> bool:
    """Return whether a typical cost of recording may show: the step waits for the CPU before or after."""
    replay = prediction.replay

    def shows(share: float) -> bool:  # what recording took is asked last
        return LARGEST_SHARE * share >= SHOWS and replay.recorded_share * share >= SHOWS

    return shows(cpu_share(waited_for_ns(replay.settled))) or shows(cpu_share(prediction.waited_for_ns))


def counts_in(unprofiled: Prediction, recorded: Prediction) -> bool:
    """Return whether the step before a change, or what the change leaves, differs without a profiler."""
    before, now = unprofiled.replayed_ns, recorded.replayed_ns
    return abs(before - now) > SHOWS * now or abs(unprofiled.ratio - recorded.ratio) > SHOWS


def replay_as_run(replay: Replay) -> Replay:
    """Return the replay of the step as a run pays for it: without a profiler, where that is known and counts.

    Where the cost of recording was not measured it is the typical one, which counts where it is some of the
    CPU's time: a change may make the step wait for that.
    """
    known = replay.anchored or replay.unprofiled
    if known is None and replay.recorded_share >= SHOWS:
        known = replay.typically_unprofiled
    return known or replay


def cpu_share(waits: Mapping[Bound, int]) -> float:
    """Return the part of a step's waits that is for the CPU, 0 to 1."""
    whole = sum(waits.values())
    return waits.get(Bound.CPU, 0) / whole if whole > 0 else 0.0
