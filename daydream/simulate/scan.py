"""The default engine: one max-plus scan per run of tasks, in NumPy.

On a lane `start[i] = max(start[i-1] + cost[i-1], ready[i])`, cost being duration + gap.
With `before[i]` the sum of all costs before `i`, and `s = start - before`, this reads
`s[i] = max(s[i-1], ready[i] - before[i])`: a running maximum. So lanes are cut into
segments such that whatever a segment needs from elsewhere is known when it begins:

    level(task) = max(level(task before it on its lane), level(cause) + 1 for its other causes)

    lane 0    0 0 0 | 2 2 2 | 4 4        a thread that launches, and synchronizes twice
    lane 1        1 1 1 | 3 3            its stream

A segment is a run of equal level on one lane. Level after level, the edges into it are
gathered in one go, then each of its segments takes one running maximum.

The cut depends on lanes and edges only. It is kept in `plan.cache` and serves every plan
that shares it. Where lanes wait for each other so often that levels hold few tasks, a
plain pass over Python lists is quicker and is taken instead; results are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.graph.plan import stable_order
from daydream.simulate import policy

if TYPE_CHECKING:
    from daydream.graph.plan import Plan

# Cutting takes about 10 us a level and each run 3 us, the pass over lists 0.3 us a task: with this many
# tasks a level both take as long for a replay and one what-if. Where levels have many segments, a segment
# costs 0.8 us. Measured on a 2-core x86 machine with NumPy 2.4; only speed depends on these two numbers.
LEAST_TASKS_A_LEVEL = 32
LEAST_TASKS_A_SEGMENT = 3

FROM_START, FROM_END, FROM_LANE = 0, 1, 2


def run(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return when each task starts and ends, in ns."""
    if plan.scheduled:
        return policy.run(plan)
    levels = cut(plan)
    start = pull(plan) if levels is None else _scan(plan, levels)
    return start, start + plan.duration_ns


class Level(NamedTuple):
    """What one level gathers and scans; places are positions in the order (level, lane, id)."""

    edges: slice
    src: np.ndarray  #: places of the sources of these edges
    rows: np.ndarray  #: places that have edges
    first: np.ndarray | None  #: each row's first edge, counted within the level; None if all have one
    segments: list[slice]


class Levels(NamedTuple):
    """A plan cut into levels. Edges are those not on the same segment, by the place they lead to."""

    task: np.ndarray  #: the task at each place
    release_ns: np.ndarray  #: its earliest start
    dst: np.ndarray  #: place each edge leads to
    origin: np.ndarray  #: place it comes from + number of tasks * (FROM_START, FROM_END or FROM_LANE)
    latency_ns: np.ndarray
    folded: np.ndarray  #: edges of the plan to the very next task on a lane: they only lengthen the gap
    levels: list[Level]


def _scan(plan: Plan, levels: Levels) -> np.ndarray:
    before, weight = weigh(plan, levels)
    s = levels.release_ns - before
    for edges, src, rows, first, segments in levels.levels:
        if len(rows):
            value = s[src]
            value += weight[edges]
            if first is not None:
                value = np.maximum.reduceat(value, first)
            s[rows] = np.maximum(s[rows], value)
        for segment in segments:
            part = s[segment]
            np.maximum.accumulate(part, out=part)
    s += before
    start: np.ndarray = np.empty_like(s)
    start[levels.task] = s
    return start


