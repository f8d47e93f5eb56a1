"""Uncertainty: how far the step after a change may be from the predicted one, and from which causes.

Four causes, each a half-width at 90 %, in ns of the predicted step; they are taken to be
independent, so the range is the root of the sum of their squares:

- *variation*: the recorded steps differ, and their median is known only so well. A standard error:
  more steps make it smaller.
- *replay*: the untouched simulation misses the recording by so much.
- *model*: the change is simulated once more with all that it touches longer by the error that
  predictions of this sort of time were found to have (`MODEL_ERROR`): what stays hidden behind other
  work does not count.
- *unknown*: delays without a known cause, device work that was not recorded, and stream waits that could
  not be resolved. What they do after the change is not known; at most they eat up what it
  moves.

A change that touches nothing has the first two only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import hypot, sqrt
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from daydream.simulate.steady import settle

if TYPE_CHECKING:
    from daydream.comparison import Comparison
    from daydream.graph.tables import Facts
    from daydream.touched import Touched

# Errors over touched time, by sort, that hold 90 % of the ledger's predictions, rounded up: `python
# validation/ranges.py` fits them. These are of processes that gave freed memory back at times, as a
# user's does (`validation/` at revision 2ddd0fd); those of today need less, as docs/accuracy.md shows.
# `kernels` is from traces of the same models on two GPUs and at two batch sizes, `transfers` from an
# emulated link, the others from small models on a CPU.
MODEL_ERROR: Mapping[str, float] = {
    "moved": 0.14, "copied": 0.08, "computed": 0.22, "kernels": 0.20, "transfers": 0.08,
}  # fmt: skip
TWO_SIDED_90 = 1.645  # of the normal distribution
STUDENT_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)  # with 1 to 9 degrees of freedom
LEAST_SAID = 0.0005  # of a step
UNUSUAL = 0.25  # steps further than this from the median (a stalled loader, a warm-up) are left out
OF_THE_MEDIAN = 1.2533  # its standard error over that of the mean, many normal values: sqrt(pi / 2)


@dataclass(frozen=True)
class Uncertainty:
    """Half-widths of a prediction's 90 % range, in ns, by cause."""

    variation: float
    replay: float
    model: float
    unknown: float

    @property
    def total_ns(self) -> float:
        """The half-width of the range."""
        return hypot(self.variation, self.replay, self.model, self.unknown)

    def to_json(self) -> dict[str, int]:
        """Return each cause's half-width in whole ns."""
        return {field.name: round(getattr(self, field.name)) for field in fields(self)}

    def words(self, step_ns: int) -> str:
        """Return the causes as shares of a step, those that matter most first; empty if none does."""
        said = {
            "models of the change": self.model,
            "steps that vary": self.variation,
            "replay error": self.replay,
            "unknown causes": self.unknown,
        }
        shares = {words: ns / step_ns for words, ns in said.items()} if step_ns else {}
        there = [words for words in shares if shares[words] >= LEAST_SAID]
        there.sort(key=lambda words: -shares[words])
        return ", ".join(f"{words} {shares[words]:.1%}" for words in there)


def uncertainty_of(comparison: Comparison) -> Uncertainty:
    """Return how far the step after a change may be from the predicted one."""
    recorded, predicted = comparison.recorded or comparison.replay, comparison.predicted_ns
    measured = [step.measured_ns for step in recorded.steps]
    usual = median(measured)
    bias = comparison.bias or 0.0
    if comparison.recorded is None and comparison.measured_ns:
        bias = comparison.replayed_ns / comparison.measured_ns - 1
    facts, touched = comparison.replay.graph.facts, comparison.touched
    return Uncertainty(
        variation=variation([ns for ns in measured if abs(ns - usual) <= UNUSUAL * usual]) * predicted,
        replay=max(abs(recorded.error), abs(bias)) * predicted,
        model=_exposed_ns(comparison),
        unknown=unknown_ns(facts, sum(measured), comparison.replayed_ns, touched),
    )


def _exposed_ns(comparison: Comparison) -> float:
    """Return how much longer the step is if all that is touched takes longer by the models' errors."""
    touched = comparison.touched
    waits = MODEL_ERROR["moved"] * touched.waits
    if touched.together == touched.waits:
        return waits
    longer = comparison.edits.longer(touched, MODEL_ERROR)
    choice = comparison.contention
    slowed = None if choice is None else choice.between(comparison.replay.graph, longer)
    passes = comparison.after.passes - (slowed is not None)  # that one is simulated behind them anyway
    settled = settle(longer, passes=passes, contention=slowed)
    return hypot(max(comparison.step_of(settled) - comparison.predicted_ns, 0), waits)


def variation(times: Sequence[int]) -> float:
    """Return the relative half-width at 90 % of the median of steps; 0 for a single one."""
    freedom = len(times) - 1
    if freedom < 1 or not median(times):
        return 0.0
    student = STUDENT_90[freedom - 1] if freedom <= len(STUDENT_90) else TWO_SIDED_90 * (1 + 1.15 / freedom)
    spread = float(np.std(times, ddof=1))
    return student * OF_THE_MEDIAN * spread / sqrt(len(times)) / median(times)


def model_ns(touched: Touched, errors: Mapping[str, float] = MODEL_ERROR) -> float:
    """Return the half-width that the models' errors make where nothing hides them."""
    return hypot(*(errors[sort] * ns for sort, ns in touched.by_sort().items()))


def unknown_ns(facts: Facts, recorded_ns: int, step_ns: int, touched: Touched) -> float:
    """Return how far what has no known cause may carry the step, at most what the change touches.

    `recorded_ns` are all steps that the facts are about. An unresolved wait is an order that the
    simulation does not keep: it counts with its part of all waits.
    """
    together = touched.together
    delays = facts.unexplained_ns + facts.untraced_ns
    share = min(delays / recorded_ns, 1.0) if recorded_ns else 0.0
    waits = sum(facts.event_waits.values())
    unresolved = facts.event_waits["unresolved"] / waits if waits else 0.0
    return min(share * step_ns, together) + unresolved * min(together, step_ns)
