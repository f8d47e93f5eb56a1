"""Replay: the untouched graph simulated and held against what was measured."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import percentile, unique
from daydream.collect.derive.quality import unrest
from daydream.costs.device.measured import give_table
from daydream.costs.device.table import KernelTable
from daydream.display import NotebookFigure, as_json
from daydream.errors import GraphError
from daydream.graph.alike import retimed
from daydream.graph.graph import Graph
from daydream.graph.lower import lower
from daydream.graph.query.device import fused_parts
from daydream.graph.recording_cost import cost_of_recording, told_cost
from daydream.graph.tables import KERNEL
from daydream.graph.unprofiled import taken_out, without_profiler
from daydream.predict.contention_option import MEASURED, choose
from daydream.predict.notes import replay_notes
from daydream.simulate.pinned import held_ns
from daydream.simulate.steady import Settled, settle
from daydream.simulate.timeline import Timeline
from daydream.trace.trace import Trace
from daydream.trace.typical_run import TYPICAL

if TYPE_CHECKING:
    import pandas as pd

    from daydream.trace.cached_trace import CacheEntry

Source = Trace | str | os.PathLike[str]
LARGEST_SHARE = 0.6  # of the CPU's time: a typical cost of recording that would be more is not believed
APART = 0.05  # typical and mean step: further apart both are said


def _relative(replayed: int, measured: int) -> float:
    if measured:
        return replayed / measured - 1
    return 0.0 if replayed == measured else float("inf")


@dataclass
class StepReplay:
    """One covered step: measured and replayed, in ns."""

    name: str
    rank: int
    measured_ns: int
    replayed_ns: int

    @property
    def error(self) -> float:
        """Return replayed / measured - 1."""
        return _relative(self.replayed_ns, self.measured_ns)


@dataclass(repr=False)
class Replay(NotebookFigure):
    """How well the unchanged graph reproduces the recording.

    Headline figures are means over the covered steps, what a run pays for; `typical_*` are their medians.

    Example::

        replay = daydream.replay("examples/mlp_cpu.json.gz")
        print(replay.measured_ns, replay.replayed_ns, replay.error)
        print(daydream.whatif(replay, "fused-adam").speedup)  # no second replay

    """

    graph: Graph
    settled: Settled
    steps: list[StepReplay]
    start_error_ns: dict[str, int]
    said: list[str] = field(default_factory=list)  # of the recording and its graph
    recorded: Replay | None = None  # that of the recording, where this is without the cost of it
    bias: float | None = None  # how far this step is then from the one that was measured so
    parts: dict[str, dict[str, int]] | None = None  # where a step's time goes, once that was asked for
    kept_times: tuple[np.ndarray, np.ndarray] | None = None  # durations and gaps of `corrected`

    def __repr__(self) -> str:
        return (
            f"<Replay of {len(self.steps)} steps: measured {self.measured_ns / 1e6:,.3f} ms, "
            f"replayed {self.replayed_ns / 1e6:,.3f} ms ({self.error:+.2%})>"
        )

    @property
    def timeline(self) -> Timeline:
        """The simulated timeline, window repeated where there is one."""
        return self.settled.timeline

    def breakdown(self) -> dict[str, dict[str, int]]:
        """Return where a step's time goes, `by_phase` and `by_cause`, in ns; the mean over the steps."""
        return self.timeline.breakdown(self.settled.copy, *self.settled.step_times())

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per covered step: measured and replayed, in ns, and the relative error."""
        import pandas as pd

        columns = ["step", "rank", "measured_ns", "replayed_ns", "error"]
        rows = [(each.name, each.rank, each.measured_ns, each.replayed_ns, each.error) for each in self.steps]
        return pd.DataFrame(rows, columns=columns)

    @property
    def measured_ns(self) -> int:
        """Mean measured time of the covered steps."""
        return round(fmean(step.measured_ns for step in self.steps))

    @property
    def typical_measured_ns(self) -> int:
        """Median measured time of the covered steps."""
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
        """Relative error of the mean step, signed."""
        return _relative(self.replayed_ns, self.measured_ns)

    @property
    def max_error(self) -> float:
        """Largest relative error of a covered step, unsigned."""
        return max(abs(step.error) for step in self.steps)

    @cached_property
    def tasks_of_steps(self) -> np.ndarray:
        """How many tasks each step has: int64, shape (steps,)."""
        steps = self.graph.columns["step"][self.graph.alive]
        return np.bincount(steps[steps >= 0], minlength=len(self.graph.steps))

    @cached_property
    def held_ns(self) -> int:
        """How long a step waits for starts that are held as recorded, in ns on its chain of causes."""
        return held_ns(self.settled)

    @cached_property
    def unrest(self) -> str | None:
        """Why the recording seems not to have been made at rest, and what to do; None if it does."""
        trace = self.graph.trace if self.recorded is None else None
        return None if trace is None else unrest(trace, self.unprofiled_replayed_ns)

    @cached_property
    def notes(self) -> list[str]:
        """What a reader should know before trusting the figures, a sentence each."""
        return [*self.said, *filter(None, [self.unrest])]

    @cached_property
    def unprofiled(self) -> Replay | None:
        """The replay without the profiler's cost; None if the trace does not say what recording cost."""
        trace = self.graph.trace if self.recorded is None else None
        if trace is None or told_cost(trace) is None:
            return None
        assert self.corrected is not None  # noqa: S101 - the cost is known
        made, measured = self._changed(self.corrected), self.unprofiled_measured_ns
        return made if measured is None else replace(made, bias=_relative(made.settled.step_ns, measured))

    @cached_property
    def corrected(self) -> Graph | None:
        """The graph without what recording cost, as measured or typical; None where that is not known."""
        trace = self.graph.trace
        if trace is None or cost_of_recording(trace) is None:
            return None
        if self.kept_times is not None:
            return retimed(self.graph, *self.kept_times)
        return without_profiler(self.graph)

    @cached_property
    def typically_unprofiled(self) -> Replay | None:
        """The replay without what recording typically costs, where that was not measured; None elsewhere."""
        found = self._without_typical_cost
        return None if found is None else self._changed(found[0])

    @cached_property
    def recorded_share(self) -> float:
        """How much of the CPU's time recording took if it cost what is typical; 0 where it was measured."""
        return 0.0 if self._without_typical_cost is None else self._without_typical_cost[1]

    @cached_property
    def _without_typical_cost(self) -> tuple[Graph, float] | None:
        """The corrected graph, and how much of the CPU's time it is without."""
        trace = self.graph.trace if self.recorded is None else None
        if trace is None or told_cost(trace) is not None or self.corrected is None:
            return None
        share = taken_out(self.graph, self.corrected)
        return (self.corrected, share) if share <= LARGEST_SHARE else None

    @cached_property
    def anchored(self) -> Replay | None:
        """The unprofiled replay with CPU work scaled to meet the measured step; None if that is unknown.

        What the correction misses is taken to lie in all CPU costs alike: what a change adds in
        absolute terms (a transfer, a kernel) then stands beside steps of the right length.
        """
        without, measured = self.unprofiled, self.unprofiled_measured_ns
        if without is None or measured is None or not without.settled.step_ns:
            return None
        graph = without.graph.copy()
        cpu = graph.select(kind="cpu")
        if len(cpu):
            cpu.scale(measured / without.settled.step_ns, gaps=True)
        return self._changed(graph)

    def _changed(self, graph: Graph) -> Replay:
        return replace(replay_graph(graph, passes=self.settled.judged), recorded=self)

    @property
    def unprofiled_replayed_ns(self) -> int | None:
        """The settled step without the profiler's cost: made without looking at the measured one."""
        return None if self.unprofiled is None else self.unprofiled.settled.step_ns

    @property
    def unprofiled_measured_ns(self) -> int | None:
        """Mean of the steps that were timed without a profiler; None if the trace holds none."""
        times = self.graph.trace.metadata.get("unprofiled_step_ns") if self.graph.trace else None
        return round(fmean(times)) if times else None

    @property
    def unprofiled_error(self) -> float | None:
        """Relative error of the unprofiled step, signed; None where either side of it is not known."""
        replayed, measured = self.unprofiled_replayed_ns, self.unprofiled_measured_ns
        return None if replayed is None or measured is None else _relative(replayed, measured)

    def to_json(self) -> dict[str, Any]:
        """Return the object `replay --json` prints, without the trace's name."""
        from daydream.predict.replayed_collectives import collectives

        graph, facts = self.graph, self.graph.facts
        kernel = graph.alive & (graph.columns["kind"] == KERNEL)
        parts = kernel & fused_parts(graph)
        kernels = int((kernel & ~parts).sum()) + len(unique(graph.columns["row"][parts]))
        figures = (
            "measured_ns replayed_ns typical_measured_ns typical_replayed_ns error max_error "
            "unprofiled_measured_ns unprofiled_replayed_ns unprofiled_error start_error_ns"
        )
        return {
            "ranks": sorted({step.get("rank", 0) for step in graph.steps}),
            "steps": [as_json(step, "name rank measured_ns replayed_ns error") for step in self.steps],
            **as_json(self, figures),
            "tasks": len(graph),
            "edges": len(lower(graph).plan.edge_src),
            "kernels": kernels,
            "kernels_linked": kernels - facts.unlaunched_kernels,
            "kernels_orphaned": facts.unlaunched_kernels,
            "event_waits": dict(facts.event_waits),
            "queue_depth": facts.queue_depth,
            "collectives": collectives(self),
            "notes": self.notes,
        }


