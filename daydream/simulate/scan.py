"""The default engine: the compiled loop over a plan where it was built, else max-plus scans in NumPy.

The loop takes each task in turn (`compiled/_engine.c`). Without it there is one scan per row of runs:
on a lane `start[i] = max(start[i-1] + cost[i-1], ready[i])`, cost being duration + gap. With `before[i]`
the sum of all costs before `i`, and `s = start - before`, this reads `s[i] = max(s[i-1], ready[i] -
before[i])`: a running maximum. It changes at the heads of runs only (see `daydream.simulate.runs`), so
lanes are rows of runs. They are cut into segments such that whatever a segment needs from elsewhere is
known when it begins:

    level(run) = max(level(run before it on its lane), level(cause) + 1 for its other causes)

    lane 0    0 0 0 | 2 2 2 | 4 4        a thread that launches, and synchronizes twice
    lane 1        1 1 1 | 3 3            its stream

A segment is a row of runs of equal level on one lane. Level after level, the edges into it are
gathered in one go, then each of its segments takes one running maximum. In a level of few runs
these are taken one by one: NumPy's calls would take longer.

The cut depends on lanes and edges only. It is kept in `plan.cache` and serves every plan
that shares it. Where lanes wait for each other so often that levels hold few runs, a
plain pass over Python lists is quicker and is taken instead; results are the same.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream import compiled
from daydream.graph.plan import stable_order
from daydream.simulate import policy
from daydream.simulate.runs import Runs, runs_of

if TYPE_CHECKING:
    from daydream.graph.plan import Plan

# Cutting takes about 10 us a level and each pass 3 us, the pass over lists 0.3 us a run: with this many
# runs a level both take as long for a replay and one what-if. Where levels have many segments, a segment
# costs 0.8 us. A run that is taken by itself costs 0.5 us, a level in NumPy as much as 6 to 10 of them.
# Measured on a 2-core x86 machine with NumPy 2.4; only speed depends on these three numbers.
LEAST_RUNS_A_LEVEL = 32
LEAST_RUNS_A_SEGMENT = 3
FEW = 6  # runs, and edges into them


def run(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return when each task starts and ends, in ns: int64, shape (tasks,)."""
    if plan.scheduled:
        return policy.run(plan)
    engine = compiled.engine()
    if engine is not None:
        progress = np.empty(plan.lanes, np.int64)
        start, end = np.empty((2, len(plan)), np.int64)
        if engine.pull(
            plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns, plan.edge_ptr, plan.edge_src,
            plan.edge_latency_ns, plan.edge_from_start, progress, start, end,
        ):  # fmt: skip
            return start, end
    return in_numpy(plan)


