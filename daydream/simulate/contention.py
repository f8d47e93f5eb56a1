"""Contention: kernels slow while a transfer runs beside them, and the transfer does too.

While any transfer runs on its device, a kernel proceeds at 1/factor of its speed; likewise a
transfer while any kernel runs. With C(t) the time that transfers cover up to t, and
b = 1 - 1/factor, the work done from a start s to an end e is

    (e - s) - b * (C(e) - C(s))

A recorded duration d already holds the overlap o of the baseline, simulated in the same way: the
work is d - b * o. So only a changed overlap changes a duration, and an unchanged graph stays as it was,
to the nanosecond. A task whose duration was edited keeps the share of it that was overlapped.

Which tasks overlap is known when the graph has been simulated, so simulating and stretching take
turns until durations change no more. What a task overlaps depends on nothing that happens later: each
turn settles more of the timeline from its beginning, and there is one answer.

Only transferring counts. Where ranks wait for each other before the transfer, a lane holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from numpy import ndarray

from daydream.arrays import unique
from daydream.graph.calls import Coverage, sharing
from daydream.graph.lower import Lowered, Window, lower
from daydream.graph.tables import COLLECTIVE, CPU, KERNEL
from daydream.simulate.engine import run

if TYPE_CHECKING:
    import numpy.typing as npt

    from daydream.graph.graph import Graph
    from daydream.graph.plan import Plan

MOST_TURNS = 100
NEGLIGIBLE = 1e-4  # of the makespan: what is left to stretch then is not worth another turn
WHOLE_TURNS = (
    20  # then each turn goes part of the way, less and less: whole ones can go to and fro for ever
)


class Contention(Struct, frozen=True, eq=False):
    """How much slower a changed copy of `baseline` runs where kernels and transfers overlap.

    `kernel` is the factor of a kernel beside a transfer, one for all or one for each task of the changed
    graph; `transfer` that of a transfer beside a kernel. 1 means that it is not slowed.
    """

    baseline: Graph
    kernel: npt.ArrayLike
    transfer: float = 1.0

    def slowed(self, graph: Graph, lowered: Lowered) -> tuple[Plan, ndarray, ndarray, bool]:
        """Return the plan with durations as the overlap makes them, starts, ends, and if they settled."""
        plan = lowered.plan
        start, end = run(plan)
        factors = np.where(graph.kind == COLLECTIVE, self.transfer, self.kernel)
        slow = []  # who is slowed by whom, also with nothing beside them any more
        for tasks, beside in _pairs(graph, lowered):
            factor = factors[lowered.task[tasks]]
            for each in unique(factor[factor > 1]):
                mine = tasks[factor == each]
                slow.append(_Slow(mine, beside, 1 - 1 / each, self._held(graph, lowered, mine)))
        if not slow:
            return plan, start, end, True
        slowed = np.concatenate([side.tasks for side in slow])
        own = duration = plan.duration_ns
        for turn in range(MOST_TURNS):
            new = np.concatenate([side.durations(own[side.tasks], start, end) for side in slow])
            change = new - duration[slowed]
            # Times are whole ns: a kernel and a transfer may round each other up and down for ever.
            step = (change / (1 + turn // WHOLE_TURNS)).astype(np.int64)
            # No end moves by more than all durations together.
            if not step.any() or np.abs(change).sum() <= NEGLIGIBLE * end.max(initial=0):
                return plan, start, end, True
            duration = duration.copy()
            duration[slowed] += step
            plan = plan.with_costs(duration, plan.gap_ns)
            start, end = run(plan)
        return plan, start, end, False

    def _held(self, graph: Graph, lowered: Lowered, tasks: ndarray) -> ndarray:
        """Return how much overlap the durations of some entries already hold, in ns."""
        before = self.baseline
        duration = lowered.plan.duration_ns[tasks]
        ids = lowered.task[tasks]
        held = np.zeros(len(tasks), np.int64)
        overlap, share = self._overlaps(lowered.copies, lowered.window)
        # Which task of the baseline each device task is, or repeats; -1 for one that is new.
        row = graph.row
        device = np.flatnonzero((before.row >= 0) & (before.kind != CPU))
        by_row = np.full(row.max(initial=-1) + 2, -1)  # the last is of no row
        by_row[before.row[device]] = device
        origin = np.where(ids < before.size, ids, by_row[row[ids]])
        part = overlap[lowered.copy[tasks], origin]
        some = np.flatnonzero(part)
        whole = before.duration_ns[origin[some]]
        held[some] = np.floor(part[some] / whole * duration[some] + 0.5)
        # New transfers are sized by recorded ones, which were overlapped.
        new = (origin < 0) & (graph.kind[ids] == COLLECTIVE)
        held[new] = np.floor(share * duration[new] + 0.5)
        return held

    def _overlaps(self, copies: int, window: Window | None) -> tuple[ndarray, float]:
        """Return how long each task of the baseline overlaps, by copy, and the share of the transfers.

        Of kernels and transfers, that is: all others have 0. The share is of the time of copy 0.
        """
        before = self.baseline

        def overlaps() -> tuple[ndarray, float]:
            lowered = lower(before, copies, window)
            start, end = run(lowered.plan)
            overlap = np.zeros((copies, before.size + 1), np.int64)  # the last is of none
            for tasks, beside in _pairs(before, lowered):
                covered = Coverage(start[beside], end[beside])
                at = lowered.copy[tasks], lowered.task[tasks]
                overlap[at] = covered.within(start[tasks], end[tasks])
            first = lowered.task[lowered.copy == 0]
            transfers = first[before.kind[first] == COLLECTIVE]
            lasting = before.duration_ns[transfers].sum()
            return overlap, overlap[0, transfers].sum() / max(lasting, 1)

        return before.derived(("overlaps", copies, repr(window)), overlaps)


class _Slow(NamedTuple):
    """Entries of a plan that are slowed by those beside them."""

    tasks: ndarray
    beside: ndarray
    lost: float  #: the share of their speed that they lose
    held: ndarray  #: the overlap that their durations hold, in ns

    def durations(self, own: ndarray, start: ndarray, end: ndarray) -> ndarray:
        """Return how long they take beside what runs as simulated; their `own` durations hold `held`.

        Where the overlap is the one that a duration holds, the duration stays.
        """
        covered = Coverage(start[self.beside], end[self.beside])
        work = np.maximum(own - self.lost * self.held, 0)
        if not len(covered.start_ns):
            return np.floor(work + 0.5).astype(np.int64)
        begin = start[self.tasks]
        ahead = covered.until(begin)
        other = np.flatnonzero(
            covered.until(begin + own) - ahead != self.held
        )  # few, when nearly settled
        begin = begin[other]
        knots = np.ravel([covered.start_ns, covered.end_ns], order="F")
        done = knots - self.lost * covered.until(knots)
        target = begin - self.lost * ahead[other] + work[other]
        ends = np.interp(target, done, knots)
        ends = np.where(target < done[0], target, ends)
        ends = np.where(target > done[-1], knots[-1] + (target - done[-1]), ends)
        new = own.copy()
        new[other] = np.maximum(np.floor(ends - begin + 0.5), 0)
        return new


def _pairs(graph: Graph, lowered: Lowered) -> list[tuple[ndarray, ndarray]]:
    """Return (kernels, transfers) and (transfers, kernels) of each device, as entries of the plan."""
    plan = lowered.plan

    def pairs() -> list[tuple[ndarray, ndarray]]:
        kind = graph.kind[lowered.task]
        found = []
        for computing, transferring in sharing(graph.lanes):
            kernels = np.flatnonzero((kind == KERNEL) & computing[plan.lane])
            transfers = np.flatnonzero((kind == COLLECTIVE) & transferring[plan.lane])
            found += [(kernels, transfers), (transfers, kernels)]
        return found

    return plan.once("pairs", pairs)
