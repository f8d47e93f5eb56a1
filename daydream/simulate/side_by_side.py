"""Variants of a plan side by side in the compiled engine: some of its tasks faster or slower.

One pass over the tasks works out all variants of up to eight groups at once, so that a task and its edges
are read once for all of them. A group is tasks and factors: a bit a task says which groups scale it. A task
that nobody waits for, and that is not asked about, leaves nothing behind but its lane's progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.query.numbering import distinct

if TYPE_CHECKING:
    from types import ModuleType

    from daydream.graph.plan import Plan
    from daydream.simulate.batch import Scaled

GROUPS, VARIANTS = 8, 32  # that go through a plan together; only speed depends on the second
# Making a skeleton takes as long as some hundred variants side by side, and each further one is then quicker
# in plans that are larger than a cache. Only speed depends on these two.
MOST_VARIANTS, SMALL_PLAN = 256, 1 << 14
EXACT = 2.0**52  # ns, 52 days: doubles hold every whole number below twice that


def fits(plan: Plan, groups: Sequence[Scaled]) -> bool:
    """Tell whether this is the way to go, and no sum of times can grow so long that doubles round it."""
    if len(plan) > SMALL_PLAN and sum(map(len, groups)) > MOST_VARIANTS:
        return False
    most = max((max(group.factors) for group in groups), default=1.0)
    costs = float(plan.duration_ns.sum(dtype=np.float64) + plan.gap_ns.sum(dtype=np.float64))
    delays = float(np.abs(plan.edge_latency_ns).sum(dtype=np.float64)) + float(plan.release_ns.max(initial=0))
    return max(most, 1.0) * costs + len(plan) + delays < EXACT


def ends(engine: ModuleType, plan: Plan, groups: Sequence[Scaled], tasks: np.ndarray) -> np.ndarray:
    """Return when the given tasks end in each variant, in ns: int64, a row a variant, groups in order."""
    asked, place = distinct(tasks)
    seen = np.full(len(plan), -1, np.int32)
    seen[asked] = np.arange(len(asked))
    uses = np.bincount(plan.edge_src, minlength=len(plan)).astype(np.int32)
    slot = np.empty(len(plan), np.int32)
    found = np.empty((sum(map(len, groups)), len(tasks)), np.int64)
    filled = 0
    for some in _together(groups):
        slower, wider = np.zeros((2, len(plan)), np.uint8)
        for number, group in enumerate(some):
            slower[group.duration_of] |= np.uint8(1 << number)
            wider[group.gap_of] |= np.uint8(1 << number)
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
            part = group.take(slice(first, first + VARIANTS))
            if lot and (len(lot) == GROUPS or sum(map(len, lot)) + len(part) > VARIANTS):
                yield lot
                lot = []
            lot.append(part)
    if lot:
        yield lot
