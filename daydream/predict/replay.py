"""Replay: a trace simulated without a change, and the step that every answer about the trace starts from."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import asdict

from daydream.arrays import percentile, unique
from daydream.collect.derive.quality import unrest
from daydream.costs.contention import evidence_json, evidence_of, known, measured_contention
from daydream.costs.device.measured import KernelTable, give_table
from daydream.costs.workload.calls import kept_work, work_contents, work_known
from daydream.errors import DaydreamError, GraphError
from daydream.files.cache import Contents
from daydream.graph.calls import fused_parts
from daydream.graph.graph import Graph
from daydream.graph.lower import lower
from daydream.graph.profiler_overhead import without_profiler
from daydream.graph.tables import COLLECTIVE, COSTS, KERNEL, TABLES, Facts, Lane, step_rank
from daydream.lazy import NotebookFigure
from daydream.predict.basis import (
    ESTIMATED,
    RECORDED,
    UNPROFILED,
    Basis,
    cpu_share,
    recording_share,
    replay_notes,
    timed_steps,
    waited_for_ns,
    without_start_up,
)
from daydream.results import Live, Record
from daydream.simulate.critical_path import PathCause, ns_by_cause
from daydream.simulate.steady_state import SteadyState, repeatable, settle
from daydream.simulate.timeline import Timeline
from daydream.trace.recorded_steps import TYPICAL
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from daydream.predict.breakdown import Parts

Source = Trace | str | os.PathLike[str]
LEAST_SHARE, LARGEST_SHARE = 0.01, 0.6  # of the busiest thread's time: a typical cost that counts
APART = 0.05  # typical and mean step: further apart both are said
NETWORK_ERROR = (
    0.25  # of communication that the step waits for: how far a cluster's model may be off
)
# Of an emulated step: kernel times of 28 steps, each model left out of what is learned, are 11% off in the
# median, and steps that the GPU decides are within 20%. Where the CPU does, see `daydream.world.cpu`.
EMULATION_ERROR = 0.2
START = "start_ns"  # the kept array of when each task of the plan starts
MISTAKES = (
    DaydreamError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError,
)  # fmt: skip


def relative(replayed: int, measured: int) -> float:
    """Return replayed / measured - 1; infinite for a measured step of no time."""
    if measured:
        return replayed / measured - 1
    return 0.0 if replayed == measured else float("inf")


class StepReplay(Record):
    """One covered step: measured and replayed, in ns; `error` is replayed / measured - 1."""

    name: str
    rank: int
    measured_ns: int
    replayed_ns: int
    error: float = 0.0

    def __post_init__(self) -> None:
        """Fill in the error."""
        self.error = relative(self.replayed_ns, self.measured_ns)


class ReplayFigures(Record):
    """What `replay --json` prints: how well a trace that is simulated without a change meets the recording.

    Attributes:
        ranks: the ranks that were recorded.
        steps: the covered steps as they were recorded.
        measured_ns: their mean, measured.
        replayed_ns: their mean, replayed.
        typical_measured_ns: their median, measured.
        typical_replayed_ns: their median, replayed.
        error: replayed / measured - 1 of the mean.
        max_error: the largest relative error of a step, unsigned.
        basis: which step predictions are about: `unprofiled`, `estimated` or `recorded`.
        basis_ns: that step, replayed.
        basis_measured_ns: that step, measured; None where it is estimated.
        basis_error: simulated / measured - 1 of that step, before any calibration.
        start_error_ns: how far kernels start from where they were recorded: `p50` and `p95`.
        tasks: of the graph.
        edges: causes between them, once it is simulated.
        kernels: that were recorded.
        kernels_linked: of these, those whose launch is known.
        kernels_orphaned: those whose launch is not.
        event_waits: waits for an event by how their cause is known: `recorded`, `inferred`, `unresolved`.
        queue_depth: launches that fit into the device's queue; None where it never filled.
        collectives: how far each collective's ends are apart, measured and replayed.
        notes: what a reader should know before trusting the figures.
    """

    ranks: list[int]
    steps: list[StepReplay]
    measured_ns: int
    replayed_ns: int
    typical_measured_ns: int
    typical_replayed_ns: int
    error: float
    max_error: float
    basis: Basis
    basis_ns: int
    basis_measured_ns: int | None
    basis_error: float | None
    start_error_ns: dict[str, int]
    tasks: int
    edges: int
    kernels: int
    kernels_linked: int
    kernels_orphaned: int
    event_waits: dict[str, int]
    queue_depth: int | None
    collectives: list[dict[str, Any]]
    notes: list[str]


@dataclass(repr=False)
class Replay(NotebookFigure):
    """A trace simulated without a change: how well that meets the recording, and what predictions start from.

    `measured_ns`, `replayed_ns`, `error` and `steps` are of the recorded steps; headline figures are
    means over the covered ones, `typical_*` their medians.

    `basis` says which step predictions are about; `graph`, `settled`, `timeline` and `basis_ns` are of it.
    It is `unprofiled` where steps were timed without a profiler, `estimated` where the typical cost of
    recording or the driver's start-up was taken out, else `recorded`. `basis_error` is simulated / measured
    - 1 of that step, before CPU work was scaled to meet the measured one; None where none was measured.

    Example::

        replay = daydream.replay("examples/mlp_cpu.json.gz")
        print(replay.measured_ns, replay.replayed_ns, replay.error)
        print(daydream.whatif(replay, "fused-adam").speedup)  # no second replay

    """

    graph: Graph
    settled: SteadyState
    steps: list[StepReplay]  # the covered ones, as they were recorded
    recorded: Replay | None = None  # that of the recorded step, where answers are about another one
    basis: Basis = RECORDED
    basis_measured_ns: int | None = None
    basis_typical_measured_ns: int | None = None  # the median of the same steps
    basis_error: float | None = None
    spread: float = 0.0  # 90% half-width of the mean of the timed steps, as a part of it
    recording_cost: float = 0.0  # how far the step may be from an unprofiled one, as a part of it
    start_up_ns: int = 0  # of the only step that was recorded; not of the basis
    said: list[str] = field(default_factory=list)  # of the recording, its graph and the basis
    parts: Parts | None = None  # where a step's time goes, once that was asked for

    def __repr__(self) -> str:
        return (
            f"<Replay of {len(self.steps)} steps: measured {self.measured_ns / 1e6:,.3f} ms, "
            f"replayed {self.replayed_ns / 1e6:,.3f} ms ({self.error:+.2%})>"
        )

    @property
    def timeline(self) -> Timeline:
        """The simulated timeline of the basis, window repeated where there is one."""
        return self.settled.timeline

    def breakdown(self) -> Parts:
        """Return where a step's time goes, by phase, cause, bound and layer, in ns: see `parts_of`."""
        if self.parts is None:
            from daydream.predict.breakdown import parts_of

            self.parts = parts_of(self.settled)
        return self.parts

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per covered step: measured and replayed, in ns, and the relative error."""
        import pandas as pd

        return pd.DataFrame([asdict(step) for step in self.steps]).rename(columns={"name": "step"})

    @property
    def recording(self) -> Replay:
        """The replay of the recorded steps."""
        return self.recorded or self

    @property
    def start_error_ns(self) -> dict[str, int]:
        """How far kernels start from where they were recorded: `p50` and `p95`, in ns."""
        graph = self.recording.graph
        timeline = self.recording.settled.timeline
        measured = graph.measured_start_ns[timeline.task]
        chosen = (timeline.copy == 0) & (measured >= 0)
        kernels = chosen & (graph.kind[timeline.task] == KERNEL)
        off = np.abs(timeline.start_ns - measured)[kernels if kernels.any() else chosen]
        p50, p95 = percentile(off, [50, 95]).tolist() if len(off) else (0, 0)
        return {"p50": round(p50), "p95": round(p95)}

    @property
    def basis_ns(self) -> int:
        """The steady step that predictions start from, in ns."""
        return self.settled.step_ns

    @property
    def basis_figures(self) -> dict[str, Any]:
        """What every answer says of the step that it is about: the basis, measured and replayed, in ns."""
        return {
            "basis": self.basis,
            "measured_ns": self.basis_measured_ns,
            "replayed_ns": self.basis_ns,
            "replay_error": self.basis_error,
        }

    @property
    def measured_ns(self) -> int:
        """Mean measured time of the covered steps, as recorded."""
        return round(fmean(step.measured_ns for step in self.steps))

    @property
    def typical_measured_ns(self) -> int:
        """Median measured time of the covered steps, as recorded."""
        return round(median(step.measured_ns for step in self.steps))

    @property
    def replayed_ns(self) -> int:
        """Mean replayed time of the covered steps, as recorded."""
        return round(fmean(step.replayed_ns for step in self.steps))

    @property
    def typical_replayed_ns(self) -> int:
        """Median replayed time of the covered steps, as recorded."""
        return round(median(step.replayed_ns for step in self.steps))

    @property
    def steps_differ(self) -> bool:
        """Whether the typical step is so far from the mean that both should be said."""
        return abs(self.typical_measured_ns - self.measured_ns) > APART * self.measured_ns

    @property
    def error(self) -> float:
        """Relative error of the mean recorded step, signed."""
        return relative(self.replayed_ns, self.measured_ns)

    @property
    def max_error(self) -> float:
        """Largest relative error of a covered step, unsigned."""
        return max(abs(step.error) for step in self.steps)

    @property
    def residual(self) -> float:
        """How far the calibrated step still is from the measured one, unsigned; 0 where none was measured."""
        if self.basis != UNPROFILED or not self.basis_measured_ns:
            return 0.0
        return abs(relative(self.basis_ns, self.basis_measured_ns))

    @cached_property
    def held_ns(self) -> int:
        """How long a step waits for recorded starts, in ns on its chain of causes; mean over the steps.

        Threads that were at work when the recording began, and device work whose launch was not recorded,
        start when they did. A step that follows others does not depend on it; where a single step was
        recorded, the wait for such a start may stand on the chain of causes that makes the step as long as it
        is.
        """
        return ns_by_cause(self.settled).get(PathCause.RECORDING, 0)

    @cached_property
    def cpu_share(self) -> float:
        """How much of the step waits for the CPU, 0 to 1."""
        return cpu_share(waited_for_ns(self.settled))

    @cached_property
    def unrest(self) -> str | None:
        """Why the recording seems not to have been made at rest, and what to do; None if it does."""
        trace = self.graph.trace
        simulated_ns = None
        if self.basis == UNPROFILED and self.basis_measured_ns is not None:
            simulated_ns = round(self.basis_measured_ns * (1 + (self.basis_error or 0.0)))
        return None if trace is None else unrest(trace, simulated_ns)

    @cached_property
    def notes(self) -> list[str]:
        """What a reader should know before trusting the figures, a sentence each."""
        return [*self.said, *filter(None, [self.unrest])]

    @cached_property
    def released(self) -> SteadyState:
        """The step where what may be a wait is one, as in `Graph.released`."""
        return settle(self.graph.released())

    def figures(self) -> ReplayFigures:
        """Return how well the trace replays, in ns per step, and what its graph is made of."""
        graph = self.recording.graph
        facts = graph.facts
        kernel = graph.alive & (graph.kind == KERNEL)
        parts = kernel & fused_parts(graph)
        kernels = (kernel & ~parts).sum() + len(unique(graph.row[parts]))
        graph_figures: dict[str, Any] = {
            "ranks": sorted({step_rank(step) for step in graph.steps}),
            "tasks": len(graph),
            "edges": len(lower(graph).plan.edge_src),
            "kernels": kernels,
            "kernels_linked": kernels - facts.unlaunched_kernels,
            "kernels_orphaned": facts.unlaunched_kernels,
            "event_waits": facts.event_waits,
            "queue_depth": facts.queue_depth,
            "collectives": _collectives(self.recording),
        }
        own = [name for name in ReplayFigures.__struct_fields__ if name not in graph_figures]
        return ReplayFigures(**graph_figures, **{name: getattr(self, name) for name in own})

    def to_json(self) -> dict[str, Any]:
        """Return the object `replay --json` prints, without the trace's name."""
        return self.figures().to_json()


