"""The skeleton of a plan: what is left of it when only some starts are asked for.

On a lane, `s = start - before`, with `before` the sum of all costs before a task, only grows
where an edge comes in (see `daydream.simulate.scan`). It matters only where it is read: at
the sources of edges and at the tasks that are asked about. So a lane shrinks to *nodes*,

    edges in       v   v       v v v         v
    lane         --------------------------------
    read at              ^           ^  ^       ^        3 nodes: the second and third read agree
    node                 0           1  1       2

and all edges from one node to another to a *bundle*, of which only the largest weight counts:

    s[node] = max(s[node before it on its lane], s[source] + largest weight of the bundle)

Most edges bind nowhere near: a launch queue that is seldom full is an edge for every launch.
Only edges that are at most a margin from binding in the plan's own timeline take part; the
others are checked afterwards. What is computed without them can only be too early, so where
all of them hold it is exact. For the check, a place counts as its node, whose `s` is that of
the next read: no less than its own. Where the plan's own `s` rises much between two reads,
another read is put in, so that this costs little.

Nodes and bundles depend on lanes, edges and that timeline only; a variant changes the weights.
The edges of a bundle move together between two changed tasks, so their largest weight is
looked up once for each such run of edges, for all factors of a selection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from daydream import compiled

if TYPE_CHECKING:
    from daydream.graph.plan import Plan
    from daydream.simulate.batch import Change

MOST_BYTES = 1 << 25  # of the weights of the variants that are scanned together
MOST_VARIANTS = 256


@dataclass(frozen=True)
class _Level:
    """Nodes that need nothing of each other but along their lane; slices are of nodes and bundles."""

    nodes: slice
    bundles: slice
    source: np.ndarray  #: node each bundle comes from
    first: np.ndarray  #: each node's first bundle
    rounds: list[tuple[np.ndarray, np.ndarray]]  #: (bundle, node) of the second ones, of the third ones, ...
    runs: list[slice]  #: nodes that follow one another on a lane, where there are several


@dataclass
class _Edges:
    """Edges as points: what they add is `weight` + costs before `begin` - costs before `stop`."""

    begin: np.ndarray
    stop: np.ndarray
    weight: np.ndarray
    source: np.ndarray
    target: np.ndarray
    checked: np.ndarray  #: takes no part, is checked afterwards

    def take(self, rows: np.ndarray) -> _Edges:
        return _Edges(*(column[rows] for column in vars(self).values()))

    def add(self, **columns: np.ndarray) -> _Edges:
        return _Edges(*(np.concatenate([old, columns[name]]) for name, old in vars(self).items()))


class Skeleton:
    """A plan made ready for many variants that are asked when the `observed` tasks end.

    Points count the costs before them: `2 * place` lies before the duration of the task at
    that place, `2 * place + 1` between its duration and its gap. Places order tasks by lane.
    `start` is when the plan's own tasks start, `margin` a share of the time that they take.
    """

    def __init__(self, plan: Plan, observed: np.ndarray, start: np.ndarray, margin: float) -> None:
        self.plan = plan
        order = plan.by_lane()
        place = np.empty(len(plan), np.int64)
        place[order] = np.arange(len(plan))
        self._place = place
        self._before = np.zeros(2 * len(plan) + 1, np.int64)
        costs = np.stack([plan.duration_ns[order], plan.gap_ns[order]], axis=1)
        np.cumsum(costs.ravel(), out=self._before[1:])
        near = int(margin * float(start.max() - start.min())) + 1

        edges = self._edges(order, start, near)
        height = (start[order] - self._before[:-1:2]) // (near // 2 + 1)
        lane, first_read, node_at = self._nodes(order, edges, place[observed], height)
        self._count = len(lane)
        timeless = edges.begin < 0
        edges.source, edges.target = node_at[edges.begin // 2], node_at[edges.stop // 2]
        edges.begin = np.maximum(edges.begin, 0)
        edges.weight = edges.weight + self._before[edges.begin] - self._before[edges.stop]

        part = ~edges.checked & ~timeless
        level = _levels(lane, first_read, edges.source[part], edges.target[part])
        sequence = np.lexsort((np.arange(self._count), lane, level))
        number = np.empty_like(sequence)
        number[sequence] = np.arange(self._count)
        # The first node of a level on a lane goes on from the node before it.
        resuming = np.flatnonzero((lane[1:] == lane[:-1]) & (level[1:] > level[:-1])) + 1
        edges.source = np.where(timeless, self._count, number[edges.source])
        edges.target = number[edges.target]
        none = np.zeros(len(resuming), np.int64)
        edges = edges.add(
            begin=none, stop=none, weight=none, source=number[resuming - 1], target=number[resuming],
            checked=none > 0,
        )  # fmt: skip

        # Within a bundle edges keep the order of their lane: long runs of them move together.
        edges = edges.take(np.argsort(edges.stop, kind="stable"))
        bundle = (edges.checked * self._count + edges.target) * (self._count + 1) + edges.source
        in_bundles = np.argsort(bundle, kind="stable")
        edges, bundle = edges.take(in_bundles), bundle[in_bundles]
        self._heads = np.append(True, bundle[1:] != bundle[:-1])
        self._weight = edges.weight
        source, target = edges.source[self._heads], edges.target[self._heads]
        free = int((~edges.checked[self._heads]).sum())
        self._levels = _plan_levels(lane[sequence], level[sequence], source[:free], target[:free])
        self._free, self._bundles = free, len(source)
        self._check_source, self._check_target = source[free:], target[free:]

        seen = 2 * place[observed] + 1
        used = np.zeros(2 * len(plan) + 1, np.int64)
        for points in (edges.begin, edges.stop, seen):
            used[points] = 1
        self._reached = np.cumsum(used)  # of each point, how many that are used lie up to it
        self._begin, self._stop, self._seen = (self._reached[p] - 1 for p in (edges.begin, edges.stop, seen))
        self._seen_before = self._before[seen]
        self._seen_node = number[node_at[place[observed]]]

    def _edges(self, order: np.ndarray, start: np.ndarray, near: int) -> _Edges:
        """Return the edges that can bind; releases and beginnings of lanes start at -1."""
        plan = self.plan
        # On its own lane an edge without latency says nothing that the order does not say.
        rows = np.flatnonzero(
            (plan.lane[plan.edge_src] != plan.lane[plan.edge_dst]) | (plan.edge_latency_ns > 0)
        )
        src, dst = plan.edge_src[rows], plan.edge_dst[rows]
        far = start[src] + plan.edge_delay_ns[rows] + near < start[dst]
        lane, released = plan.lane[order], plan.release_ns[order]
        held = np.flatnonzero((released > 0) | np.append(True, lane[1:] != lane[:-1]))
        begin = np.append(2 * self._place[src] + ~plan.edge_from_start[rows], np.full(len(held), -1))
        none = np.empty(0, np.int64)
        return _Edges(
            begin=begin,
            stop=2 * np.append(self._place[dst], held),
            weight=np.append(plan.edge_latency_ns[rows], released[held]),
            source=none,
            target=none,
            checked=np.append(far, np.zeros(len(held), bool)),
        )

    def _nodes(
        self, order: np.ndarray, edges: _Edges, observed: np.ndarray, height: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each node's lane and the task of its first read, and the node of each place.

        There is a read at the end of each lane, and where `height` changes.
        """
        lane = self.plan.lane[order]
        row, read = np.zeros(len(order), bool), np.append(lane[1:] != lane[:-1], True)
        row[edges.stop[~edges.checked] // 2] = True
        read[edges.begin[~edges.checked & (edges.begin >= 0)] // 2] = True
        read[observed] = True
        read[:-1] |= height[1:] != height[:-1]
        rows_so_far = np.cumsum(row)
        places = np.flatnonzero(read)
        counts, first = np.unique(rows_so_far[places], return_index=True)
        return lane[places[first]], order[places[first]], counts.searchsorted(rows_so_far)

    def ends(self, changes: Iterable[Change]) -> tuple[np.ndarray, np.ndarray]:
        """Return when the observed tasks end, a row a variant, and a mask of the rows that are exact."""
        most = max(1, min(MOST_VARIANTS, MOST_BYTES // (8 * (self._bundles + self._count + 1))))
        weights = np.empty((most, self._bundles), np.int64)
        shifts = np.empty((most, len(self._seen)), np.int64)
        found = [np.empty((0, len(self._seen)), np.int64)]
        exact = [np.empty(0, bool)]

        def finish(count: int) -> None:
            s, holds = self._scan(weights[:count])
            found.append(s + shifts[:count])
            exact.append(holds)

        filled = 0
        for change in changes:
            for first in range(0, len(change), most):
                part = change if len(change) <= most else change.take(slice(first, first + most))
                if filled + len(part) > most:
                    finish(filled)
                    filled = 0
                here = slice(filled, filled + len(part))
                self._weigh(part, weights[here], shifts[here])
                filled += len(part)
        if filled:
            finish(filled)
        return np.concatenate(found), np.concatenate(exact)

    def _weigh(self, change: Change, weights: np.ndarray, shifts: np.ndarray) -> None:
        """Fill in, for each variant, the weight of every bundle and what lies before the observed points."""
        plan, place = self.plan, self._place
        changed = np.append(2 * place[change.duration_of], 2 * place[change.gap_of] + 1)
        sequence = np.argsort(changed, kind="stable")
        # Of each point that is used, how many changed costs lie up to it: it grows at theirs.
        bounds = np.empty(len(changed) + 2, np.int64)
        bounds[0], bounds[1:-1] = 0, self._reached.take(changed.take(sequence))
        bounds[-1] = self._reached[-1] + 1
        so_far = np.repeat(np.arange(len(changed) + 1, dtype=np.int32), bounds[1:] - bounds[:-1])

        delta = np.empty((len(change), len(changed)), np.int64)
        delta[:, : len(change.duration_of)] = change.duration_ns - plan.duration_ns[change.duration_of]
        delta[:, len(change.duration_of) :] = change.gap_ns - plan.gap_ns[change.gap_of]
        total = np.zeros((len(change), len(changed) + 1), np.int64)
        np.cumsum(delta.take(sequence, axis=1), axis=1, out=total[:, 1:])
        np.add(total.take(so_far[self._seen], axis=1), self._seen_before, out=shifts)
        engine = compiled.engine()
        if engine is not None:
            engine.weigh(
                self._begin, self._stop, self._heads, self._weight, so_far, total, weights, len(change)
            )
            return
        begin, stop = so_far.take(self._begin), so_far.take(self._stop)
        moves = self._heads.copy()
        moves[1:] |= begin[1:] != begin[:-1]
        moves[1:] |= stop[1:] != stop[:-1]
        runs = moves.nonzero()[0]
        weight = total.take(begin[runs], axis=1)
        weight -= total.take(stop[runs], axis=1)
        weight += np.maximum.reduceat(self._weight, runs)
        np.maximum.reduceat(weight, self._heads.take(runs).nonzero()[0], axis=1, out=weights)

    def _scan(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `s` at the observed tasks, a row a variant, and whether the edges left out hold."""
        s = np.zeros((len(weights), self._count + 1), np.int64)  # the last column is the beginning of time
        for level in self._levels:
            value = s.take(level.source, axis=1)
            value += weights[:, level.bundles]
            if level.rounds:
                s[:, level.nodes] = value[:, level.first]
                for bundles, nodes in level.rounds:
                    s[:, nodes] = np.maximum(s[:, nodes], value[:, bundles])
            else:
                s[:, level.nodes] = value
            for run in level.runs:
                part = s[:, run]
                np.maximum.accumulate(part, axis=1, out=part)
        value = s.take(self._check_source, axis=1)
        value += weights[:, self._free :]
        holds: np.ndarray = (value <= s.take(self._check_target, axis=1)).all(axis=1)
        return s[:, self._seen_node], holds


def _levels(lane: np.ndarray, first_read: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return each node's level: that of the node before it on its lane, or one above any of its sources."""
    count = len(lane)
    to, of = np.divmod(np.unique(target * count + source), count)
    bounds, sources = to.searchsorted(np.arange(count + 1)).tolist(), of.tolist()
    follows = np.append(False, lane[1:] == lane[:-1]).tolist()
    level = [0] * count
    # Tasks are numbered in a topological order, so by its first read a node comes after all that it needs.
    for node in np.argsort(first_read, kind="stable").tolist():
        least = level[node - 1] if follows[node] else 0
        for each in sources[bounds[node] : bounds[node + 1]]:
            if level[each] >= least:
                least = level[each] + 1
        level[node] = least
    return np.array(level, np.int64)


def _plan_levels(lane: np.ndarray, level: np.ndarray, source: np.ndarray, target: np.ndarray) -> list[_Level]:
    """Return what each level scans: nodes are numbered by (level, lane, place), bundles sorted by target."""
    count = len(lane)
    new_level = np.append(True, level[1:] != level[:-1])
    bounds = [*np.flatnonzero(new_level).tolist(), count]
    pointer = target.searchsorted(np.arange(count + 1))
    run_begin = np.flatnonzero(new_level | np.append(True, lane[1:] != lane[:-1]))
    run_end = np.append(run_begin[1:], count)
    several = run_end - run_begin > 1
    run_begin, run_end = run_begin[several], run_end[several]
    levels = []
    for begin, end in pairwise(bounds):
        first = pointer[begin:end] - pointer[begin]
        bundles = slice(int(pointer[begin]), int(pointer[end]))
        sizes = np.diff(pointer[begin : end + 1])
        rounds = []
        for place in range(1, int(sizes.max())):
            more = np.flatnonzero(sizes > place)
            rounds.append((first[more] + place, begin + more))
        a, b = run_begin.searchsorted([begin, end]).tolist()
        runs = [slice(x, y) for x, y in zip(run_begin[a:b].tolist(), run_end[a:b].tolist(), strict=True)]
        levels.append(_Level(slice(begin, end), bundles, source[bundles], first, rounds, runs))
    return levels
