"""What a change touches of a step: how much time of which sort, and the step if all of it took longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import COLLECTIVE, CPU, MEMCPY
from daydream.predict.uncertainty import MODEL_ERROR

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

TRANSFERS = [MEMCPY, COLLECTIVE]


@dataclass(frozen=True)
class Affected:
    """What a change touches of a step, in ns: on each sort's busiest lane.

    `moved` goes away, or is CPU time that a factor changes; `waits` are what a step changes by beyond all
    that is affected, since something waits less or more. `copied` is recorded work that is done again,
    `computed` CPU time that a cost model gave. Of `kernels` and `transfers` (copies and collectives) it is
    what a model gave and what a factor changes. `doubt` is how far kernels may be off, in ns, beyond what
    kernels are as a rule, where the model that gave their times says so: an error, and no time affected.
    """

    moved: float = 0.0
    waits: float = 0.0
    copied: float = 0.0
    computed: float = 0.0
    kernels: float = 0.0
    transfers: float = 0.0
    doubt: float = 0.0

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
    """What turned a copy of the graph `before` into `after`, task by task: affected ns by sort."""

    def __init__(self, before: Graph, after: Graph) -> None:
        size, old, new = before.size, before.columns, after.columns
        was = np.where(before.alive, old["duration_ns"] + old["gap_ns"], 0)
        now = np.where(after.alive, new["duration_ns"] + new["gap_ns"], 0)
        inserted = np.arange(after.size) >= size
        copied = inserted & (new["row"] >= 0)
        modelled = inserted & ~copied
        for ids in after.modelled:
            modelled[ids] = True
        modelled[:size] &= after.alive[:size] & (was != now[:size])
        moved = np.zeros(after.size, np.int64)
        moved[:size] = np.where(modelled[:size], 0, np.abs(now[:size] - was))
        cpu, transfer = new["kind"] == CPU, np.isin(new["kind"], TRANSFERS)
        kernel = ~cpu & ~transfer
        doubted = np.zeros(after.size)
        for ids, error in after.doubted:
            doubted[ids] = error
        self.after = after
        self.ns: dict[str, np.ndarray] = {
            "moved": np.where(cpu | ~after.alive, moved, 0),
            "copied": np.where(copied & ~modelled, now, 0),
            "computed": np.where(modelled & cpu, now, 0),
            "kernels": np.where(kernel & after.alive, np.where(modelled, now, moved), 0),
            "transfers": np.where(transfer & after.alive, np.where(modelled, now, moved), 0),
        }
        beyond = np.maximum(doubted - MODEL_ERROR["kernels"], 0)
        self.doubt = np.where(kernel & after.alive & modelled, beyond * now, 0)

    def affected(self, changes_by_ns: int) -> Affected:
        """Return what they touch of a step, which changes by so much."""
        steps = [step for step in self.after.steps if step.get("covered")]
        covered = np.array([bool(step.get("covered")) for step in self.after.steps] + [False])
        ranks = {step.get("rank", 0) for step in steps}
        number = max(len(steps) // max(len(ranks), 1), 1)  # of steps of a rank
        lane, counts = self.after.columns["lane"], covered[self.after.columns["step"]]

        def busiest(ns: np.ndarray) -> float:
            return float(np.bincount(lane[counts], weights=ns[counts], minlength=1).max()) / number

        found, doubt = {sort: busiest(ns) for sort, ns in self.ns.items()}, busiest(self.doubt)
        return Affected(waits=max(abs(changes_by_ns) - sum(found.values()), 0.0), doubt=doubt, **found)

    def longer(self, affected: Affected, errors: Mapping[str, float]) -> Graph:
        """Return the changed graph with all that is affected longer by its sort's error.

        The sorts' errors are independent, so all are scaled down to the root of the sum of their squares.
        What was removed is missed where it was: behind the task before it on its lane.
        """
        parts = affected.errors_ns(errors)
        scale = hypot(*parts) / sum(parts) if sum(parts) else 0.0
        more = scale * (sum(errors[sort] * ns for sort, ns in self.ns.items()) + self.doubt)
        graph = self.after.copy()
        duration, gap = graph.columns["duration_ns"], graph.columns["gap_ns"]
        alive = graph.alive
        duration[alive] += np.rint(np.asarray(more)[alive]).astype(np.int64)
        gone = np.flatnonzero(~alive & (np.asarray(more) > 0))
        before = self._alive_before[gone]
        there = before >= 0
        missed = np.bincount(before[there], weights=np.asarray(more)[gone[there]], minlength=graph.size)
        gap += np.rint(missed).astype(np.int64)
        return graph

    @cached_property
    def _alive_before(self) -> np.ndarray:
        """For each task the last one before it on its lane that is still there, -1 for none."""
        columns, alive = self.after.columns, self.after.alive
        order = np.lexsort((columns["order"], columns["lane"]))
        last = np.maximum.accumulate(np.where(alive[order], np.arange(len(order)), -1))
        found = np.where(last >= 0, order[last], -1)
        same = columns["lane"][found] == columns["lane"][order]
        result = np.empty(len(order), np.int64)
        result[order] = np.where(same, found, -1)
        return result