class OfStep(Record):
    """An answer about the step that a replay chose; ns a step.

    Attributes:
        basis: which step this is about: `unprofiled`, `estimated` or `recorded`.
        measured_ns: mean measured step; None where the step without the profiler is estimated.
        replayed_ns: the same step, replayed, without a change.
        replay_error: simulated / measured - 1 of that step, before calibration; None where it is estimated.
    """

    basis: Basis
    measured_ns: int | None
    replayed_ns: int
    replay_error: float | None

    replay = Live[Replay]()


def _collectives(result: Replay) -> list[dict[str, Any]]:
    """Return every collective: its place in order, name, bytes, ranks, and how far its ends spread."""
    graph = result.graph
    timeline = result.settled.timeline
    recorded = (timeline.copy == 0) & (graph.row[timeline.task] >= 0)
    chosen = np.flatnonzero(recorded & (graph.kind[timeline.task] == COLLECTIVE))
    if not len(chosen):
        return []
    from daydream.collect.derive.collectives import match_collectives

    tasks = graph.tasks(timeline.task[chosen])
    ends = tasks.start_ns + tasks.measured_duration_ns
    names = tasks.name
    ranks = tasks.rank
    sizes = tasks.bytes
    place = {row: number for number, row in enumerate(tasks.row.tolist())}
    groups = [
        [place.pop(row) for row in rows.tolist() if row in place]
        for rows in match_collectives(graph.recorded).rows
    ]
    groups = [*filter(None, groups), *([alone] for alone in place.values())]
    groups.sort(key=lambda group: ends[group].max())
    return [
        {
            "index": index,
            "name": str(names[at[0]]),
            "bytes": int(sizes[at[0]]) if sizes[at[0]] >= 0 else None,
            "ranks": ranks[at].tolist(),
            "measured_end_spread_ns": int(np.ptp(ends[at])),
            "replayed_end_spread_ns": int(np.ptp(timeline.end_ns[chosen[at]])),
        }
        for index, at in enumerate(groups)
    ]


