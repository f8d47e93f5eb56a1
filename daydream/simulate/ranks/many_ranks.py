"""A job of many ranks from the graph of one: the same program on all, some of them slower at times.

A rank's *jitter* makes each of its steps take a little longer or shorter than the recorded one, by
a factor that is drawn anew for each step and is 1 in the mean of the steps; a *straggler* is
slower by the same factor in all of them. Both are factors on everything a rank does but its
collectives, whose transfers take as long on all ranks. Waiting for the last one comes out of
the simulation (`daydream.simulate.ranks.speeds`).

The steps are the covered ones, repeated behind each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.tables import COLLECTIVE
from daydream.simulate import simulate
from daydream.simulate.ranks.speeds import AS_PLANNED, NOWHERE, Ranks, ends
from daydream.simulate.steady import need_steps, repeatable

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.contention import Contention
    from daydream.simulate.timeline import Timeline

STEPS = 16  # simulated after the settled pass: the mean over them is the job's step
MOST_TASKS = 1_000_000  # of one rank's repeated window


@dataclass(frozen=True, eq=False)
class Job:
    """The steps of a job, in ns: `step_ns` from all ranks' completion of one to that of the next.

    `alone_ns` are those of a rank that is never slower and waits for nobody. `classes` is how many
    ranks had to be told apart.
    """

    ranks: int
    classes: int
    step_ns: np.ndarray
    alone_ns: np.ndarray

    @property
    def slowdown(self) -> float:
        """How many times longer the job takes for its steps than a rank that waits for nobody."""
        alone = float(self.alone_ns.sum())
        return float(self.step_ns.sum()) / alone if alone else 1.0


def job(
    graph: Graph,
    ranks: int,
    *,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    groups: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    settled_copy: int = 0,
    contention: Contention | None = None,
) -> Job:
    """Return the steps of so many ranks that run the graph of one.

    `jitter` is the standard deviation of a rank's factor from step to step, `stragglers` the factor
    of each rank that is always slower. Collectives meet all ranks, or, where their process group
    is a key of `groups`, the ranks of equal number in it. Passes up to `settled_copy` do not count.
    The same seed gives a rank the same factors, however many others there are. With `contention`
    every rank's kernels and transfers slow each other as those of a rank that waits for nobody do.

    Raises `GraphError` for numbers that make no sense, and if the graph covers no step.
    """
    if ranks < 1 or not 0 <= jitter < np.inf:
        raise GraphError(f"1 or more ranks and a jitter of 0 or more are needed, not {ranks} and {jitter:g}")
    unknown = [rank for rank in stragglers or {} if not 0 <= rank < ranks]
    if unknown:
        raise GraphError(f"rank {unknown[0]} is to be slower, but ranks are 0 to {ranks - 1}")
    need_steps(graph)
    timeline = _repeated(graph, settled_copy, contention)
    meets, patterns = _meetings(graph, timeline, ranks, groups or {})
    scale, count = _steps(timeline)
    factors = factors_of(ranks, count, jitter=jitter, stragglers=stragglers, seed=seed)
    scale = np.where(meets >= 0, AS_PLANNED, scale)
    chosen = Ranks.of(timeline.plan, factors, scale=scale, meets=meets, groups=patterns)
    closing = timeline.closing
    found = ends(timeline.plan, chosen, closing).max(axis=1)
    job_ns = _step_times(timeline, found, settled_copy)
    alone_ns = _step_times(timeline, timeline.end_ns[closing], settled_copy)
    return Job(ranks, int(chosen.classes().max()) + 1, job_ns, alone_ns)


def factors_of(
    ranks: int,
    steps: int,
    *,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Return a factor for each step and rank, steps x ranks.

    Each rank's jitter is normal around 1, and exactly 1 in the mean of the steps, so that what a
    job loses to it is waiting and nothing else.
    """
    factors = np.ones((ranks, steps))
    if jitter and steps > 1:
        drawn = np.random.default_rng(seed).standard_normal((ranks, steps))
        drawn -= drawn.mean(axis=1, keepdims=True)
        factors += jitter * drawn / np.sqrt(1 - 1 / steps)
    for rank, factor in (stragglers or {}).items():
        factors[rank] *= factor
    return np.maximum(factors, 0).T


def _repeated(graph: Graph, settled_copy: int, contention: Contention | None) -> Timeline:
    """Return the timeline of one rank with so many passes that enough steps count."""
    window = repeatable(graph)
    if window is None:
        return simulate(graph, contention=contention)
    covered = sum(bool(step.get("covered")) for step in graph.steps)
    wanted = settled_copy + 1 + ceil(STEPS / covered)
    copies = max(min(wanted, MOST_TASKS // max(len(graph), 1)), settled_copy + 2, 2)
    return simulate(graph, copies=copies, window=window, contention=contention)


def _meetings(
    graph: Graph, timeline: Timeline, ranks: int, groups: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which tasks meet in which pattern of groups, and the patterns."""
    tasks = np.flatnonzero(graph.columns["kind"][timeline.task] == COLLECTIVE)
    meets = np.full(len(timeline.task), NOWHERE)
    meets[tasks] = 0
    patterns = [np.zeros(ranks, np.int64)]
    names = graph.column("group", timeline.task[tasks])
    for name, group in groups.items():
        if np.shape(group) != (ranks,):
            raise GraphError(f"group {name!r} tells {np.shape(group)} numbers; one for each of {ranks} ranks")
        meets[tasks[names == name]] = len(patterns)
        patterns.append(np.asarray(group, np.int64))
    return meets, np.array(patterns)


def _steps(timeline: Timeline) -> tuple[np.ndarray, int]:
    """Return for each entry the number of its step, repetitions counted, and how many there are."""
    step = timeline.graph.columns["step"][timeline.task].astype(np.int64)
    key = timeline.copy * np.int64(len(timeline.graph.steps) + 1) + step + 1
    found, number = np.unique(key, return_inverse=True)
    return number.reshape(-1), len(found)


def _step_times(timeline: Timeline, closing_ns: np.ndarray, settled_copy: int) -> np.ndarray:
    """Return the times of the steps behind the settled pass, each from one completion to the next."""
    times = timeline.step_times(closing_ns)
    last = int(timeline.copy[timeline.closing].max())
    behind = [ns for (copy, _), ns in times.items() if copy > settled_copy or last <= settled_copy]
    return np.array(behind, np.int64)
