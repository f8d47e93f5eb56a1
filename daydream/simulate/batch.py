"""Many variants of one plan at once: the same tasks and edges, some tasks faster or slower.

Each variant is answered exactly as if it were simulated alone. One pass of the compiled engine over the
tasks works out all variants of up to 16 groups at once, so that a task and its edges are read once for all
of them. A group is tasks and factors: a bit a task says which groups scale it. A task that nobody waits
for, and that is not asked about, leaves nothing behind but its lane's progress. Without that engine variants
are simulated one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from daydream import compiled
from daydream.errors import GraphError
from daydream.graph.query.numbering import distinct
from daydream.simulate import scan

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt

    from daydream.graph.plan import Plan

GROUPS, VARIANTS = 16, 64  # that go through a plan together, at most what the loop has room for
EXACT = 2.0**52  # ns, 52 days: doubles hold every whole number below twice that


@dataclass(frozen=True, eq=False)
class Scaled:
    """Variants of a plan, one a factor, that multiply the costs of some tasks; rounds half up."""

    duration_of: np.ndarray
    gap_of: np.ndarray
    factors: tuple[float, ...]

    def __len__(self) -> int:
        """Return the number of variants."""
        return len(self.factors)

    def plans(self, plan: Plan) -> Iterator[Plan]:
        """Yield the plan of each variant, to simulate it alone."""
        for factor in self.factors:
            duration, gap = plan.duration_ns.copy(), plan.gap_ns.copy()
            for values, tasks in ((duration, self.duration_of), (gap, self.gap_of)):
                values[tasks] = np.floor(values[tasks] * factor + 0.5).astype(np.int64)
            yield plan.with_costs(duration, gap)


def scaled(tasks: npt.ArrayLike, factors: Sequence[float], *, gaps_of: npt.ArrayLike = ()) -> Scaled:
    """Return variants, one a factor, that multiply the durations of `tasks` and the gaps of `gaps_of`.

    Rounds half up, as `Selection.scale` does. Raises `GraphError` for a factor below 0.
    """
    by = np.asarray(factors, np.float64)
    if not (np.isfinite(by) & (by >= 0)).all():
        raise GraphError(f"a factor must be 0 or more, not {min(factors)}")
    return Scaled(np.asarray(tasks, np.int64), np.asarray(gaps_of, np.int64), tuple(factors))


def ends(plan: Plan, groups: Sequence[Scaled], tasks: npt.ArrayLike) -> np.ndarray:
    """Return when the given tasks end in each variant, in ns: int64, a row a variant, groups in order."""
    observed, engine = np.asarray(tasks, np.int64), compiled.engine()
    # A lane with a policy picks in time order, which may be another one in each variant.
    if engine is not None and len(plan) and not plan.scheduled and fits(plan, groups):
        return _side_by_side(engine, plan, groups, observed)
    found = np.empty((sum(map(len, groups)), len(observed)), np.int64)
    for row, variant in zip(found, (each for group in groups for each in group.plans(plan)), strict=True):
        row[:] = scan.run(variant)[1][observed]
    return found


def fits(plan: Plan, groups: Sequence[Scaled]) -> bool:
    """Tell whether no sum of times can grow so long that doubles round it."""
    most = max((factor for group in groups for factor in group.factors), default=1.0)
    costs = float(plan.duration_ns.sum(dtype=np.float64) + plan.gap_ns.sum(dtype=np.float64))
    delays = float(np.abs(plan.edge_latency_ns).sum(dtype=np.float64)) + float(plan.release_ns.max(initial=0))
    return max(most, 1.0) * costs + len(plan) + delays < EXACT


def _side_by_side(engine: ModuleType, plan: Plan, groups: Sequence[Scaled], tasks: np.ndarray) -> np.ndarray:
    asked, place = distinct(tasks)
    seen = np.full(len(plan), -1, np.int32)
    seen[asked] = np.arange(len(asked))
    uses = np.bincount(plan.edge_src, minlength=len(plan)).astype(np.int32)
    slot = np.empty(len(plan), np.int32)
    found = np.empty((sum(map(len, groups)), len(tasks)), np.int64)
    filled = 0
    for some in _together(groups):
        slower, wider = np.zeros((2, len(plan)), np.uint16)
        for number, group in enumerate(some):
            slower[group.duration_of] |= np.uint16(1 << number)
            wider[group.gap_of] |= np.uint16(1 << number)
        first = np.append(0, np.cumsum([len(group) for group in some]))
        factors = np.concatenate([np.asarray(group.factors, np.float64) for group in some])
        out = np.empty((len(asked), len(factors)))
        engine.pull_many(
            plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns, plan.edge_ptr, plan.edge_src,
            plan.edge_latency_ns, plan.edge_from_start, slower, wider, first, factors, uses.copy(), slot,
            seen, out, plan.lanes,
        )  # fmt: skip
        found[filled : filled + len(factors)] = out.T[:, place]
        filled += len(factors)
    return found


def _together(groups: Sequence[Scaled]) -> Iterator[list[Scaled]]:
    """Yield groups, in their order, in lots that go through the plan together."""
    lot: list[Scaled] = []
    for group in groups:
        for first in range(0, len(group), VARIANTS):
            part = replace(group, factors=group.factors[first : first + VARIANTS])
            if lot and (len(lot) == GROUPS or sum(map(len, lot)) + len(part) > VARIANTS):
                yield lot
                lot = []
            lot.append(part)
    if lot:
        yield lot
