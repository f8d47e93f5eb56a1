"""Readings: what a step is if doubtful pauses of threads are work, and if they are waits.

The graph holds one reading of each such pause (`graph.doubts`, from the rule `readings`). Both readings
replay alike, and may predict differently: then the interval covers both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import covered_steps
from daydream.predict.contention_option import between
from daydream.simulate.steady_state import settle

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction

APART = 0.01  # of a step: readings that are less apart are one answer
NAMED = 3  # threads that pause longest, of which one may be what an answer depends on


def read_otherwise(comparison: Prediction) -> dict[int, str]:
    """Return the predicted step in ns by reading, where that is another answer, with what it depends on."""
    graph = comparison.replay.graph
    task, ns = graph.doubts["task"], np.abs(graph.doubts["ns"])
    steps = max(int(covered_steps(graph).sum()), 1)
    if ns[covered_steps(graph)[graph.step[task]]].sum() < APART * comparison.replayed_ns * steps:
        return {}
    found = {}
    for released in (False, True):
        step_ns = _step_ns(comparison, released=released)
        if step_ns is None or abs(step_ns - comparison.simulated_ns) <= APART * comparison.simulated_ns:
            continue
        of_lane = np.bincount(graph.lane[task], ns * ((graph.doubts["ns"] < 0) == released))
        longest = np.argsort(-of_lane, kind="stable")[:NAMED]
        moved = {
            lane: _step_ns(comparison, released=released, lane=lane)
            for lane in longest[of_lane[longest] > 0].tolist()
        }
        lane = max(moved, key=lambda lane: abs((moved[lane] or 0) - comparison.simulated_ns))
        found[step_ns] = (
            f"Nothing recorded tells whether {graph.lanes[lane].name} works or waits in its pauses of "
            f"{of_lane[lane] / steps / 1e6:,.4g} ms per step while others work; if it "
            f"{'waits' if released else 'works'}, the step takes {step_ns / 1e6:,.4g} ms. A recording by "
            "`nsys profile --cpuctxsw=process-tree` tells."
        )
    return found


def _step_ns(comparison: Prediction, *, released: bool, lane: int | None = None) -> int | None:
    """Return the predicted step of a reading, in ns; None if the graph is read so already."""
    replay, changed = comparison.replay, comparison.graph.read_otherwise(released=released, lane=lane)
    if changed is None:
        return None
    before = replay.read_otherwise(released=released, lane=lane)
    slowed = between(comparison.contention, replay.graph, changed)
    after = settle(changed, contention=slowed, copies=comparison.after.passes)
    return round(comparison.replayed_ns * before.mean_after(after) / max(before.step_ns, 1))
