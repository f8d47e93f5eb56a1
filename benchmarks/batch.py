"""Batches: many variants of one plan together, against simulating each of them alone."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from results import Aim, Part, Settings, Table, alone, control, say
from synthetic import synthetic
from timing import take_turns, times_faster
from traces import sources

import daydream
from daydream.graph.plan import Plan
from daydream.simulate import scan
from daydream.simulate.batch import Scaled, ends, scaled
from daydream.simulate.steady import settle
from daydream.simulate.steady_variants import Speedup, settle_all

Run = Callable[[Plan], tuple[np.ndarray, np.ndarray]]

FACTORS = (0.75, 0.5, 0.25, 0.0)
SELECTIONS = 250
STEPS = 10  # of a synthetic plan, whose ends are asked for
RUN = 37  # tasks that follow one another in a synthetic plan belong to one selection
EACH = 10  # of the variants, for the engine that takes longest
ALONE = 12  # what-ifs that are settled one by one, to say what a thousand would take

METHOD = f"""\
{SELECTIONS} selections of tasks, each at {len(FACTORS)} factors, are the variants of one plan: when does
each step end on each lane? Together: `daydream.simulate.batch.ends`, its planning included. One by one: the
default engine on the same plan with other durations, its planning done beforehand and shared. "As it was":
the engine that was the default before there was a compiled one, the scan in NumPy (`scan.in_numpy`; on
recordings it is about a fifth quicker now than `scan.run` of revision 1dcb52ce was), of which every {EACH}th
variant is timed. All are
checked to give equal times before they are timed. Selections of a synthetic plan are runs of {RUN} tasks that
come again and again; those of a trace are its task names, as many as there are, and the plan is its window as
it is repeated to settle. "Settled step" is the question that users ask: `settle_all` on the graph against
`settle` on changed copies of it, of which {ALONE} are timed. A/A is the batch against itself."""

COLUMNS = {
    "graph": "graph",
    "tasks": "tasks",
    "variants": "variants",
    "together_ms": "together, ms a variant",
    "alone_ms": "one by one, ms a variant",
    "faster": "times faster",
    "scan_ms": "as it was, ms a variant",
    "faster_than_scan": "times faster than it was",
    "settled_ms": "settled step together, ms a variant",
    "settled_faster": "times faster than settling alone",
    "control": "A/A",
}


def measure(settings: Settings) -> Part:
    """Return the benchmark of batches."""
    part = Part("Batches", METHOD)
    table = Table("Variants", COLUMNS)
    part.tables.append(table)
    part.aims.append(Aim("1,000 variants together against one by one", 10, {}))
    part.aims.append(Aim("1,000 variants together against one by one as it was", 20, {}))
    for tasks in (10_000, 100_000):
        for sync_every in (2000,) if settings.quick else (2000, 100):
            name = f"synthetic, {tasks // 1000:,}k, sync every {sync_every}"
            plan = synthetic(tasks, sync_every)
            groups = np.arange(len(plan)) // RUN % SELECTIONS
            selected = [np.flatnonzero(groups == number) for number in range(SELECTIONS)]
            table.rows.append(_race(part, settings, name, plan, selected, _ends_of_steps(plan)))
    with sources(quick=settings.quick) as chosen:
        for source in chosen:
            replay = daydream.replay(daydream.load(source.path))
            timeline = replay.timeline
            names = replay.graph.columns["name"]
            often = np.argsort(-np.bincount(names[timeline.task]), kind="stable")[:SELECTIONS]
            selected = [np.flatnonzero(names[timeline.task] == code) for code in often.tolist()]
            selected = [tasks for tasks in selected if len(tasks)]
            row = _race(part, settings, source.name, timeline.plan, selected, timeline.closing)
            row |= _settled(replay.graph, [np.unique(timeline.task[tasks]) for tasks in selected])
            table.rows.append(row)
    return part


def _ends_of_steps(plan: Plan) -> np.ndarray:
    """Return the last task of each lane in each of some stretches of equal length."""
    key = np.arange(len(plan)) * STEPS // len(plan) * plan.lanes + plan.lane
    last = np.full(STEPS * plan.lanes, -1)
    last[key] = np.arange(len(plan))
    return last[last >= 0]


def _race(
    part: Part, settings: Settings, name: str, plan: Plan, selected: list[np.ndarray], observed: np.ndarray
) -> dict[str, Any]:
    say(f"variants of {name}")
    changes = [scaled(tasks, FACTORS) for tasks in selected]
    some = changes[::EACH]
    variants, few = sum(map(len, changes)), sum(map(len, some))
    together = ends(plan, changes, observed)
    same = np.array_equal(together, _one_by_one(scan.run, plan, changes, observed))
    if not same or not np.array_equal(
        ends(plan, some, observed), _one_by_one(scan.in_numpy, plan, some, observed)
    ):
        raise ValueError(f"together and one by one disagree on {name}")
    seconds = take_turns(
        {
            "together": _once(lambda: ends(plan, changes, observed)),
            "alone": _once(lambda: _one_by_one(scan.run, plan, changes, observed)),
            "scan": _once(lambda: _one_by_one(scan.in_numpy, plan, some, observed)),
            "together again": _once(lambda: ends(plan, changes, observed)),
        },
        settings.rounds(5),
    )
    seconds["scan"] = [each * variants / few for each in seconds["scan"]]
    faster, than_scan = (times_faster(seconds, "together", other) for other in ("alone", "scan"))
    part.aims[0].cases[name] = faster.value
    part.aims[1].cases[name] = than_scan.value
    return {
        "graph": name,
        "tasks": len(plan),
        "variants": variants,
        "together_ms": float(np.median(seconds["together"])) / variants * 1e3,
        "alone_ms": float(np.median(seconds["alone"])) / variants * 1e3,
        "faster": str(faster),
        "scan_ms": float(np.median(seconds["scan"])) / variants * 1e3,
        "faster_than_scan": str(than_scan),
        "control": control(times_faster(seconds, "together", "together again")),
        "seconds": seconds,
    }


def _one_by_one(run: Run, plan: Plan, changes: list[Scaled], observed: np.ndarray) -> np.ndarray:
    return np.array([run(variant)[1][observed] for change in changes for variant in change.plans(plan)])


def _settled(graph: daydream.Graph, selected: list[np.ndarray]) -> dict[str, Any]:
    speedups = [Speedup(ids, FACTORS) for ids in selected]
    variants = len(speedups) * len(FACTORS)
    together = _once(lambda: settle_all(graph, speedups))() / variants
    chosen = [(speedup, factor) for speedup in speedups for factor in FACTORS]
    changed = []
    for speedup, factor in chosen[:: max(len(chosen) // ALONE, 1)]:
        changed.append(graph.copy())
        speedup.apply(changed[-1], factor)
    settle(changed[0])
    one_by_one = _once(lambda: [settle(each) for each in changed])() / len(changed)
    return {"settled_ms": together * 1e3, "settled_faster": one_by_one / together}


def _once(function: Callable[[], object]) -> Callable[[], float]:
    def job() -> float:
        begin = perf_counter()
        function()
        return perf_counter() - begin

    return job


if __name__ == "__main__":
    alone(measure)
