"""What each part of the work costs: curves of the step time against its speed; blame of ranks and stages.

For every layer, operator, kernel family, link and CPU cost the question of a causal
profiler: if this part alone took 75%, 50%, 25% or none of its time, how long would a step
take? A part that takes long but is hidden behind other work has a flat curve. Where a curve
bends, something else has begun to decide: that is its knee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from daydream.arrays import distinct, unique
from daydream.costs.operators import family
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.tables import (
    CODED,
    COLLECTIVE,
    COSTS,
    CPU,
    KERNEL,
    MEMCPY,
    covered_steps,
    step_rank,
)
from daydream.lazy import NotebookFigure
from daydream.predict.replay import OfStep, Replay, Source, as_replay
from daydream.results import Record
from daydream.simulate.steady_state import settle
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    import pandas as pd


FACTORS = (0.75, 0.5, 0.25, 0.0)
LEAST_SHARE = 0.002  # of a step: what takes less on its own is left out, it cannot save more
MOST_PARTS = 10  # of each sort, those that take longest
KNEE = 0.5  # beyond the knee a quarter of the part's time saves less than this much of what the first did
LEAST_GAIN = 0.0005  # of a step: what saves less is flat


class Curve(Record):
    """The step time when one part of the work takes some factors of its time.

    Attributes:
        sort: layer, operator, kernel, link or cpu.
        name: the part.
        own_ns: its own time per step, hidden or not.
        factors: of its time, from 1.
        step_ns: the step at each of these.
        knee: the factor at which making it faster stops paying: 0 if it pays to the end, None if never.
        saving_ns: what a step would save if it took no time.
    """

    sort: str
    name: str
    own_ns: int
    factors: tuple[float, ...]
    step_ns: tuple[int, ...]
    knee: float | None = None
    saving_ns: int = 0

    def __post_init__(self) -> None:
        """Fill in what the curve tells."""
        self.saving_ns = self.step_ns[0] - self.step_ns[-1]
        gains = -np.diff(self.step_ns) / -np.diff(self.factors)
        if gains[0] * (self.factors[0] - self.factors[1]) >= LEAST_GAIN * self.step_ns[0]:
            stops = np.flatnonzero(gains < KNEE * gains[0])
            self.knee = self.factors[stops[0]] if len(stops) else self.factors[-1]


class Curves(NotebookFigure, list[Curve]):
    """Curves in a list, those first whose absence would save most."""

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per curve: the part, its own time, the step time at each factor, the knee."""
        import pandas as pd

        return pd.DataFrame([curve.to_json() for curve in self])


def curves(source: Replay | Graph | Source) -> Curves:
    """Return the curves of the parts that take longest, those first whose removal would save most.

    Returns:
        Of each layer, operator, kernel family, link and CPU cost: the step, in ns, at shares of its time.

    Raises:
        GraphError: the trace covers no step.

    """
    before = as_replay(source)
    now = before.settled.step_ns
    drawn = Curves()
    for sort, name, own_ns, ids, of in _parts(before.graph, now):
        steps_ns = [now]
        for factor in FACTORS:
            times = {each: before.graph.columns[each].copy() for each in COSTS}
            for each in of:
                times[each][ids] = np.floor(times[each][ids] * factor + 0.5)
            steps_ns.append(before.settled.mean_after(settle(before.graph.retimed(**times))))
        drawn.append(Curve(sort, name, own_ns, (1.0, *FACTORS), tuple(steps_ns)))
    drawn.sort(key=lambda curve: (-curve.saving_ns, -curve.own_ns, curve.sort, curve.name))
    return drawn


def drawable(before: Replay) -> bool:
    """Tell whether there is any curve to draw, without drawing one."""
    return any(True for _ in _parts(before.graph, before.settled.step_ns))


