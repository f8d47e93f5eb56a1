"""A job of many ranks from the graph of one: the same program on all, some of them slower at times.

A rank's *jitter* makes each of its steps take a little longer or shorter than the recorded one, by
a factor that is drawn anew for each step and is 1 in the mean of the steps; a *straggler* is
slower by the same factor in all of them. Both are factors on everything a rank does but its
collectives, whose transfers take as long on all ranks. Waiting for the last one comes out of
the simulation: collectives begin, on all ranks, with the last of them,

    start[i, r] = max over all ranks q of (what the plan alone makes of start[i, q])

The ranks are columns of one pass over the plan: every number of that pass is a row with an entry a rank. A
row is kept only while a task still has to read it, so memory grows with what is under way at one time. Rows
are float64, which hold whole numbers exactly up to 2**53 ns (104 days): results are exact.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from daydream.arrays import distinct_rows
from daydream.errors import GraphError
from daydream.graph.tables import COLLECTIVE, covered_steps
from daydream.simulate import simulate
from daydream.simulate.steady_state import repeatable

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.plan import Plan
    from daydream.simulate.contention import Contention

ALL_MEET = -1  # instead of a row of factors: a collective, which takes as long on all ranks
STEPS = 16  # simulated after the steady pass: the mean over them is the job's step
MOST_TASKS = 1_000_000  # of one rank's repeated window


def slowdown_of(
    graph: Graph,
    ranks: int,
    jitter: float,
    straggler: float,
    seed: int,
    *,
    settled_copy: int,
    contention: Contention | None,
) -> float:
    """Return how many times longer so many ranks take for a graph's steps than one that waits for nobody.

    `jitter` is the standard deviation of a rank's factor from step to step, `straggler` that of
    rank 0 in all steps. Collectives meet all ranks. A step of the job is from all ranks'
    completion of one to that of the next; passes up to `settled_copy` do not count.
    The same seed gives a rank the same factors, however many others there are. With `contention`
    every rank's kernels and transfers slow each other as those of a rank that waits for nobody do.
    """
    window = repeatable(graph)
    copies = 1
    if window is not None:  # so many passes that enough steps count
        wanted = settled_copy + 1 + ceil(STEPS / covered_steps(graph).sum())
        copies = max(min(wanted, MOST_TASKS // len(graph)), settled_copy + 2)
    timeline = simulate(graph, copies=copies, window=window, contention=contention)
    first, step = distinct_rows([timeline.copy, timeline.column("step")])  # repetitions counted
    factors = factors_of(ranks, len(first), jitter, straggler, seed)
    row = np.where(graph.kind[timeline.task] == COLLECTIVE, ALL_MEET, step)
    closing = timeline.closing
    settled = min(settled_copy, timeline.copy[closing].max() - 1)
    together, alone = (
        sum(ns for (copy, _), ns in timeline.step_times(closing_ns).items() if copy > settled)
        for closing_ns in (
            ends(timeline.plan, factors, row, closing).max(axis=1),
            timeline.end_ns[closing],
        )
    )
    return together / alone if alone else 1.0


def factors_of(ranks: int, steps: int, jitter: float, straggler: float, seed: int) -> ndarray:
    """Return a factor for each step and rank, steps x ranks.

    Each rank's jitter is normal around 1, and exactly 1 in the mean of the steps, so that what a
    job loses to it is waiting and nothing else.
    """
    factors = np.ones((ranks, steps))
    if jitter and steps > 1:
        drawn = np.random.default_rng(seed).standard_normal((ranks, steps))
        drawn -= drawn.mean(axis=1, keepdims=True)
        factors += jitter * drawn / np.sqrt(1 - 1 / steps)
    factors[0] *= straggler
    return np.maximum(factors, 0).T


def ends(plan: Plan, factors: ndarray, row: ndarray, tasks: ndarray) -> ndarray:
    """Return when the given tasks end on each rank, in ns: tasks x ranks, by one pass over all tasks of the plan.

    Args:
        plan: of one rank.
        factors: rows x ranks, 0 or more: what a rank's durations and gaps are multiplied by.
        row: which row of the factors each task of the plan has; `ALL_MEET` for a collective.
        tasks: those whose ends are asked for.

    Raises `GraphError` for a plan with a policy on a lane: it decides in time order, by rank.

    """
    if plan.scheduled:
        raise GraphError(
            "a lane that is scheduled by priority picks at other times on each rank; "
            "ranks cannot be lanes of one graph there"
        )
    # Ranks that have the same factors are one column.
    distinct, column = np.unique(factors, axis=1, return_inverse=True)
    columns = distinct.shape[1]
    factors = np.append(distinct, np.ones((1, columns)), axis=0)  # the last is that of collectives
    by = [float(each[0]) if (each == each[0]).all() else each for each in factors]
    key = (
        2 * plan.edge_src.astype(np.int64) + ~plan.edge_from_start
    )  # of the start of a task; its end is odd
    edges = zip(key.tolist(), plan.edge_latency_ns.tolist(), strict=True)
    readers = np.bincount(key, minlength=2 * len(plan)).tolist()
    times = dict[int, ndarray]()
    progress = np.zeros((plan.lanes, columns))
    end = dict.fromkeys(tasks.tolist(), progress[:0])
    costs = plan.lane, plan.release_ns, plan.duration_ns, plan.gap_ns, np.diff(plan.edge_ptr), row
    for task, (lane, release, duration, gap, causes, number) in enumerate(
        zip(*(each.tolist() for each in costs), strict=True)
    ):
        now = progress[lane]
        factor = by[number]
        if release:
            np.maximum(now, release, out=now)
        for _ in range(causes):
            source, latency = next(edges)
            np.maximum(now, times[source] + latency, out=now)
            readers[source] -= 1
            if not readers[source]:
                del times[source]
        if number == ALL_MEET:
            now[:] = now.max()
        if readers[2 * task]:
            times[2 * task] = now.copy()
        if duration:
            now += np.floor(factor * duration + 0.5)
        if readers[2 * task + 1]:
            times[2 * task + 1] = now.copy()
        if task in end:
            end[task] = now.astype(np.int64)
        if gap:
            now += np.floor(factor * gap + 0.5)
    found = np.array([end[task] for task in tasks.tolist()], np.int64).reshape(-1, columns)
    return found[:, column.reshape(-1)]
