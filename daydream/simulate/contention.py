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

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.arrays import unique
from daydream.graph.calls import Coverage, sharing
from daydream.graph.lower import Lowered, Window, lower, plan_key
from daydream.graph.tables import COLLECTIVE, CPU, KERNEL
from daydream.simulate.engine import run

if TYPE_CHECKING:
    import numpy.typing as npt

    from daydream.graph.graph import Graph
    from daydream.graph.plan import Plan

MOST_TURNS = 100
NEGLIGIBLE = 1e-4  # of the makespan: what is left to stretch then is not worth another turn
EXACT_TURNS = 6  # then a kernel and a transfer may still round each other up and down by 1 ns
WHOLE_TURNS = 20  # then each turn goes part of the way, less and less: whole ones can go to and fro for ever


@dataclass(frozen=True, eq=False)
class Contention:
    """How much slower a changed copy of `baseline` runs where kernels and transfers overlap.

    `kernel` is the factor of a kernel beside a transfer, one for all or one for each task of the changed
    graph; `transfer` that of a transfer beside a kernel. 1 means that it is not slowed.
    """

    baseline: Graph
    kernel: npt.ArrayLike
    transfer: float = 1.0

    def slowed(
        self,
        graph: Graph,
        lowered: Lowered,
        copies: int,
        window: Window | None,
    ) -> tuple[Plan, np.ndarray, np.ndarray, bool]:
        """Return the plan with durations as the overlap makes them, its starts and ends, and if they settled.

        `copies` and `window` are what the graph was lowered with.
        """
        plan = lowered.plan
        start, end = run(plan)
        slow = self._slow(graph, lowered, copies, window)
        if not slow:
            return plan, start, end, True
        own = duration = plan.duration_ns
        slowed = np.zeros(len(plan), bool)
        for side in slow:
            slowed[side.tasks] = True
        moved = np.flatnonzero(slowed)
        for turn in range(MOST_TURNS):
            new = own.copy()
            for side in slow:
                new[side.tasks] = side.durations(own[side.tasks], start, end)
            changes = np.abs(new[moved] - duration[moved])
            if turn >= EXACT_TURNS:
                still = moved[changes <= 1]
                new[still] = duration[still]
                changes = changes[changes > 1]
            # No end moves by more than all durations together.
            if changes.sum() <= NEGLIGIBLE * int(end.max()):
                return plan, start, end, True
            parts = 1 + turn // WHOLE_TURNS
            duration = new if parts == 1 else duration + (new - duration) // parts
            plan = plan.with_costs(duration)
            start, end = run(plan)
        return plan, start, end, False

    def _slow(self, graph: Graph, lowered: Lowered, copies: int, window: Window | None) -> list[_Slow]:
        """Return who is slowed by whom."""
        found = []
        for everyone, beside in _pairs(graph, lowered):
            tasks, factor = everyone, self._factor(graph, lowered, everyone)
            if factor.ndim:
                tasks, factor = tasks[factor > 1], factor[factor > 1]
            elif factor <= 1:
                continue
            if len(tasks):  # also with nothing beside them any more
                held = self._held(graph, lowered, tasks, copies, window)
                losing = [
                    (1 - 1 / each, np.flatnonzero(factor == each) if factor.ndim else slice(None))
                    for each in unique(factor).tolist()
                ]
                found.append(_Slow(tasks, beside, losing, held))
        return found

    def _factor(self, graph: Graph, lowered: Lowered, tasks: np.ndarray) -> np.ndarray:
        """Return the factor of tasks, all of them kernels or all transfers: one, or one for each."""
        of = lowered.task[tasks]
        if len(of) and graph.columns["kind"][of[0]] == COLLECTIVE:
            return np.asarray(self.transfer, np.float64)
        factor = np.asarray(self.kernel, np.float64)
        return factor[of] if factor.ndim else factor

    def _held(
        self,
        graph: Graph,
        lowered: Lowered,
        tasks: np.ndarray,
        copies: int,
        window: Window | None,
    ) -> np.ndarray:
        """Return how much overlap the durations of some entries already hold, in ns."""
        before, duration = self.baseline, lowered.plan.duration_ns[tasks]
        if not (before.alive & (before.columns["kind"] == COLLECTIVE)).any():
            return np.zeros(len(tasks), np.int64)
        overlap, share = self._overlaps(copies, window)
        ids = lowered.task[tasks]
        origin = _origins(before, graph, ids)
        copy = np.minimum(lowered.copy[tasks], len(overlap) - 1)
        part = overlap.reshape(-1)[copy * np.int64(before.size) + np.maximum(origin, 0)]
        held = np.zeros(len(tasks), np.int64)
        some = np.flatnonzero((part > 0) & (origin >= 0))  # few
        part, whole = part[some], before.columns["duration_ns"][origin[some]]
        kept = np.floor(part / np.maximum(whole, 1) * duration[some] + 0.5).astype(np.int64)
        held[some] = np.where(whole == duration[some], part, kept)
        new = np.flatnonzero(origin < 0)
        new = new[graph.columns["kind"][ids[new]] == COLLECTIVE]
        # They are sized by recorded ones, which were overlapped.
        held[new] = np.floor(share * duration[new] + 0.5).astype(np.int64)
        return held

    def _overlaps(self, copies: int, window: Window | None) -> tuple[np.ndarray, float]:
        """Return how long each task of the baseline overlaps, by copy, and the share of the transfers.

        Of kernels and transfers, that is: all others have 0. The share is of the time of copy 0.
        """
        before = self.baseline

        def overlaps() -> tuple[np.ndarray, float]:
            lowered = lower(before, copies, window)
            start, end = run(lowered.plan)
            overlap = np.zeros((copies, before.size), np.int64)
            for tasks, beside in _pairs(before, lowered):
                covered = Coverage(start[beside], end[beside])
                at = lowered.copy[tasks], lowered.task[tasks]
                overlap[at] = covered.within(start[tasks], end[tasks])
            first = lowered.task[lowered.copy == 0]
            transfers = first[before.columns["kind"][first] == COLLECTIVE]
            lasting = int(before.columns["duration_ns"][transfers].sum())
            return overlap, int(overlap[0, transfers].sum()) / max(lasting, 1)

        found: tuple[np.ndarray, float] = before.derived(("overlaps", *plan_key(copies, window)), overlaps)
        return found