def in_numpy(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return what `run` does, without the compiled loop. No lane may have a policy."""
    levels = cut(plan)
    start = pull(plan) if levels is None else _scan(plan, levels)
    return start, start + plan.duration_ns


class Level(NamedTuple):
    """What one level gathers and scans; slots are positions of runs in the order (level, lane, id)."""

    edges: slice
    src: np.ndarray  #: slots of the sources of these edges
    rows: np.ndarray | slice  #: slots that have edges
    mine: slice | None  #: these among the rows of all levels; None where nothing else holds any of them
    first: np.ndarray | None  #: each row's first edge, counted within the level; None if all have one
    segments: list[tuple[slice, int]]  #: and the slot before each on its lane, its own first where none is
    few: list[tuple[int, int, list[tuple[int, int]]]]  #: slots of few, those before, and (source, edge) pairs


class Levels(NamedTuple):
    """Runs cut into levels. Edges are those not on the same segment, by the slot they lead to."""

    head: np.ndarray  #: the place where the run of each slot begins
    release_ns: np.ndarray  #: its earliest start
    slot: np.ndarray  #: of each run
    dst: np.ndarray  #: slot each edge leads to
    wait: np.ndarray  #: which of the runs' waits it is
    rows: np.ndarray  #: of all levels
    levels: list[Level]


def _scan(plan: Plan, levels: Levels) -> np.ndarray:
    runs = runs_of(plan)
    before, weight = weigh(plan, runs, levels)
    s = levels.release_ns - before.take(levels.head)
    own = s.take(levels.rows)
    at, adds = s.data, weight.data  # quicker to read one by one
    for edges, src, rows, mine, first, segments, few in levels.levels:
        for slot, last, waits in few:
            latest = max(at[slot], at[last])
            for cause, edge in waits:
                latest = max(latest, at[cause] + adds[edge])
            at[slot] = latest
        if few:
            continue
        if len(src):
            value = s.take(src)
            value += weight[edges]
            if first is not None:
                value = np.maximum.reduceat(value, first)
            s[rows] = value if mine is None else np.maximum(value, own[mine])
        for segment, last in segments:
            at[segment.start] = max(at[segment.start], at[last])
            part = s[segment]
            np.maximum.accumulate(part, out=part)
    return runs.spread(s.take(levels.slot), before)


def weigh(plan: Plan, runs: Runs, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
    """Return `before` of each place, and of each edge what it adds to its source's `s`."""
    before = runs.before(plan)
    delay = runs.delay_ns(plan, before)
    delay -= before.take(runs.head).take(runs.dst)
    return before, delay.take(levels.wait)


def cut(plan: Plan) -> Levels | None:
    """Return the plan cut into levels, or None if they would hold too few runs to be worth it."""
    if "levels" not in plan.cache:
        plan.cache["levels"] = _cut(plan, runs_of(plan))
    levels: Levels | None = plan.cache["levels"]
    return levels


def _cut(plan: Plan, runs: Runs) -> Levels | None:
    bounds = np.zeros(plan.lanes + 1, np.int64)
    np.cumsum(np.bincount(runs.lane, minlength=plan.lanes), out=bounds[1:])
    found = _segments(runs.src, runs.dst, runs.lane[runs.src], runs.lane[runs.dst], bounds)
    if found is None:
        return None
    begin, length, level_ptr = found
    if len(begin) * LEAST_RUNS_A_SEGMENT > len(runs) + 64:
        return None
    offset = np.append(0, np.cumsum(length))
    at_slot = np.repeat(begin - offset[:-1], length) + np.arange(len(runs))
    return _lay_out(plan, runs, at_slot, offset, level_ptr)


def _lay_out(
    plan: Plan, runs: Runs, at_slot: np.ndarray, offset: np.ndarray, level_ptr: np.ndarray
) -> Levels:
    """Return the levels: `offset` is where segments begin, `level_ptr` which of them begin a level."""
    slot = np.empty(len(runs), np.int64)
    slot[at_slot] = np.arange(len(runs))
    count = np.bincount(runs.dst, minlength=len(runs))[at_slot]
    wait = np.argsort(slot[runs.dst], kind="stable")
    src = slot[runs.src[wait]]
    row = np.append(0, np.cumsum(count))
    head = runs.head[at_slot]
    release_ns = plan.release_ns[runs.order[head]]
    leads = np.append(True, runs.lane[1:] != runs.lane[:-1])[at_slot]  # its lane
    previous = slot[at_slot - ~leads]

    rows = np.flatnonzero(count)
    first = row[rows]
    held = np.flatnonzero(leads | (release_ns > 0))  # all others have edges, and need no more than these say
    begins = offset[level_ptr]
    bounds = row[begins], rows.searchsorted(begins), held.searchsorted(begins), level_ptr
    stops = offset.tolist()
    before = previous[offset[:-1]].tolist()
    segments = [(slice(*ends), last) for ends, last in zip(pairwise(stops), before, strict=True)]
    levels = []
    for (edge, edge_end), (at, end), (held_before, held_after), (one, other) in zip(
        *(pairwise(b.tolist()) for b in bounds), strict=True
    ):
        edges, mine, slots = slice(edge, edge_end), slice(at, end), slice(stops[one], stops[other])
        firsts = None if end - at == edge_end - edge else first[mine] - edge
        is_held, size = held_after > held_before, max(edge_end - edge, slots.stop - slots.start)
        levels.append(
            Level(
                edges,
                src[edges],
                rows[mine] if is_held else slots,
                mine if is_held else None,
                firsts,
                segments[one:other],
                _few(slots, previous, row, src) if size <= FEW else [],
            )
        )
    dst = np.repeat(np.arange(len(runs)), count)
    return Levels(head, release_ns, slot, dst, wait, rows, levels)


def _few(
    slots: slice, previous: np.ndarray, row: np.ndarray, src: np.ndarray
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Return `Level.few` of these slots; `row` is where the edges into each slot begin, and the end."""
    lasts, bounds = previous[slots].tolist(), pairwise(row[slots.start : slots.stop + 1].tolist())
    return [
        (slot, last, [(int(src[edge]), edge) for edge in range(*edges)])
        for slot, last, edges in zip(range(slots.start, slots.stop), lasts, bounds, strict=True)
    ]


def _segments(
    src: np.ndarray, dst: np.ndarray, src_lane: np.ndarray, dst_lane: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return begin and length of the segments by (level, lane), and where each level's segments begin.

    `src` and `dst` are runs in the order (lane, id), `bounds` where each lane begins.
    A level reaches on each lane to the first run that needs a source from beyond the
    beginning of the level. Edges are grouped by pair of lanes; within a group the furthest
    source needed so far only grows, so one binary search a group finds that run.
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

    # One ascending array of all groups, each closed by an entry that stands for "no run": the lane's end.
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

    steps, end = [bounds[:-1]], bounds[1:]
    left, most = int(end.sum()), n // LEAST_RUNS_A_LEVEL + 64
    while int(steps[-1].sum()) < left:
        if len(steps) > most:
            return None
        now = end.copy()
        if len(heads):
            limit = needed_by[furthest.searchsorted(base + steps[-1][from_lane])]
            now[waiting_lanes] = np.minimum.reduceat(limit, first_of_lane)
        steps.append(now)
    reached = np.stack(steps)
    length = np.diff(reached, axis=0)
    level, lane = np.nonzero(length)
    level_ptr = np.append(0, np.cumsum(np.bincount(level, minlength=len(length))))
    return reached[level, lane], length[level, lane], level_ptr


def pull(plan: Plan) -> np.ndarray:
    """Return the starts by one pass over the runs in plain Python."""
    runs = runs_of(plan)
    before = runs.before(plan)
    head = before[runs.head]
    shift = (plan.release_ns[runs.order[runs.head]] - head).tolist()
    weight = runs.delay_ns(plan, before) - head[runs.dst]
    # Heads are numbered in a topological order.
    sequence = np.argsort(runs.order[runs.head])
    stops = np.cumsum(np.bincount(runs.dst, minlength=len(runs))).tolist()
    src, weights = runs.src.tolist(), weight.tolist()
    latest = [-int(before[-1])] * plan.lanes
    for number, lane in zip(sequence.tolist(), runs.lane[sequence].tolist(), strict=True):
        s = max(shift[number], latest[lane])
        for edge in range(stops[number - 1] if number else 0, stops[number]):
            ready = shift[src[edge]] + weights[edge]
            if ready > s:  # noqa: PLR1730 - quicker than max()
                s = ready
        shift[number] = latest[lane] = s
    return runs.spread(np.array(shift, np.int64), before)
