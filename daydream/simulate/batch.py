"""Many variants of one plan at once: the same tasks and edges, other durations and gaps.

Each variant is answered exactly as if it were simulated alone. The compiled engine takes those that
scale tasks through the plan side by side (`daydream.simulate.side_by_side`). Without it they share the plan's
skeleton (see `daydream.simulate.skeleton`), and go through it side by side. A skeleton with
a small margin is the quickest, and says which variants it could not answer; those are asked
again with a larger margin, at last with all edges. A few are simulated one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from daydream import compiled
from daydream.errors import GraphError
from daydream.simulate import scan, side_by_side
from daydream.simulate.skeleton import Skeleton

if TYPE_CHECKING:
    import numpy.typing as npt

    from daydream.graph.plan import Plan

MARGINS = (1 / 512, 1 / 64, 1.0)  # of the simulated time; only speed depends on them
LEAST_VARIANTS = 12  # making a skeleton takes as long as simulating about so many variants alone


@dataclass(frozen=True, eq=False)
class Change:
    """Variants that give new costs to the same tasks of a plan, one a row.

    Row k of `duration_ns` holds the durations of the tasks `duration_of` in variant k, and
    likewise for gaps; every other cost stays. A task is named once in each.
    """

    duration_of: np.ndarray
    duration_ns: np.ndarray
    gap_of: np.ndarray
    gap_ns: np.ndarray

    def __post_init__(self) -> None:
        if min(self.duration_ns.min(initial=0), self.gap_ns.min(initial=0)) < 0:
            raise GraphError("a variant gives a task a negative duration or gap; a cost is 0 or more")

    def __len__(self) -> int:
        """Return the number of variants."""
        return len(self.duration_ns)

    def take(self, rows: np.ndarray | slice) -> Change:
        """Return some of the variants."""
        return Change(self.duration_of, self.duration_ns[rows], self.gap_of, self.gap_ns[rows])

    def plans(self, plan: Plan) -> Iterator[Plan]:
        """Yield the plan of each variant, to simulate it alone."""
        for durations, gaps in zip(self.duration_ns, self.gap_ns, strict=True):
            duration, gap = plan.duration_ns.copy(), plan.gap_ns.copy()
            duration[self.duration_of], gap[self.gap_of] = durations, gaps
            yield plan.with_costs(duration, gap)


@dataclass(frozen=True, eq=False)
class Scaled:
    """Variants of a plan, one a factor, that multiply the costs of some tasks; rounds half up.

    What that gives is worked out when it is asked for, since it may be a number for most tasks of the plan
    in every variant.
    """

    plan: Plan
    duration_of: np.ndarray
    gap_of: np.ndarray
    factors: tuple[float, ...]

    def __len__(self) -> int:
        """Return the number of variants."""
        return len(self.factors)

    def take(self, rows: np.ndarray | slice) -> Scaled:
        """Return some of the variants."""
        return replace(self, factors=tuple(np.asarray(self.factors, np.float64)[rows].tolist()))

    def costs(self) -> Change:
        """Return the new costs of every variant."""
        by = np.asarray(self.factors, np.float64)[:, None]

        def times(values: np.ndarray) -> np.ndarray:
            result: np.ndarray = np.floor(values * by + 0.5).astype(np.int64)
            return result

        duration, gap = self.plan.duration_ns[self.duration_of], self.plan.gap_ns[self.gap_of]
        return Change(self.duration_of, times(duration), self.gap_of, times(gap))

    def plans(self, plan: Plan) -> Iterator[Plan]:
        """Yield the plan of each variant, to simulate it alone."""
        return self.costs().plans(plan)


def scaled(
    plan: Plan, tasks: npt.ArrayLike, factors: Sequence[float], *, gaps_of: npt.ArrayLike = ()
) -> Scaled:
    """Return variants, one a factor, that multiply the durations of `tasks` and the gaps of `gaps_of`.

    Rounds half up, as `Selection.scale` does. Raises `GraphError` for a factor below 0.
    """
    by = np.asarray(factors, np.float64)
    if not (np.isfinite(by) & (by >= 0)).all():
        raise GraphError(f"a factor must be 0 or more, not {min(factors)}")
    return Scaled(plan, np.asarray(tasks, np.int64), np.asarray(gaps_of, np.int64), tuple(factors))


def ends(plan: Plan, changes: Sequence[Change | Scaled], tasks: npt.ArrayLike) -> np.ndarray:
    """Return when the given tasks end in each variant, in ns: a row a variant, changes in their order."""
    observed = np.asarray(tasks, np.int64)
    engine = compiled.engine()
    if engine is not None and len(plan) and not plan.scheduled:
        groups = [change for change in changes if isinstance(change, Scaled)]
        if len(groups) == len(changes) > 0 and side_by_side.fits(plan, groups):
            return side_by_side.ends(engine, plan, groups, observed)
    variants = sum(map(len, changes))
    found = np.empty((variants, len(observed)), np.int64)
    left = np.arange(variants)
    # A lane with a policy picks in time order, which may be another one in each variant.
    if len(plan) and not plan.scheduled and len(left) >= LEAST_VARIANTS:
        start, _ = scan.run(plan)
        for margin in MARGINS:
            rows, exact = Skeleton(plan, observed, start, margin).ends(_chosen(changes, left))
            found[left[exact]] = rows[exact]
            left = left[~exact]
            if len(left) < LEAST_VARIANTS:
                break
    for row, variant in zip(left.tolist(), _plans(plan, changes, left), strict=True):
        found[row] = scan.run(variant)[1][observed]
    return found


def _chosen(changes: Sequence[Change | Scaled], variants: np.ndarray) -> Iterator[Change]:
    """Yield the changes with only these variants, which count through all changes and ascend."""
    first = 0
    for change in changes:
        begin, end = variants.searchsorted([first, first + len(change)])
        if end > begin:
            some = change if end - begin == len(change) else change.take(variants[begin:end] - first)
            yield some.costs() if isinstance(some, Scaled) else some
        first += len(change)


def _plans(plan: Plan, changes: Sequence[Change | Scaled], variants: np.ndarray) -> Iterator[Plan]:
    for change in _chosen(changes, variants):
        yield from change.plans(plan)
