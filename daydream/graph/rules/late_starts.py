"""Rule 6b, late starts: device work that no known cause held, and that starts as work on another stream ends.

Blocks of kernels are placed in the order of launches, as processors come free: a kernel
that finds the device full begins when the one before it has no more blocks to place, some
tens of microseconds before that one's end. And work behind a stream wait whose event is
not in the recording begins a few microseconds behind what it waited for:

    stream 7   |matrix product, fills the device        |
    stream 23       launched, held by nothing       |begins

Kept as launch latency, the delay would stay when the device gets faster. Close by chance is
likely where kernels are short, so only ends of long ones count, and on a stream nearly all
late starts must be so.
"""

from __future__ import annotations

from math import comb

import numpy as np

from daydream.arrays import unique
from daydream.graph.builder import GraphBuilder
from daydream.graph.plan import Cause
from daydream.graph.tables import CPU

LATE_NS = 50_000  # beyond all known causes
LONG_NS = 100_000  # of what held it: a short kernel leaves room at once
BEFORE_NS = 30_000  # the last blocks of a kernel take so long; 3 to 25 us (H800)
BEHIND_NS = 10_000
OFTEN = 0.8  # of the late starts of a stream
CHANCE = 0.01  # that as many are so close


def follow_what_held(builder: GraphBuilder) -> None:
    """Let late device work follow the long work of another stream that ended as it began."""
    builder.settle_events()
    columns = builder.graph.columns
    lanes = builder.graph.lanes
    late = np.flatnonzero(builder.late_starts() >= LATE_NS)
    late = late[columns["launch"][late] >= 0]
    if not len(late):
        return
    work = np.flatnonzero(columns["kind"] != CPU)
    long = work[(builder.end_ns[work] - builder.start_ns[work] >= LONG_NS) & (columns["row"][work] >= 0)]
    for lane in unique(columns["lane"][late]).tolist():
        tasks = late[columns["lane"][late] == lane]
        own = (lanes[lane].rank, lanes[lane].device)
        beside = [k for k, other in enumerate(lanes) if k != lane and (other.rank, other.device) == own]
        others = long[np.isin(columns["lane"][long], beside)]
        held = _held(builder, tasks, others)
        near = held >= 0
        if (
            near.sum() >= OFTEN * len(tasks)
            and _chance(builder, len(tasks), int(near.sum()), others) <= CHANCE
        ):
            _link(builder, tasks[near], held[near])


def _held(builder: GraphBuilder, tasks: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return, for each late task, the long one launched before it that ended nearest to its start, or -1."""
    if not len(others):
        return np.full(len(tasks), -1)
    order = builder.graph.columns["order"]
    others = others[np.argsort(builder.end_ns[others], kind="stable")]
    ends = builder.end_ns[others]
    held = np.full(len(tasks), -1)
    starts = builder.start_ns[tasks]
    low, high = np.searchsorted(ends, starts - BEHIND_NS), np.searchsorted(ends, starts + BEFORE_NS + 1)
    for place in np.flatnonzero(high > low).tolist():  # a handful
        start, task = starts[place], tasks[place]
        around = others[low[place] : high[place]]
        around = around[(order[around] < order[task]) & (builder.start_ns[around] < start)]
        if len(around):
            held[place] = around[np.argmin(np.abs(builder.end_ns[around] - start))]
    return held


def _chance(builder: GraphBuilder, count: int, near: int, others: np.ndarray) -> float:
    """Return how likely that many of some moments lie so close to the end of a long task."""
    if not near:
        return 1.0
    span = max(int(builder.end_ns[others].max() - builder.start_ns[others].min()), 1)
    each = min(len(others) * (BEFORE_NS + BEHIND_NS) / span, 1.0)
    return float(comb(count, near) * each**near)


def _link(builder: GraphBuilder, tasks: np.ndarray, held: np.ndarray) -> None:
    apart = builder.start_ns[tasks] - builder.end_ns[held]
    builder.graph.link(held, tasks, latency_ns=apart, cause=Cause.EVENT)
    builder.matched += zip(tasks.tolist(), held.tolist(), strict=True)