def as_replay(source: Source | Graph | Replay) -> Replay:
    """Return the replay that a source is, or the one made of it."""
    return source if isinstance(source, Replay) else replay(source)


def replay(
    source: Source | Graph,
    *,
    table: KernelTable | str | os.PathLike[str] | None = None,
    cluster: str | None = None,
) -> Replay:
    """Return the simulation of an unchanged trace, compared with what was measured.

    It decides which step predictions are about: see `Replay.basis`. `table` holds measured times of kernels
    or operators, or is the file of them (`daydream calibrate` writes one): predictions from this replay use
    them where they can. `cluster` names the machines of a job of which one rank was recorded in a fake world;
    the trace keeps it.

    Returns:
        A `Replay`: measured and replayed time of each step, in ns, and their difference.

    Raises:
        TraceError: the source cannot be read.
        GraphError: the trace covers no step.

    """
    if isinstance(source, Graph):
        found = baseline_of(recorded_steps(source if table is None else source.copy()))
    else:
        trace = source
        if not isinstance(trace, Trace):
            from daydream.collect import load  # no importer is needed for a trace in memory

            trace = load(trace, steps=TYPICAL)  # of a long recording its typical steps
        found = _of_trace(trace)
    if world := found.graph.recorded.metadata.get("fake_world"):
        world["cluster"] = cluster or world.get("cluster")
        found = _in_fake_world(found)
    if "emulated" in found.graph.recorded.metadata:
        found = replace(found, spread=max(found.spread, EMULATION_ERROR))
    for graph in (found.graph, found.recording.graph):
        give_table(graph, table)
    return found