def weigh(plan: Plan, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
    """Return `before` of each place, and of each edge what it adds to its source's `s`."""
    duration = plan.duration_ns[levels.task]
    after = np.cumsum(duration + _gap(plan, levels.folded)[levels.task])
    before = np.zeros_like(after)
    before[1:] = after[:-1]
    weight = np.concatenate((before, before + duration, after))[levels.origin]
    weight += levels.latency_ns
    weight -= before[levels.dst]
    return before, weight


def _gap(plan: Plan, folded: np.ndarray) -> np.ndarray:
    """Return the gaps, lengthened by the edges from a task to the very next one on its lane."""
    gap: np.ndarray = plan.gap_ns
    if len(folded):
        gap = gap.copy()
        task = plan.edge_src[folded]
        np.maximum.at(gap, task, plan.edge_delay_ns[folded] - plan.duration_ns[task])
    return gap


def cut(plan: Plan) -> Levels | None:
    """Return the plan cut into levels, or None if they would hold too few tasks to be worth it."""
    if "levels" not in plan.cache:
        plan.cache["levels"] = _cut(plan)
    levels: Levels | None = plan.cache["levels"]
    return levels


def _cut(plan: Plan) -> Levels | None:
    by_lane = plan.by_lane()
    bounds = np.zeros(plan.lanes + 1, np.int64)
    np.cumsum(np.bincount(plan.lane, minlength=plan.lanes), out=bounds[1:])
    position = _inverse(by_lane)

    # On its own lane an edge without latency says nothing that the order does not say.
    src_lane, dst_lane = plan.lane[plan.edge_src], plan.lane[plan.edge_dst]
    across = src_lane != dst_lane
    inner = np.flatnonzero(~across & (plan.edge_latency_ns > 0))
    next_one = position[plan.edge_src[inner]] + 1 == position[plan.edge_dst[inner]]
    folded = inner[next_one]
    across[inner[~next_one]] = True
    waits = np.flatnonzero(across)

    src, dst = plan.edge_src[waits], plan.edge_dst[waits]
    found = _segments(position[src], position[dst], src_lane[waits], dst_lane[waits], bounds)
    if found is None:
        return None
    begin, length, level_ptr = found
    if len(begin) * LEAST_TASKS_A_SEGMENT > len(plan) + 64:
        return None
    offset = np.append(0, np.cumsum(length))
    task = by_lane[np.repeat(begin - offset[:-1], length) + np.arange(len(plan))]
    later = begin > bounds[plan.lane[by_lane[begin]]]
    return _lay_out(
        plan, task, offset, level_ptr, by_lane[begin[later] - 1], offset[:-1][later], waits, folded
    )


def _lay_out(
    plan: Plan,
    task: np.ndarray,
    offset: np.ndarray,
    level_ptr: np.ndarray,
    last: np.ndarray,
    resumed: np.ndarray,
    waits: np.ndarray,
    folded: np.ndarray,
) -> Levels:
    """Return the levels: `offset` is where segments begin, `level_ptr` which of them begin a level.

    `resumed` are the places where a segment goes on with its lane after the task `last`: an edge leads there.
    """
    n, place = len(plan), _inverse(task)
    dst = plan.edge_dst[waits]
    count = np.bincount(dst, minlength=n)
    edges_before = np.cumsum(count) - count
    total = count[task]
    total[resumed] += 1
    row = np.zeros(n + 1, np.int64)
    np.cumsum(total, out=row[1:])
    slot = row[place[dst]] - edges_before[dst] + np.arange(len(dst))
    resuming = row[resumed + 1] - 1

    src, kind, latency = (np.zeros(row[-1], np.int64) for _ in range(3))
    src[slot], src[resuming] = place[plan.edge_src[waits]], place[last]
    kind[slot], kind[resuming] = np.where(plan.edge_from_start[waits], FROM_START, FROM_END), FROM_LANE
    latency[slot] = plan.edge_latency_ns[waits]

    rows = np.flatnonzero(total)
    first = row[rows]
    edge_bounds = row[offset[level_ptr]].tolist()
    row_bounds = rows.searchsorted(offset[level_ptr]).tolist()
    stops, segment_bounds = offset.tolist(), level_ptr.tolist()
    levels = []
    for k in range(len(level_ptr) - 1):
        edges, mine = slice(*edge_bounds[k : k + 2]), slice(*row_bounds[k : k + 2])
        single = mine.stop - mine.start == edges.stop - edges.start
        firsts = None if single else first[mine] - edges.start
        segments = [slice(stops[i], stops[i + 1]) for i in range(*segment_bounds[k : k + 2])]
        levels.append(Level(edges, src[edges], rows[mine], firsts, segments))
    return Levels(
        task=task,
        release_ns=plan.release_ns[task] if plan.release_ns.any() else np.broadcast_to(np.int64(0), n),
        dst=np.repeat(np.arange(n, dtype=np.int32), total),
        origin=(src + n * kind).astype(np.int32 if 3 * n < 1 << 31 else np.int64),
        latency_ns=latency,
        folded=folded,
        levels=levels,
    )


def _segments(
    src: np.ndarray, dst: np.ndarray, src_lane: np.ndarray, dst_lane: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return begin and length of the segments by (level, lane), and where each level's segments begin.

    `src` and `dst` are positions in the order (lane, id), `bounds` where each lane begins.
    A level reaches on each lane to the first task that needs a source from beyond the
    beginning of the level. Edges are grouped by pair of lanes; within a group the furthest
    source needed so far only grows, so one binary search a group finds that task.
    """
    lanes, n = len(bounds) - 1, int(bounds[-1])
    order = stable_order(src_lane, lanes)
    order = order[stable_order(dst_lane[order], lanes)]
    src, dst, src_lane, dst_lane = src[order], dst[order], src_lane[order], dst_lane[order]
    new = np.ones(len(src), np.bool_)
    new[1:] = (src_lane[1:] != src_lane[:-1]) | (dst_lane[1:] != dst_lane[:-1])
    heads = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    from_lane, to_lane = src_lane[heads], dst_lane[heads]

    # One ascending array of all groups, each closed by an entry that stands for "no task": the lane's end.
    base = np.arange(len(heads)) * (n + 1)
    furthest = np.empty(len(src) + len(heads), np.int64)
    needed_by = np.empty_like(furthest)
    slot = np.arange(len(src)) + group
    closing = np.append(heads[1:], len(src)) + np.arange(len(heads))
    furthest[slot], furthest[closing] = src + base[group], base + n
    needed_by[slot], needed_by[closing] = dst, bounds[to_lane + 1]
    np.maximum.accumulate(furthest, out=furthest)
    first_of_lane = np.flatnonzero(np.append(True, to_lane[1:] != to_lane[:-1])) if len(heads) else heads
    waiting_lanes = to_lane[first_of_lane]

    begins, lengths, level_ptr = [], [], [0]
    reached, end = bounds[:-1], bounds[1:]
    done = 0
    while done < n:
        if len(level_ptr) * LEAST_TASKS_A_LEVEL > n + 64 * LEAST_TASKS_A_LEVEL:
            return None
        now = end.copy()
        if len(heads):
            limit = needed_by[furthest.searchsorted(base + reached[from_lane])]
            now[waiting_lanes] = np.minimum.reduceat(limit, first_of_lane)
        length = now - reached
        some = length.nonzero()[0]
        begins.append(reached[some])
        lengths.append(length[some])
        level_ptr.append(level_ptr[-1] + len(some))
        done += int(length.sum())
        reached = now
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *begins]), np.concatenate([empty, *lengths]), np.array(level_ptr)


def _inverse(order: np.ndarray) -> np.ndarray:
    inverse: np.ndarray = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def pull(plan: Plan) -> np.ndarray:
    """Return the starts by one pass over the tasks in plain Python."""
    start = [0] * len(plan)
    progress = [0] * plan.lanes
    src, delay = plan.edge_src.tolist(), plan.edge_delay_ns.tolist()
    columns = plan.lane, plan.release_ns, plan.duration_ns + plan.gap_ns, plan.edge_ptr[1:]
    edge = 0
    for task, (lane, at, cost, stop) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        latest = max(at, progress[lane])
        while edge < stop:
            ready = start[src[edge]] + delay[edge]
            if ready > latest:  # noqa: PLR1730 - quicker than max()
                latest = ready
            edge += 1
        start[task] = latest
        progress[lane] = latest + cost
    return np.array(start, np.int64)
