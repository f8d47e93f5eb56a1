"""Many ranks as columns of one pass over a plan."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from results import Aim, Part, Settings, Table, alone, control, say
from synthetic import LINK, synthetic
from timing import take_turns, times_faster

from daydream.graph.plan import Plan
from daydream.simulate.ranks import ALL_MEET, ends

TASKS = 6_200  # of one rank and step
JITTER, SLOWER = 0.02, 1.2
OBSERVED = 64
MOST = 16_384

METHOD = f"""\
One step of {TASKS:,} tasks on every rank (`benchmarks/synthetic.py`), which waits for all others in each of
its collectives. *All differ*: each rank has a factor of its own, normal with a standard deviation of
{JITTER:.0%}. *One straggler*: ranks are equal but for one that takes {SLOWER:g} times as long. Times
are those of `ranks.ends` for the last {OBSERVED} tasks of each rank. Memory is the peak of what `tracemalloc`
counts during one run, without the plan of one rank. A/A is the columns against themselves."""

COLUMNS = {
    "case": "ranks",
    "ranks": "number",
    "tasks": "tasks, million",
    "lanes_ms": "as lanes, ms",
    "lanes_mb": "as lanes, MB",
    "control": "A/A",
}


def measure(settings: Settings) -> Part:
    """Return the benchmark of many ranks."""
    part = Part("Many ranks", METHOD)
    table = Table("Ranks as lanes", COLUMNS)
    part.tables.append(table)
    part.aims += [Aim("16,384 ranks as lanes", 1_000, {}, least=False, unit="ms")]
    plan = synthetic(TASKS)
    for count in (64, 256) if settings.quick else (64, 1_024, MOST):
        for case, factors in _cases(count).items():
            table.rows.append(_race(part, settings, plan, case, factors))
    return part


def _cases(count: int) -> dict[str, np.ndarray]:
    """Return factors of ranks that differ in ways of their own."""
    return {
        "all differ": 1 + JITTER * np.random.default_rng(0).standard_normal(count),
        "one straggler": np.where(np.arange(count) == count // 2, SLOWER, 1.0),
    }


def _race(part: Part, settings: Settings, plan: Plan, case: str, factors: np.ndarray) -> dict[str, Any]:
    count = len(factors)
    name = f"{count:,} ranks, {case}"
    say(name)
    observed = np.arange(len(plan))[-OBSERVED:]
    row = np.where(plan.lane == LINK, ALL_MEET, 0)

    def lanes() -> np.ndarray:
        return ends(plan, factors, row, observed)

    jobs: dict[str, Callable[[], np.ndarray]] = {"lanes": lanes, "lanes again": lanes}
    seconds = take_turns({job: _once(run) for job, run in jobs.items()}, settings.rounds(5))
    row: dict[str, Any] = {
        "case": case,
        "ranks": count,
        "tasks": len(plan) * count / 1e6,
        "lanes_ms": float(np.median(seconds["lanes"])) * 1e3,
        "lanes_mb": _peak(lanes) / 1e6,
        "control": control(times_faster(seconds, "lanes", "lanes again")),
        "seconds": seconds,
    }
    if count == MOST:
        part.aims[0].cases[name] = row["lanes_ms"]
    return row


def _once(function: Callable[[], object]) -> Callable[[], float]:
    def job() -> float:
        begin = perf_counter()
        function()
        return perf_counter() - begin

    return job


def _peak(function: Callable[[], object]) -> int:
    tracemalloc.start()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    alone(measure)