class _Slow(NamedTuple):
    """Entries of a plan that are slowed by those beside them, and the overlap that their durations hold."""

    tasks: np.ndarray
    beside: np.ndarray
    losing: list[tuple[float, np.ndarray | slice]]  #: shares of speed that are lost, and who loses each
    held: np.ndarray

    def durations(self, own: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return how long they take beside what runs as simulated; their `own` durations hold `held`."""
        covered = Coverage(start[self.beside], end[self.beside])
        new, begin = np.empty_like(own), start[self.tasks]
        for lost, mine in self.losing:
            new[mine] = _stretched(covered, lost, begin[mine], own[mine], self.held[mine])
        return new


def _pairs(graph: Graph, lowered: Lowered) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (kernels, transfers) and (transfers, kernels) of each device, as entries of the plan."""
    kind, lane = graph.columns["kind"][lowered.task], lowered.plan.lane
    pairs = []
    for computing, transferring in sharing(graph.lanes):
        kernels = np.flatnonzero((kind == KERNEL) & computing[lane])
        transfers = np.flatnonzero((kind == COLLECTIVE) & transferring[lane])
        pairs += [(kernels, transfers), (transfers, kernels)]
    return pairs


def _stretched(
    covered: Coverage, lost: float, start: np.ndarray, own: np.ndarray, held: np.ndarray
) -> np.ndarray:
    """Return how long tasks take that lose a share of their speed wherever something runs beside them.

    Where the overlap is the one that a duration holds, the duration stays.
    """
    if not len(covered.start_ns):
        return np.floor(np.maximum(own - lost * held, 0) + 0.5).astype(np.int64)
    ahead = covered.until(start)
    new = own.copy()
    other = np.flatnonzero(covered.until(start + own) - ahead != held)  # few, when nearly settled
    start, ahead, work = start[other], ahead[other], np.maximum(own[other] - lost * held[other], 0)
    knots = np.stack([covered.start_ns, covered.end_ns], axis=1).reshape(-1)
    done = knots - lost * np.stack([covered.before_ns[:-1], covered.before_ns[1:]], axis=1).reshape(-1)
    target = start - lost * ahead + work
    end = np.interp(target, done, knots)
    end = np.where(target < done[0], target, end)
    end = np.where(target > done[-1], knots[-1] + (target - done[-1]), end)
    new[other] = np.maximum(np.floor(end - start + 0.5).astype(np.int64), 0)
    return new


def _origins(before: Graph, graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return which task of the baseline each device task is, or repeats; -1 for one that is new."""
    origin = np.where(ids < before.size, ids, -1)
    measured = np.flatnonzero(origin < 0)
    measured = measured[graph.columns["row"][ids[measured]] >= 0]
    if len(measured):
        device = np.flatnonzero((before.columns["row"] >= 0) & (before.columns["kind"] != CPU))
        by_row = np.full(int(max(graph.columns["row"].max(), 0)) + 1, -1, np.int64)
        by_row[before.columns["row"][device]] = device
        origin[measured] = by_row[graph.columns["row"][ids[measured]]]
    return origin