def _in_fake_world(found: Replay) -> Replay:
    """Return the step of a job of which one rank was recorded, with its collectives as a cluster runs them.

    `steps` stay those of the recording, where collectives took no time.
    """
    from daydream.costs.network.networks import cluster_of_world, on_cluster  # of few traces

    machines = cluster_of_world(found.graph.recorded)
    recording = found.recording
    recorded, timed, silent = (
        settle(on_cluster(each.graph, cluster))
        for each, cluster in ((recording, machines), (found, machines), (found, None))
    )
    exposed_ns = max(timed.step_ns - silent.step_ns, 0)
    said = (
        f"{exposed_ns / 1e6:,.3f} of {timed.step_ns / 1e6:,.3f} ms per step wait for collectives, whose times are "
        f"a model's. {machines.describe()}"
    )
    return Replay(
        timed.timeline.graph,
        timed,
        found.steps,
        replace(recording, graph=recorded.timeline.graph, settled=recorded),
        ESTIMATED,
        recording_cost=found.recording_cost,
        start_up_ns=found.start_up_ns,
        spread=max(found.spread, NETWORK_ERROR * exposed_ns / max(timed.step_ns, 1)),
        said=[*found.said, said],
    )


def _of_trace(trace: Trace) -> Replay:
    """Return the replay that is kept of a trace, or the one made of it, which is kept from then on.

    An entry is taken as it was written where its digest fits; it is worked out again where a part is missing.
    """
    entry = trace.cache
    found = None if entry is None else entry.read()
    if found is not None:
        with suppress(*MISTAKES):
            return _kept(trace, found)
    from daydream.graph.build import build  # a kept graph needs no rule

    made = baseline_of(recorded_steps(build(trace)))
    if entry is not None:
        made.breakdown()
        with suppress(*MISTAKES):
            entry.write(_contents(made, trace))
    return made


