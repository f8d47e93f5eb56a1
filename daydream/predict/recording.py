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


def moved_by_recording(prediction: Prediction) -> float:
    """Return how far a typical cost of recording moves after / before; 0.0 for next to nothing.

    An estimate: where a step waits for the CPU, recording takes as large a share as of the CPU's time.
    """
    if abs(_moved(prediction, LARGEST_SHARE)) < SHOWS:
        return 0.0
    moved = _moved(prediction, prediction.replay.recorded_share)
    return moved if abs(moved) >= SHOWS else 0.0


def replay_as_run(replay: Replay) -> Replay:
    """Return the replay of the step as a run pays for it: without a profiler, where that is known and counts.

    Where the cost of recording was not measured it is the typical one, which counts where it moves the step.
    """
    known = replay.anchored or replay.unprofiled
    if known is not None:
        return known
    if replay.recorded_share * cpu_share(waited_for_ns(replay.settled)) < SHOWS:
        return replay
    typical, recorded_ns = replay.typically_unprofiled, replay.settled.step_ns
    moved = typical is not None and abs(typical.settled.step_ns - recorded_ns) > SHOWS * recorded_ns
    return typical if typical is not None and moved else replay


def _moved(prediction: Prediction, share: float) -> float:
    before, after = prediction.cpu_share
    return prediction.ratio * ((1 - share * after) / (1 - share * before) - 1)


def cpu_share(waits: Mapping[Bound, int]) -> float:
    """Return the part of a step's waits that is for the CPU, 0 to 1."""
    whole = sum(waits.values())
    return waits.get(Bound.CPU, 0) / whole if whole > 0 else 0.0