def _parts(graph: Graph, step_ns: int) -> Iterator[tuple[str, str, int, ndarray, Sequence[str]]]:
    """Yield the parts of each sort, those that take longest first.

    Sort, name, own time in ns, tasks, and which of their times are the part.
    """
    kind = graph.kind
    covered = covered_steps(graph)
    cpu = kind == CPU
    calls = graph.of_rows("runtime")
    work, gap = ([name] for name in COSTS)
    coded = {name: (graph.columns[name], graph.texts[name]) for name in CODED}
    coded["all"] = np.zeros(graph.size, int), ["untraced CPU time"]
    coded["lane"] = graph.lane, [f"all of {lane.name}" for lane in graph.lanes]
    for sort, mask, by, label, of in (
        ("layer", True, "layer", str, work),
        ("operator", True, "op", str, work),
        ("kernel", kind == KERNEL, "name", family, work),
        ("link", kind == MEMCPY, "name", str, work),
        ("link", kind == COLLECTIVE, "name", family, work),
        ("cpu", cpu & calls, "name", str, work),
        ("cpu", cpu & (graph.gap_ns > 0), "all", str, gap),
        ("cpu", cpu, "lane", str, [*COSTS]),
    ):
        code, names = coded[by]
        ids = np.flatnonzero(graph.alive & mask & (code >= 0))
        used, place = distinct(code[ids])
        labels = dict[str, int]()  # with their numbers: several names may have one
        numbers = [labels.setdefault(label(names[each]), len(labels)) for each in used.tolist()]
        part = np.array(numbers, np.int64)[place]
        counts = covered[graph.step[ids]]
        cost = sum(graph.columns[name][ids[counts]] for name in of)
        total = np.bincount(part[counts], cost, len(labels)) / max(covered.sum(), 1)
        for each in np.argsort(-total, kind="stable")[:MOST_PARTS].tolist():
            # A lane may go on behind the end of the step.
            own_ns = min(total[each], step_ns) if by == "lane" else total[each]
            if own_ns >= LEAST_SHARE * step_ns:
                yield sort, [*labels][each], round(own_ns), ids[part == each], of


# Blame of ranks and stages

WORK = ("loading", "CPU work", "kernels", "copies")
SMALLEST = 0.005  # of a step: a part that is longer by less is not named
MOST = 64  # parts that are simulated by themselves


class Blamed(Record):
    """What one kind of work of a rank, or of all ranks of a stage, costs the job; ns a step.

    Attributes:
        rank: whose work takes longer than that of other ranks of its stage; None for all of a stage.
        stage: of a pipeline, from 0.
        work: loading, CPU work, kernels or copies.
        longer_ns: how much longer than is typical.
        saving_ns: how much shorter the job's step is without that alone.
        cost_ns: its share of what all parts cost together.
    """

    rank: int | None
    stage: int
    work: str
    longer_ns: int
    saving_ns: int = 0
    cost_ns: int = 0

    @property
    def who(self) -> str:
        """The rank, or the stage."""
        return f"stage {self.stage}" if self.rank is None else f"rank {self.rank}"