def _contents(made: Replay, trace: Trace) -> Contents:
    """Return what is kept of a replay: its graph and when each task starts."""
    from daydream.trace.cached_trace import trace_contents

    base = made.recording.graph
    settled = made.recording.settled
    of_trace = trace_contents(trace)
    families, work = work_contents(trace)
    arrays = of_trace.arrays | work | {START: settled.timeline.start_ns}
    for table in TABLES:
        columns = getattr(base, table)
        arrays |= {f"{table}.{name}": columns[name] for name in columns}
    if made.basis != RECORDED:
        arrays |= {f"corrected.{name}": made.graph.columns[name] for name in COSTS}
    document = {  # of the replay's fields all but its graph, its times and its recording
        "lanes": [list(lane) for lane in base.lanes],
        "texts": {name: texts[len(trace.text(name)) :] for name, texts in base.texts.items()},
        "queue_depth": [list(pair) for pair in base.queue_depth.items()],
        "facts": asdict(base.facts),
        "passes": settled.passes,
        "copy": settled.copy,
        "settled": settled.settled,
        "basis": {each.name: getattr(made, each.name) for each in fields(made)[4:] if each.init},
        "families": families,
        "contention": evidence_json(measured_contention(base)),
    }
    return Contents({**of_trace.document, "replay": document}, arrays)


def _kept(trace: Trace, found: Contents) -> Replay:
    """Return the replay of a trace from what is kept of it. Raises one of `MISTAKES` if it is not right."""
    document = found.document["replay"]
    arrays = found.arrays
    graph = Graph(trace)
    for table in TABLES:
        columns = getattr(graph, table)
        for name in columns:
            columns.put(name, arrays[f"{table}.{name}"])
    graph.texts = {name: [*trace.text(name), *document["texts"][name]] for name in graph.texts}
    for lane in document["lanes"]:
        graph.add_lane(Lane(*lane))
    graph.steps = [dict(step) for step in trace.metadata["steps"]]
    graph.queue_depth = dict(document["queue_depth"])
    graph.facts = Facts(**document["facts"])
    graph.freeze()
    start = arrays[START]
    lowered = lower(graph, document["passes"], repeatable(graph))
    timeline = Timeline(graph, lowered, start, start + lowered.plan.duration_ns)
    times = timeline.step_times()
    settled = SteadyState(timeline, times, document["copy"], settled=document["settled"])
    recording = recorded_steps(graph, settled)
    work_known[trace] = kept_work(document["families"], arrays)
    known[trace] = evidence_of(document["contention"])
    basis = document["basis"]
    recording.said = basis["said"]
    if basis["basis"] == RECORDED:
        return replace(recording, **basis)
    graph = graph.retimed(*(arrays[f"corrected.{name}"] for name in COSTS))
    return Replay(
        graph,
        settle(graph),
        recording.steps,
        recording,
        **basis,
    )