def as_trace(source: Source) -> Trace:
    """Return the trace that a source is, or that its file holds: of a long recording its typical steps."""
    if isinstance(source, Trace):
        return source
    from daydream.collect.load import load  # no importer is needed for a trace in memory

    return load(source, steps=TYPICAL)


def as_replay(source: Source | Graph | Replay) -> Replay:
    """Return the replay that a source is, or the one made of it."""
    return source if isinstance(source, Replay) else replay(source)


def replay(source: Source | Graph, *, table: KernelTable | str | os.PathLike[str] | None = None) -> Replay:
    """Return the simulation of an unchanged trace, compared with what was measured.

    `table` holds measured times of kernels or operators, or is the file of them (`daydream calibrate`
    writes one): predictions from this replay use them where they can.

    Returns:
        A `Replay`: measured and replayed time of each step, in ns, and their difference.

    Raises:
        TraceError: the source cannot be read.
        GraphError: the trace covers no step.

    """
    if isinstance(source, Graph):
        graph = source if table is None else source.copy()
        give_table(graph, table)
        return replay_graph(graph)
    trace = as_trace(source)
    if trace.cache is None:
        from daydream.graph.build import build  # a kept graph needs no rule

        graph = build(trace)
        give_table(graph, table)
        return replay_graph(graph)
    found = _from_cache(trace, trace.cache)
    give_table(found.graph, table)
    return found