class Blame(OfStep, NotebookFigure):
    """Why a job's step is longer than if all ranks took what is typical; ns a step.

    replayed_ns = balanced_ns + others_ns + the cost_ns of all parts.

    Attributes:
        balanced_ns: the step if no rank and no stage took longer than is typical.
        parts: what costs most, the largest first.
        others_ns: what parts that are not named cost together.
        ns_by_rank: costs by rank, and of what all ranks of a stage share.
        ns_by_stage: costs by stage, those of its ranks included.
        ns_by_work: costs by kind of work.
        notes: what a reader should know before trusting the figures.
    """

    balanced_ns: int
    parts: list[Blamed]
    others_ns: int = 0
    ns_by_rank: Mapping[str, int] = {}
    ns_by_stage: Mapping[str, int] = {}
    ns_by_work: Mapping[str, int] = {}
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Add the costs up."""
        sums = Counter[str](), Counter[str](), Counter[str]()
        for each in self.parts:
            for total, name in zip(sums, (each.who, f"stage {each.stage}", each.work), strict=True):
                total[name] += each.cost_ns
        self.ns_by_rank, self.ns_by_stage, self.ns_by_work = (
            dict(each.most_common()) for each in sums
        )
        self.others_ns = self.replayed_ns - self.balanced_ns - sums[0].total()


def blame(source: Replay | Source) -> Blame:
    """Return what each rank, stage and kind of work costs the job, simulated.

    Step by step a rank's work of a kind is compared with the lower median of the ranks of its stage, and that of
    a stage with the lower median of the stages. Without a part its tasks take so much less that their sum is the
    median. Parts are taken out one after the other, those first that save most by themselves, and
    in the reverse order: the mean of what each saves is its cost, so that costs add up. Collectives
    are nobody's work: they begin with the last rank and end for all.

    Raises:
        NotApplicableError: a single rank was recorded.
        GraphError: the trace covers no step.

    """
    replay = as_replay(source)
    graph = replay.graph
    rank_of = np.array([step_rank(step) for step in graph.steps])
    covered = np.flatnonzero(covered_steps(graph))
    ranks = unique(rank_of[covered])
    if len(ranks) < 2:
        raise NotApplicableError(
            "one rank was recorded, and who delays whom shows among several: import their traces together"
        )
    by_rank = [covered[rank_of[covered] == rank] for rank in ranks]
    table = np.stack([steps[: min(map(len, by_rank))] for steps in by_rank], axis=1)
    places = np.full(len(graph.steps) + 1, -1)
    places[table] = np.arange(table.size).reshape(table.shape)
    links = graph.links
    outside = np.flatnonzero(links["cause"] == Cause.OUTSIDE)  # waits for workers, disks, timers
    place = places[np.append(graph.step, graph.step[links["dst"][outside]])]
    work = np.append(_work_of(graph), np.zeros(len(outside), np.int64))
    cell = np.where(np.minimum(place, work) < 0, -1, place * len(WORK) + work)
    ns = np.append(graph.duration_ns + graph.gap_ns, links["latency_ns"][outside])
    spent = np.bincount(cell + 1, ns, table.size * len(WORK) + 1)[1:].reshape(*table.shape, -1)
    # Units are ranks, then stages: columns that belong to each, what it takes, by how much that is longer.
    stages = np.unique(_stages(graph, ranks.tolist()), return_inverse=True)[1]
    members = [np.flatnonzero(stages == stage) for stage in range(max(stages) + 1)]
    typical = np.stack([_typical(spent[:, each]) for each in members], axis=1)
    among = np.broadcast_to(_typical(typical)[:, None], typical.shape)
    own = np.append(spent, typical, axis=1)
    longer = (own - np.append(typical[:, stages], among, axis=1)).clip(0)
    factor = 1 - longer / own.clip(1)
    mean = np.rint(longer.mean(axis=0))
    members = [*np.arange(len(ranks))[:, None], *members]

    def step_ns(parts: Iterable[Sequence[int]]) -> int:
        """Return the job's step without some parts: units and their kinds of work."""
        left = np.ones(spent.shape)
        for unit, kind in parts:
            left[:, members[unit], kind] *= factor[:, unit, kind, None]
        share = np.append(left, 1.0)[cell]
        times = np.stack([graph.columns[name] for name in COSTS]) * share[: graph.size]
        twin = graph.retimed(*np.rint(times))
        if (share[graph.size :] < 1).any():
            twin.links.write("latency_ns", outside, np.rint(ns * share)[graph.size :])
        return replay.settled.mean_after(settle(twin))

    now = replay.basis_ns
    found = []
    for unit, kind in np.argwhere(mean >= SMALLEST * now).tolist():
        who = int(ranks[unit]) if unit < len(ranks) else None, int(stages[members[unit][0]])
        found.append((Blamed(*who, WORK[kind], int(mean[unit, kind])), (unit, kind)))
    found = sorted(found, key=lambda each: -each[0].longer_ns)[:MOST]
    for each, part in found:
        each.saving_ns = now - step_ns([part])
    found.sort(key=lambda each: -each[0].saving_ns)
    for order in (found, found[::-1]):
        before = now
        for count, (each, _) in enumerate(order, 1):
            each.cost_ns += before
            before = step_ns([part for _, part in order[:count]])
            each.cost_ns -= before
    parts = [each.but(cost_ns=each.cost_ns // 2) for each, _ in found]
    parts.sort(key=lambda each: -each.cost_ns)
    return Blame(
        **replay.basis_figures,
        balanced_ns=step_ns(np.ndindex(mean.shape)),
        parts=parts,
        notes=[*replay.notes],
    ).having(replay=replay)


def _typical(spent: ndarray) -> ndarray:
    """Return the lower median over ranks, or stages: shape (steps, kinds of work)."""
    return np.sort(spent, axis=1)[:, (spent.shape[1] - 1) // 2]


def _work_of(graph: Graph) -> ndarray:
    """Return which of `WORK` each task is, -1 for none: int64, shape (ids,)."""
    kind = graph.kind
    on_cpu = np.where(graph.phase == PHASES.index("data"), 0, 1)
    work = np.select([kind == CPU, kind == KERNEL, kind == COLLECTIVE], [on_cpu, 2, -1], 3)
    return np.where(graph.alive & ~graph.in_background, work, -1)


def _stages(graph: Graph, ranks: Sequence[int]) -> list[int]:
    """Return the stage of each rank: one more than that of the rank whose message it waits for first, else 0."""
    trace = graph.recorded
    rows = np.flatnonzero(trace.is_kind("collective"))
    columns = [trace.values(name, rows) for name in ("rank", "collective", "peer")]
    first = {
        rank: peer if operation == "recv" else None
        for rank, operation, peer in reversed([*zip(*columns, strict=True)])
        if operation in ("send", "recv")
    }
    found = []
    for rank in ranks:
        stage = 0
        before = first.get(rank)
        while before is not None and stage < len(ranks):
            stage, before = stage + 1, first.get(before)
        found.append(stage)
    return found
