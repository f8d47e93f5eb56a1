"""What a change touches of a step: how much time of which sort, and the step if all of it took longer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from math import hypot
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.graph.columns import Columns
from daydream.graph.plan import stable_order
from daydream.graph.query.numbering import distinct
from daydream.graph.tables import COLLECTIVE, CPU, MEMCPY
from daydream.predict.uncertainty import MODEL_ERROR

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


class Affected(NamedTuple):
    """What a change touches of a step, in ns: on each sort's busiest lane.

    `moved` goes away, or is CPU time that a factor changes; `waits` are what a step changes by beyond all
    that is affected, since something waits less or more. `copied` is recorded work that is done again,
    `computed` CPU time that a cost model gave. Of `kernels` and `transfers` (copies and collectives) it is
    what a model gave and what a factor changes. `doubt` is how far kernels may be off, in ns, beyond what
    kernels are as a rule, where the model that gave their times says so: an error, and no time affected.
    `waiting` is how far transfers are off, either way, if what was recorded of them was waiting for peers.
    """

    moved: float = 0.0
    waits: float = 0.0
    copied: float = 0.0
    computed: float = 0.0
    kernels: float = 0.0
    transfers: float = 0.0
    doubt: float = 0.0
    waiting: float = 0.0

    @property
    def together(self) -> float:
        """All sorts together."""
        return sum(self.by_sort().values())

    def by_sort(self) -> dict[str, float]:
        """Return the ns of each sort; waits are moved time."""
        return {
            "moved": self.moved + self.waits,
            "copied": self.copied,
            "computed": self.computed,
            "kernels": self.kernels,
            "transfers": self.transfers,
        }

    def errors_ns(self, errors: Mapping[str, float]) -> list[float]:
        """Return how far each sort may be off, in ns, by the errors of the sorts and what models doubt."""
        doubt = {"kernels": self.doubt}
        return [errors[sort] * ns + doubt.get(sort, 0.0) for sort, ns in self.by_sort().items()]


class Edits:
    """What turned a copy of the graph `before` into `after`, task by task: affected ns by sort.

    `ids` are the tasks that take another time or were inserted, int64, ascending; `ns` and `doubt` have
    an entry for each.
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        size, old, new = before.size, before.columns, after.columns
        differs = (old["duration_ns"] != new["duration_ns"][:size]) | (old["gap_ns"] != new["gap_ns"][:size])
        differs |= before.alive != after.alive[:size]
        ids = np.append(np.flatnonzero(differs), np.arange(size, after.size))
        inserted = ids >= size
        alive = after.alive[ids]
        was = np.zeros(len(ids), np.int64)
        recorded = ids[~inserted]
        was[~inserted] = np.where(before.alive[recorded], _taken_ns(before, recorded), 0)
        now = np.where(alive, _taken_ns(after, ids), 0)
        copied = inserted & (new["row"][ids] >= 0)
        modelled = inserted & ~copied
        if after.modelled:
            given = np.zeros(after.size, bool)
            for each in after.modelled:
                given[each] = True
            modelled |= given[ids]
        modelled &= inserted | (alive & (was != now))
        moved = np.where(inserted | modelled, 0, np.abs(now - was))
        kind = new["kind"][ids]
        cpu, transfer = kind == CPU, (kind == MEMCPY) | (kind == COLLECTIVE)
        kernel = ~cpu & ~transfer
        doubted = np.zeros(after.size if after.doubted else 0)
        for each, error in after.doubted:
            doubted[each] = error
        self.after, self.ids = after, ids
        self.unknown_ns = np.zeros(0)
        if before.facts.untraced_ns:  # device work without a row, which is not of the trace, stands for it
            untraced = ~inserted & ~cpu & (old["row"][np.minimum(ids, max(size - 1, 0))] < 0)
            self.unknown_ns = np.where(untraced & alive, np.maximum(now - was, 0), 0)
        self.start_up_ns = 0.0
        if len(before.steps) == 1:
            from daydream.predict.start_up import start_up_calls  # what looks at recordings comes with it

            begins = cpu & alive & ~inserted & np.isin(ids, start_up_calls(before))
            self.start_up_ns = float(np.abs(now - was)[begins].sum())
        self.ns: dict[str, np.ndarray] = {
            "moved": np.where(cpu | ~alive, moved, 0),
            "copied": np.where(copied & ~modelled, now, 0),
            "computed": np.where(modelled & cpu, now, 0),
            "kernels": np.where(kernel & alive, np.where(modelled, now, moved), 0),
            "transfers": np.where(transfer & alive, np.where(modelled, now, moved), 0),
        }
        self.doubt, self.waiting = np.zeros(len(ids)), np.zeros(len(ids))
        if after.doubted:
            self.waiting = np.where(
                transfer & alive, doubted[ids] * np.maximum(new["duration_ns"][ids], 1), 0
            )
            beyond = np.maximum(doubted[ids] - MODEL_ERROR["kernels"], 0)
            self.doubt = np.where(kernel & alive & modelled, beyond * now, 0)

    @property
    def unknown_longer_ns(self) -> float:
        """By how much device work of a step that was not recorded takes longer, on its busiest lane.

        What it is nobody knows: work of before the window, or a driver that loads modules. So nothing says
        that it takes longer at all.
        """
        if not self.unknown_ns.any():
            return 0.0
        counts = np.array([bool(step.get("covered")) for step in self.after.steps] + [True])  # or of no step
        columns = self.after.columns
        ns = np.where(counts[columns["step"][self.ids]], self.unknown_ns, 0)
        return float(np.max(np.bincount(columns["lane"][self.ids], weights=ns))) / self._steps_a_rank()

    def _steps_a_rank(self) -> int:
        steps = [step for step in self.after.steps if step.get("covered")]
        ranks = {step.get("rank", 0) for step in steps}
        return max(len(steps) // max(len(ranks), 1), 1)

    def affected(self, changes_by_ns: int) -> Affected:
        """Return what they touch of a step, which changes by so much."""
        covered = np.array([bool(step.get("covered")) for step in self.after.steps] + [False])
        number = self._steps_a_rank()
        counts = covered[self.after.columns["step"][self.ids]]
        lane = self.after.columns["lane"][self.ids[counts]]

        def busiest(ns: np.ndarray) -> float:
            return float(np.bincount(lane, weights=ns[counts], minlength=1).max()) / number

        found = {sort: busiest(ns) for sort, ns in self.ns.items()}
        return Affected(
            waits=max(abs(changes_by_ns) - sum(found.values()), 0.0),
            doubt=busiest(self.doubt),
            waiting=busiest(np.abs(self.waiting)),
            **found,
        )

    def longer(self, affected: Affected, errors: Mapping[str, float]) -> Graph:
        """Return the changed graph with all that is affected longer by its sort's error.

        The sorts' errors are independent, so all are scaled down to the root of the sum of their squares.
        What was removed is missed where it was: behind the task before it on its lane.
        """
        parts = affected.errors_ns(errors)
        scale = hypot(*parts) / sum(parts) if sum(parts) else 0.0
        return self._longer_by(
            np.asarray(scale * (sum(errors[each] * ns for each, ns in self.ns.items()) + self.doubt))
        )

    def waiting_for_peers(self) -> Graph:
        """Return the changed graph with transfers that take as long as they waited for peers, if all did."""
        return self._longer_by(self.waiting)

    def _longer_by(self, more: np.ndarray) -> Graph:
        columns, alive = self.after.columns, self.after.alive[self.ids]
        duration, gap = columns["duration_ns"].copy(), columns["gap_ns"]
        duration[self.ids[alive]] += np.rint(more[alive]).astype(np.int64)
        gone = ~alive & (more > 0)
        if gone.any():
            before = _alive_before(self.after, self.ids[gone])
            there = before >= 0
            tasks, place = distinct(before[there])
            gap = gap.copy()
            gap[tasks] += np.rint(np.bincount(place, more[gone][there], len(tasks))).astype(np.int64)
        return _retimed(self.after, duration, gap)


def counts(before: Graph, after: Graph) -> tuple[int, int, int]:
    """Return how many tasks were changed, inserted and removed in a copy of a graph, `after`."""
    size = before.size
    kept, removed = before.alive & after.alive[:size], before.alive & ~after.alive[:size]
    differs = np.zeros(size, bool)
    for name in ("duration_ns", "gap_ns", "latency_ns", "lane"):
        if before.columns.same(after.columns, name):
            continue
        differs |= before.columns[name] != after.columns[name][:size]
    changed, inserted, gone = (
        int(np.count_nonzero(mask)) for mask in (differs & kept, after.alive[size:], removed)
    )
    return changed, inserted, gone


def _retimed(graph: Graph, duration_ns: np.ndarray, gap_ns: np.ndarray) -> Graph:
    """Return a twin whose tasks take other times (ns, int64, shape (ids,)), to be simulated.

    All else is shared with the graph, not copied: neither of the two may be edited while both are in use.
    """
    twin = copy.copy(graph)
    twin.columns = Columns({**graph.columns, "duration_ns": duration_ns, "gap_ns": gap_ns})
    return twin


def _taken_ns(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return how long tasks take with the untraced time behind them, in ns."""
    taken: np.ndarray = graph.columns["duration_ns"][ids] + graph.columns["gap_ns"][ids]
    return taken


def _alive_before(graph: Graph, gone: np.ndarray) -> np.ndarray:
    """Return for each removed task the last one before it on its lane that is still there, -1 for none."""
    order, lane = graph.columns["order"], graph.columns["lane"]
    there = graph.ids[stable_order(lane[graph.ids], len(graph.lanes))]
    bounds = np.searchsorted(lane[there], np.arange(len(graph.lanes) + 1))
    found = np.full(len(gone), -1)
    for number in np.unique(lane[gone]).tolist():
        mine, mates = np.flatnonzero(lane[gone] == number), there[bounds[number] : bounds[number + 1]]
        if not len(mates):
            continue
        keys = order[gone[mine]]
        place = np.searchsorted(order[mates], keys, side="right") - 1
        # Of equal keys the lower id comes first.
        behind = np.flatnonzero((place >= 0) & (mates[place] > gone[mine]) & (order[mates[place]] == keys))
        while len(behind):
            place[behind] -= 1
            at = place[behind]
            behind = behind[(at >= 0) & (mates[at] > gone[mine[behind]]) & (order[mates[at]] == keys[behind])]
        found[mine] = np.where(place >= 0, mates[place], -1)
    return found
