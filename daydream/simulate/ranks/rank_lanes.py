"""Ranks as lanes of one plan: one pass over its tasks, in which every number is a row with an entry a rank.

Tasks that follow each other on a lane, where nothing comes in but at the first and nothing is read
but at the last, are one *node*. Nodes are taken in the order of their first tasks. A row is kept
only while something still reads it, so memory grows with what is under way at one time, not
with the tasks: launches that have not run, and one row for each lane.

Rows are float64, which hold whole numbers exactly up to 2**53 ns (104 days): results are exact,
and equal to those of the same ranks written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.plan import Plan
    from daydream.simulate.ranks.speeds import Ranks

END, START = 0, 1  # what of a task is read: key = 2 * task + one of these


class _Node(NamedTuple):
    """Tasks of one lane that run as one; costs that are 0 are left out."""

    lane: int
    release: float
    edges: list[tuple[int, float]]  #: (key, latency) of what it waits for
    meets: int
    scale: int
    inner: list[float]  #: costs before the last task
    duration: float  #: of the last task
    gap: float
    last: int


def ends(plan: Plan, ranks: Ranks, observed: np.ndarray) -> np.ndarray:
    """Return when the observed tasks end on each rank, in ns: tasks x ranks."""
    nodes, readers = _nodes(plan, ranks, observed)
    matched = [_Meeting(group) for group in ranks.groups]
    factors = [*(_Factor(row) for row in ranks.factors), _Factor(np.ones(1))]  # the last one is -1's
    progress = np.zeros((plan.lanes, ranks.count))
    work = np.empty(ranks.count)
    kept = _Kept(readers, ranks.count)
    for place, task in enumerate(observed.tolist()):
        kept.places.setdefault(2 * task + END, []).append(place)
    kept.found = np.empty((len(observed), ranks.count), np.int64)

    for node in nodes:
        now = progress[node.lane]
        if node.release:
            np.maximum(now, node.release, out=now)
        for key, latency in node.edges:
            source = kept.read(key)
            np.maximum(now, np.add(source, latency, out=work) if latency else source, out=now)
        if node.meets >= 0:
            matched[node.meets].wait(now)
        factor = factors[node.scale]
        for cost in node.inner:
            factor.add(cost, now, work)
        kept.write(2 * node.last + START, now)
        factor.add(node.duration, now, work)
        kept.write(2 * node.last + END, now)
        factor.add(node.gap, now, work)
    return kept.found


class _Kept:
    """Rows that are still read: each is let go with its last reader, and its memory used again."""

    def __init__(self, readers: dict[int, int], count: int) -> None:
        self.readers = readers
        self.count = count
        self.rows: dict[int, np.ndarray] = {}
        self.free: list[np.ndarray] = []
        self.places: dict[int, list[int]] = {}  #: key -> its rows of `found`
        self.found = np.empty((0, count), np.int64)

    def write(self, key: int, now: np.ndarray) -> None:
        """Keep a row if it is read or asked for."""
        if key in self.readers:
            self.rows[key] = row = self.free.pop() if self.free else np.empty(self.count)
            row[:] = now
        for place in self.places.get(key, ()):
            self.found[place] = now

    def read(self, key: int) -> np.ndarray:
        """Return a row, until the next one is written."""
        row = self.rows[key]
        self.readers[key] -= 1
        if not self.readers[key]:
            self.free.append(self.rows.pop(key))
        return row


class _Factor:
    """Adds costs, multiplied by each rank's factor and rounded half up, to a row."""

    def __init__(self, factors: np.ndarray) -> None:
        self.factors = np.ascontiguousarray(factors)
        self.same = float(factors[0]) if (factors == factors[0]).all() else None

    def add(self, cost: float, row: np.ndarray, work: np.ndarray) -> None:
        """Add one cost to a row."""
        if not cost:
            return
        if self.same is not None:
            row += (cost * self.same + 0.5) // 1
            return
        np.multiply(self.factors, cost, out=work)
        work += 0.5
        np.floor(work, out=work)
        row += work


class _Meeting:
    """Makes the ranks of each group wait for the last of them."""

    def __init__(self, group: np.ndarray) -> None:
        self.all = not group.any()
        self.alone = len(np.unique(group)) == len(group)
        self.order = np.argsort(group, kind="stable")
        sizes = np.bincount(group)
        self.first = np.cumsum(sizes) - sizes
        self.group = group

    def wait(self, row: np.ndarray) -> None:
        """Raise each entry of a row to the largest of its group."""
        if self.all:
            row[:] = row.max()
        elif not self.alone:
            row[:] = np.maximum.reduceat(row[self.order], self.first)[self.group]


def _nodes(plan: Plan, ranks: Ranks, observed: np.ndarray) -> tuple[list[_Node], dict[int, int]]:
    """Return the nodes in the order in which they can be run, and how often each key is read."""
    # On its own lane an edge without latency says nothing that the order does not say.
    counts = (plan.lane[plan.edge_src] != plan.lane[plan.edge_dst]) | (plan.edge_latency_ns > 0)
    src, dst = plan.edge_src[counts].astype(np.int64), plan.edge_dst[counts]
    key = 2 * src + plan.edge_from_start[counts]
    latency = plan.edge_latency_ns[counts].astype(np.float64).tolist()
    into = np.bincount(dst, minlength=len(plan))
    pointer = np.append(0, np.cumsum(into)).tolist()
    read, times = np.unique(key, return_counts=True)
    readers = dict(zip(read.tolist(), times.tolist(), strict=True))

    order = plan.by_lane()
    lane, scale = plan.lane[order], ranks.scale[order]
    begins = np.append(True, (lane[1:] != lane[:-1]) | (scale[1:] != scale[:-1]))
    begins |= (into[order] > 0) | (plan.release_ns[order] > 0) | (ranks.meets[order] >= 0)
    ends_here = np.zeros(len(plan), bool)
    ends_here[src] = True
    ends_here[observed] = True
    begins[1:] |= ends_here[order[:-1]]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(plan)) - 1

    duration, gap = (c[order].astype(np.float64) for c in (plan.duration_ns, plan.gap_ns))
    costs = np.stack([duration, gap], axis=1).reshape(-1)
    some = np.flatnonzero(costs)
    bounds = zip(some.searchsorted(2 * first).tolist(), some.searchsorted(2 * last).tolist(), strict=True)
    values = costs[some].tolist()
    head, tail = order[first], order[last]
    keys = key.tolist()
    columns = zip(
        plan.lane[head].tolist(), plan.release_ns[head].astype(np.float64).tolist(), head.tolist(),
        ranks.meets[head].tolist(), ranks.scale[head].tolist(), bounds, duration[last].tolist(),
        gap[last].tolist(), tail.tolist(), strict=True,
    )  # fmt: skip
    nodes = []
    for lane_, release, task, meets, scaled, (begin, end), lasting, behind, closing in columns:
        edges = slice(pointer[task], pointer[task + 1])
        waits = list(zip(keys[edges], latency[edges], strict=True))
        nodes.append(_Node(lane_, release, waits, meets, scaled, values[begin:end], lasting, behind, closing))
    return [nodes[place] for place in np.argsort(head, kind="stable").tolist()], readers