def recorded_steps(graph: Graph, settled: SteadyState | None = None) -> Replay:
    """Return the replay of the recorded steps: of a graph without a change, simulated (`settled` if it was).

    Raises `GraphError` if the trace covers no step.
    """
    settled = settled or settle(graph)
    steps = []
    for number, ns in settled.step_times(0).items():
        info = graph.steps[number]
        steps.append(StepReplay(info["name"], step_rank(info), int(info["measured_ns"]), ns))
    if not any(step.replayed_ns or not step.measured_ns for step in steps):
        raise GraphError(
            "none of the steps of this trace holds any work; name another marker with --step-marker"
        )
    found = Replay(graph, settled, steps)
    found.basis_measured_ns = found.measured_ns
    found.basis_error = found.error
    found.basis_typical_measured_ns = found.typical_measured_ns
    return found


def baseline_of(found: Replay) -> Replay:
    """Return the replay of a trace whose recorded steps were simulated: the step that answers are about.

    What the correction misses is taken to lie in all CPU costs alike: they are scaled by the timed step / the
    simulated one, and what a change adds in absolute terms (a transfer, a kernel) is then added to a step of
    the right length. One scaling predicts as well as several that meet the timed step, and better than none
    (`docs/collection.md`).
    """
    graph = found.graph
    start_up_ns = 0
    trace = graph.trace
    notes = found.said = replay_notes(graph, found.settled)
    if trace is None:
        return found
    timed = timed_steps(trace, [step.measured_ns for step in found.steps])
    if timed is not None:
        notes += timed.notes()
        if timed.slower_than(found.measured_ns):
            notes.append(
                f"Steps took {found.measured_ns / 1e6:,.3f} ms with the profiler, "
                f"{timed.mean_ns / 1e6:,.3f} ms without: a profiler only makes steps longer. "
                "Answers are about the recorded step; the interval spans both."
            )
            cost = timed.mean_ns / found.measured_ns - 1 if found.measured_ns else 0.0
            return replace(found, recording_cost=cost)
    if len(graph.steps) == 1:
        graph, start_up_ns = without_start_up(graph, notes)
    corrected = without_profiler(graph)
    if timed is not None:
        settled = settle(corrected)
        error = relative(settled.step_ns, timed.mean_ns)
        if settled.step_ns and timed.mean_ns and len(corrected.select(kind="cpu")):
            scaled = corrected.copy()
            scaled.select(kind="cpu").scale(timed.mean_ns / settled.step_ns, gaps=True)
            corrected = found.graph.retimed(scaled.duration_ns, scaled.gap_ns)
            settled = settle(corrected)
        return replace(
            found,
            graph=corrected,
            settled=settled,
            recorded=found,
            basis=UNPROFILED,
            basis_measured_ns=timed.mean_ns,
            basis_typical_measured_ns=round(median(timed.kept)),
            basis_error=error,
            spread=timed.spread,
            start_up_ns=start_up_ns,
        )
    share = recording_share(graph, corrected)
    if LEAST_SHARE <= share <= LARGEST_SHARE:
        notes.append(
            f"This trace does not say what recording cost: the typical {share:.0%} of the busiest thread's "
            "time is taken out. `daydream collect` times steps without the profiler."
        )
    elif start_up_ns:
        corrected = graph
        share = 0.0
    else:
        return found
    return Replay(
        corrected,
        settle(corrected),
        found.steps,
        found,
        ESTIMATED,
        recording_cost=share if start_up_ns else 0.0,
        start_up_ns=start_up_ns,
        said=notes,
    )
