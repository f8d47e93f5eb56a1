"""Ranks that run one program: how fast each of them is, and where they meet.

A plan says what one rank runs. `Ranks` says how many there are, by what factor the costs of
each differ, and which tasks are collectives: those begin, on all ranks of a group, with
the last of them,

    start[i, r] = max over the ranks q of r's group of (what the plan alone says of start[i, q])

and take as long as the plan says. Everything else is the plan's, for each rank by itself.

`ends` answers without writing all ranks out: ranks that cannot differ are one class, classes
are lanes of one plan (`daydream.simulate.ranks.rank_lanes`). A few classes are quicker written out, as one
plan with all tasks of each (`daydream.simulate.ranks.explicit_ranks`), which is also what tests compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.simulate import scan
from daydream.simulate.ranks import rank_lanes
from daydream.simulate.ranks.explicit_ranks import explicit

if TYPE_CHECKING:
    import numpy.typing as npt

    from daydream.graph.plan import Plan

AS_PLANNED = -1  # of `scale`: the same costs on all ranks
NOWHERE = -1  # of `meets`: no collective
FEW = 8  # classes: so many are quicker written out; only speed depends on it


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of one plan, a column each.

    Row `scale[i]` of `factors` multiplies the duration and the gap of task i; with -1 they are the
    plan's on every rank. Row `meets[i]` of `groups` numbers the group that each rank meets in
    before task i begins; with -1 nobody is waited for.
    """

    factors: np.ndarray  #: float64, rows x ranks, 0 or more
    scale: np.ndarray  #: int64, one a task
    meets: np.ndarray  #: int64, one a task
    groups: np.ndarray  #: int64, patterns x ranks

    @classmethod
    def of(
        cls,
        plan: Plan,
        factors: npt.ArrayLike,
        *,
        scale: npt.ArrayLike | None = None,
        meets: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
    ) -> Ranks:
        """Return the ranks of a plan; a task's row of factors is 0 and all ranks are one group if not given.

        `factors` may be one number a rank. Raises `GraphError` for what does not fit together.
        """
        by = np.atleast_2d(np.asarray(factors, np.float64))
        count = by.shape[1]
        chosen = np.zeros(len(plan), np.int64) if scale is None else np.asarray(scale, np.int64)
        meeting = np.full(len(plan), NOWHERE) if meets is None else np.asarray(meets, np.int64)
        group = np.zeros((1, count), np.int64) if groups is None else np.atleast_2d(np.asarray(groups))
        if by.ndim != 2 or not count or not (np.isfinite(by) & (by >= 0)).all():
            raise GraphError("a factor of 0 or more is needed for each of one or more ranks")
        if chosen.shape != (len(plan),) or meeting.shape != (len(plan),) or group.shape[1] != count:
            raise GraphError(
                f"{len(plan)} tasks and {count} ranks were given {chosen.shape} rows of factors, "
                f"{meeting.shape} collectives and {group.shape} groups; give one per task, groups per rank"
            )
        for what, rows, number in (("factors", chosen, len(by)), ("groups", meeting, len(group))):
            if len(rows) and not -1 <= rows.min() <= rows.max() < number:
                raise GraphError(f"a task names row {rows.max()} of {number} rows of {what}")
        dense = [np.unique(row, return_inverse=True)[1].reshape(-1) for row in group]
        return cls(by, chosen, meeting, np.array(dense, np.int64).reshape(group.shape))

    @property
    def count(self) -> int:
        """The number of ranks."""
        return int(self.factors.shape[1])

    def take(self, ranks: npt.ArrayLike) -> Ranks:
        """Return some of the ranks, their groups without the others."""
        chosen = np.asarray(ranks, np.int64)
        return Ranks(self.factors[:, chosen], self.scale, self.meets, self.groups[:, chosen])

    def costs(self, plan: Plan, ranks: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return durations and gaps on some ranks, tasks x ranks, rounded half up as `scale` does."""
        factors = np.concatenate([self.factors, np.ones((1, self.count))])[:, np.asarray(ranks, np.int64)]
        by = factors[self.scale]  # the last row, which -1 means, leaves everything as it is

        def times(values: np.ndarray) -> np.ndarray:
            result: np.ndarray = np.floor(values[:, None] * by + 0.5).astype(np.int64)
            return result

        return times(plan.duration_ns), times(plan.gap_ns)

    def classes(self) -> np.ndarray:
        """Return the class of each rank: ranks of one class run everything at the same times.

        They have equal factors, and at each meeting the classes in their groups are the same.
        """
        label = _numbered(self.factors)
        while True:
            count = int(label.max()) + 1
            if count == self.count:
                return label
            signs = [_members(label, self.groups[row]) for row in np.unique(self.meets[self.meets >= 0])]
            finer = _numbered(np.stack([label, *signs]))
            if int(finer.max()) + 1 == count:
                return label
            label = finer


def _numbered(rows: np.ndarray) -> np.ndarray:
    """Return for each column the number of the columns that are equal to it."""
    _, number = np.unique(rows, axis=1, return_inverse=True)
    return number.reshape(-1)


def _members(label: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each rank a number that stands for the set of classes in its group."""
    pairs = np.unique(group * (int(label.max()) + 1) + label)
    of_group, member = np.divmod(pairs, int(label.max()) + 1)
    parts = np.split(member, np.flatnonzero(np.diff(of_group)) + 1)
    numbers: dict[bytes, int] = {}
    sign = np.array([numbers.setdefault(part.tobytes(), len(numbers)) for part in parts])
    return sign[group]


def ends(plan: Plan, ranks: Ranks, tasks: npt.ArrayLike) -> np.ndarray:
    """Return when the given tasks end on each rank, in ns: tasks x ranks.

    Raises `GraphError` for a plan with a policy on a lane: it decides in time order, by rank.
    """
    observed = np.asarray(tasks, np.int64)
    if plan.scheduled and ranks.count > 1:
        raise GraphError(
            "a lane that is scheduled by priority picks at other times on each rank; "
            "ranks cannot be lanes of one graph there"
        )
    label = ranks.classes()
    _, first = np.unique(label, return_index=True)
    few = ranks.take(first)
    if few.count == 1:
        duration, gap = (costs[:, 0] for costs in few.costs(plan, [0]))
        found = scan.run(plan.with_costs(duration, gap))[1][observed][:, None]
    else:
        few = Ranks(few.factors, few.scale, few.meets, _groups_of_classes(ranks, label, first))
        if few.count <= FEW:
            whole, place = explicit(plan, few)
            found = scan.run(whole)[1][place[observed]]
        else:
            found = rank_lanes.ends(plan, few, observed)
    return found[:, label]


def _groups_of_classes(ranks: Ranks, label: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return in which group each class meets: with the classes whose members sit in its members' groups."""
    if len(first) == ranks.count:
        return ranks.groups[:, first]
    return np.array([_members(label, row)[first] for row in ranks.groups])