def _from_cache(trace: Trace, entry: CacheEntry) -> Replay:
    """Return the replay that is kept of a trace, or the one made of it, which is kept from then on."""
    from daydream.predict.cached_replay import Kept, cached_replay, keep  # for those who ask for it

    found = cached_replay(trace, entry)
    if found is not None and found.steps:  # no replay is without
        steps = [StepReplay(*step) for step in found.steps]
        return Replay(
            found.graph, found.settled, steps, found.start_error_ns, found.said,
            parts=found.parts, kept_times=found.times,
        )  # fmt: skip
    from daydream.explanation.parts import parts_of_replay
    from daydream.graph.build import build

    made = replay_graph(build(trace))
    rows = [(step.name, step.rank, step.measured_ns, step.replayed_ns) for step in made.steps]
    parts, corrected = parts_of_replay(made), made.corrected
    times = None if corrected is None else (corrected.columns["duration_ns"], corrected.columns["gap_ns"])
    keep(Kept(made.graph, made.settled, rows, made.start_error_ns, made.said, parts, times), entry)
    return made


def replay_graph(graph: Graph, *, passes: int = 2) -> Replay:
    """Return how an untouched graph's simulation compares with the recording.

    `passes` are simulated at first; only speed depends on it, see `settle`.

    Raises `GraphError` if the trace covers no step.
    """
    slows = choose(MEASURED, graph, graph)
    settled = settle(graph, passes=passes, spare=int(slows is not None and slows.slows))
    times = settled.first_pass()
    steps = [
        StepReplay(info["name"], info.get("rank", 0), int(info["measured_ns"]), times[number])
        for number, info in enumerate(graph.steps)
        if info.get("covered") and number in times
    ]
    if not any(step.replayed_ns or not step.measured_ns for step in steps):
        raise GraphError(
            "none of the steps of this trace holds any work; name another marker with --step-marker"
        )
    return Replay(graph, settled, steps, _start_error(graph, settled.timeline), replay_notes(graph, settled))


def _start_error(graph: Graph, timeline: Timeline) -> dict[str, int]:
    """Return the median and 95th percentile of how far kernels start from where they were recorded, in ns."""
    measured = graph.columns["measured_start_ns"][timeline.task]
    kernels = (graph.columns["kind"][timeline.task] == KERNEL) & (timeline.copy == 0) & (measured >= 0)
    if not kernels.any():
        kernels = (timeline.copy == 0) & (measured >= 0)
    off = np.abs(timeline.start_ns[kernels] - measured[kernels])
    return {"p50": round(float(percentile(off, 50))), "p95": round(float(percentile(off, 95)))}
