"""What a change leaves out because it runs inside replays of CUDA graphs.

A replay names no operators and no shapes, so what needs them (a type, a fusion, a size) changes the kernels
outside alone. That is no answer about the whole step, and a narrow range around it would say it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.graph.query.device import GRAPH_LAUNCH, device_work, in_replays
from daydream.graph.tables import COLLECTIVE

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction

MUCH = 0.05  # of a step's device work: less is not said


class LeftOut(NamedTuple):
    """Device work of a step in ns: all, what replays run and the change leaves, and what the others gain."""

    device_ns: float
    replayed_ns: float
    gain: float  # the part by which the changed work outside got shorter (or longer)

    @property
    def unknown_ns(self) -> float:
        """How far the step would be off if what runs in replays changed as the rest did."""
        return abs(self.gain) * self.replayed_ns

    def __str__(self) -> str:
        """Say how much it is."""
        times = f"{self.replayed_ns / 1e6:,.2f} of {self.device_ns / 1e6:,.2f} ms of device work per step"
        return (
            f"{times} run inside replays of CUDA graphs, whose kernels this change leaves as they are: the "
            "answer is about the rest."
        )


def left_in_replays(comparison: Prediction) -> LeftOut | None:
    """Return what a change of device work leaves out in replays; None if that is little or nothing.

    Only work of the phases counts that the change is about.
    """
    before, after = comparison.replay.graph, comparison.graph
    if not any(GRAPH_LAUNCH in name for name in before.texts["name"]):
        return None
    size = before.size
    covered = np.array([bool(step.get("covered")) for step in before.steps] + [False])
    counts = before.alive & device_work(before) & covered[before.columns["step"]]
    was = before.columns["duration_ns"]
    now = np.where(after.alive, after.columns["duration_ns"], 0)
    device = before.tasks(np.flatnonzero(counts))
    replayed = np.zeros(size, bool)
    replayed[in_replays(device).ids] = True
    calculates = before.columns["kind"] != COLLECTIVE  # a change of transfers leaves no kernels out
    affected = counts & ~replayed & (was != now[:size]) & calculates
    if not replayed.any() or not affected.any():
        return None
    phase = before.columns["phase"]
    left = replayed & (was == now[:size]) & np.isin(phase, phase[affected])
    inserted = np.arange(after.size) >= size
    inserted &= after.alive & device_work(after) & covered[after.columns["step"]]
    inserted &= after.columns["kind"] != COLLECTIVE
    steps = max(int(covered.sum()), 1)
    if was[left].sum() <= MUCH * was[counts].sum():
        return None
    gain = 1 - (now[:size][affected].sum() + now[inserted].sum()) / max(was[affected].sum(), 1)
    return LeftOut(was[counts].sum() / steps, was[left].sum() / steps, float(np.clip(gain, -1, 1)))
