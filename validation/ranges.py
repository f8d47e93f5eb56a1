"""How far predictions miss for the time they touch, by sort: what an interval is made of, and whether it holds.

A pair is one change in one recording, predicted from the trace before it. `fit` gives for each sort of affected time
the error that holds 90% of the pairs: what `daydream/predict/graph_diff.py` keeps, rounded up. `held_out` fits
without one model and judges that model's pairs: no pair is judged by an error that it helped to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import median

import numpy as np

from daydream.predict.graph_diff import MODEL_ERROR
from daydream.predict.prediction import Prediction

LEVEL = 0.9
LEAST_SHARE = 0.005  # of the predicted step
MIXED = ("moved", "copied", "computed")  # a change on a CPU touches several of these
STEPS = np.arange(0.0, 1.001, 0.02)


@dataclass(frozen=True)
class Pair:
    """A prediction and what came of it, as shares of the predicted time.

    `error` is measured less predicted, `affected` the affected time by sort, `other` the interval's half-width
    without the models' part.
    """

    group: str
    model: str
    error: float
    affected: Mapping[str, float]
    other: float

    @property
    def sort(self) -> str:
        """The sort that most of the affected time is of."""
        return max(self.affected, key=lambda sort: self.affected[sort])

    def width(self, errors: Mapping[str, float]) -> float:
        """Return the half-width of the interval with these errors of the models."""
        return hypot(self.other, *(errors[sort] * share for sort, share in self.affected.items()))

    def holds(self, errors: Mapping[str, float]) -> bool:
        """Return whether what was measured lies within."""
        return abs(self.error) <= self.width(errors)


def of_comparison(group: str, model: str, comparison: Prediction, measured: float) -> Pair:
    """Return the pair of a prediction; `measured` is the ratio of the step after to the step before."""
    predicted, found = comparison.simulated_ns, comparison.uncertainty
    plain = hypot(*comparison.affected.errors_ns)
    exposed = found.model / plain if plain else 0.0  # the rest is hidden by other work
    affected = {sort: exposed * ns / predicted for sort, ns in comparison.affected.by_sort().items()}
    other = hypot(found.variation, found.replay, found.unknown) / predicted
    return Pair(group, model, measured * comparison.replayed_ns / predicted - 1, affected, other)


def fit(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the error of each sort; that of one which no pair shows is the largest of the others.

    Sorts that changes on a CPU mix are fitted together: of all errors that hold 90% of the pairs those whose
    intervals are the narrowest on average. The others are alone in their pairs, and are the 90% quantile of
    what the pairs need. None is less than the median miss over the affected time: recordings that vary
    much hold all that was measured without it. Pairs whose affected time is hidden tell nothing.
    """
    pairs = [pair for pair in pairs if pair.affected[pair.sort] >= LEAST_SHARE]
    errors = dict.fromkeys(MODEL_ERROR, 0.0)
    for sort in dict.fromkeys(pair.sort for pair in pairs if pair.sort not in MIXED):
        mine = [pair for pair in pairs if pair.sort == sort]
        needed = [max(pair.error**2 - pair.other**2, 0.0) ** 0.5 / pair.affected[sort] for pair in mine]
        errors[sort] = max(float(np.quantile(needed, LEVEL)), _usual_miss(mine, sort))
    mixed = [pair for pair in pairs if pair.sort in MIXED]
    shown = {pair.sort for pair in pairs}
    if mixed:
        errors.update(_narrowest(mixed, [sort for sort in MIXED if sort in shown]))
    return {sort: errors[sort] if sort in shown else max(errors.values()) for sort in errors}


def _usual_miss(pairs: Sequence[Pair], sort: str) -> float:
    return median(abs(pair.error) / pair.affected[sort] for pair in pairs)


def _narrowest(pairs: Sequence[Pair], sorts: Sequence[str]) -> dict[str, float]:
    """Return the errors with which the intervals are narrowest on average and hold 90% of the pairs."""
    missed = np.array([pair.error for pair in pairs]) ** 2
    other = np.array([pair.other for pair in pairs]) ** 2
    affected = np.array([[pair.affected[sort] for sort in sorts] for pair in pairs]) ** 2
    least = [_usual_miss([pair for pair in pairs if pair.sort == sort], sort) for sort in sorts]
    grids = [np.unique(np.append(STEPS[start < STEPS], start)) for start in least]
    choices = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, len(sorts))
    squares = other + choices**2 @ affected.T
    holds = (squares >= missed).mean(axis=1) >= LEVEL
    width = np.where(holds, np.sqrt(squares).mean(axis=1), np.inf)
    best = choices[int(np.argmin(width))] if holds.any() else choices[-1]
    return dict(zip(sorts, best.tolist(), strict=True))


def held_out(pairs: Sequence[Pair]) -> Iterator[tuple[str, dict[str, float], list[Pair]]]:
    """Yield each model, the errors fitted without it, and its pairs."""
    for model in dict.fromkeys(pair.model for pair in pairs):
        errors = fit([pair for pair in pairs if pair.model != model])
        yield model, errors, [pair for pair in pairs if pair.model == model]


def tables(pairs: Sequence[Pair]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield two tables: errors with each model left out, with none, and as they ship; coverage by source."""
    judged = [*held_out(pairs), ("none", fit(pairs), pairs), ("none: as shipped", MODEL_ERROR, pairs)]
    rows = [
        {
            "left out": model,
            **{sort: f"{errors[sort]:.1%}" for sort in MODEL_ERROR},
            **_coverage(mine, errors),
        }
        for model, errors, mine in judged
    ]
    yield "ranges", rows
    groups = dict.fromkeys(pair.group for pair in pairs)
    of_group = {group: [pair for pair in pairs if pair.group == group] for group in groups}
    yield "ranges_2", [{"source": group, **_coverage(mine, MODEL_ERROR)} for group, mine in of_group.items()]


def _coverage(pairs: Sequence[Pair], errors: Mapping[str, float]) -> dict[str, str]:
    width = median(pair.width(errors) for pair in pairs)
    inside = sum(pair.holds(errors) for pair in pairs)
    return {"inside": str(inside), "pairs": str(len(pairs)), "median half-width": f"{width:.1%}"}
