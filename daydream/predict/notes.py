"""Notes: what a reader should know before trusting a replay or a prediction, a sentence each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.graph.tables import step_rank
from daydream.predict.basis import whole_recording
from daydream.results import Record
from daydream.simulate.critical_path import ON_CPU, Bound, by_bound, ns_by_cause
from daydream.simulate.steady_state import SETTLED, SteadyState
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.trace.trace import Trace

UNMOVED = 0.002  # of the step: less is shown as 1.00x
MUCH = 0.2  # of a recording in no step at all, from which it is worth a note
WORTH_NAMING = 0.1  # of a stretch, and of the recording, that is named
MOST_NAMES = 2


def preference(notes: Sequence[str], name: str) -> tuple[int, str]:
    """Return what to sort by where two names are the same change: fewer notes, then the first by name."""
    return len(notes), name


def replay_notes(graph: Graph, settled: SteadyState) -> list[str]:
    """Return what a reader should know before trusting the figures, a sentence each."""
    facts = graph.facts
    trace = graph.recorded
    time = recorded_time(trace)
    first = np.append(trace["start_ns"][:1000], trace["duration_ns"][:1000])
    unresolved = facts.event_waits["unresolved"]
    waits = sum(facts.event_waits.values())
    ranks = {step_rank(step) for step in graph.steps}
    said: list[Any] = [
        *whole_recording(trace),
        *trace.metadata.get("notes", []),
        *facts.notes,
        time and time.note(),
        len(first)
        and not (first % 1000).any()
        and "Times were recorded in whole microseconds: short kernels and pauses are up to 1 us off.",
        unresolved
        and f"{unresolved:,} of {counted(waits, 'stream wait')} could not be resolved; their order is not "
        "kept.",
        facts.unresolved_syncs
        and f"What {counted(facts.unresolved_syncs, 'synchronizing call')} waited for could not be found; "
        "they are kept as plain calls.",
        facts.unexplained
        and f"{counted(facts.unexplained, 'device task')} started later than known causes allow, by "
        f"{facts.unexplained_ns / 1e6:,.1f} ms in total; the delay is kept as it was.",
        settled.passes == 1
        and 1 < len(ranks) < len(graph.steps)
        and "The steps of these ranks are simulated as recorded, not repeated until they are steady: which "
        "of them belong together is not known, or not all ranks have a step that can be judged.",
        not settled.settled
        and "Step times had not reached a steady state after repeating the window; the last pass is shown.",
    ]
    return [*filter(None, said)]


def prediction_notes(prediction: Prediction) -> list[str]:
    """Return the replay's notes and those about this prediction."""
    replay = prediction.replay
    after = prediction.after
    answer = prediction.memory_answer
    mean_ns = replay.replayed_ns
    steady_ns = prediction.replayed_ns
    recorded, steady = (f"{ns / 1e6:,.5g} ms" for ns in (mean_ns, steady_ns))
    apart = abs(mean_ns - steady_ns) > SETTLED * steady_ns and recorded != steady
    of_memory = () if answer.memory is None else (*answer.memory.recording_notes, *answer.memory.notes)
    said: list[Any] = [
        *replay.notes,
        *(note for note in prediction.graph.facts.notes if note not in replay.notes),
        prediction.released and prediction.released[-1],
        prediction.left_out and str(prediction.left_out),
        prediction.contention and prediction.contention.note(),
        not after.timeline.overlaps_settled
        and "Which kernels run during transfers changed with every simulation; "
        "the last of these simulations is shown.",
        not after.settled
        and "The predicted step had not reached a steady state after repeating the window; its last "
        "pass is shown.",
        apart
        and prediction.recorded is None
        and f"The recorded steps are not steady: their mean replays in {recorded}, a steady step {steady}.",
        (prediction.changed or prediction.inserted or prediction.removed) and why_unmoved(prediction),
        *of_memory,
        answer.unsaid and f"{answer.unsaid}.",
        len(replay.steps) == 1
        and (
            "How steps vary is not known: the interval reaches to the step as it is."
            if whole_recording(replay.graph.trace)
            else "Only one step is covered: the interval leaves out how steps vary."
        ),
    ]
    return [*filter(None, said)]


def cpu_share(waits: Mapping[Bound, int]) -> float:
    """Return the part of a step's waits that is for the CPU, 0 to 1."""
    return sum(waits.get(bound, 0) for bound in ON_CPU) / max(sum(waits.values()), 1)


def waited_for_ns(settled: SteadyState) -> dict[Bound, int]:
    """Return what a settled step waits for, in ns, by the chain of causes behind it; mean over the steps."""
    return by_bound(ns_by_cause(settled))


def most_of(shares: Mapping[Bound, float]) -> tuple[Bound, float]:
    """Return what most of a step waits for, and its share of the step."""
    total = sum(shares.values())
    if total <= 0:
        return Bound.NOTHING, 0.0
    most = max(shares, key=shares.__getitem__)
    return most, shares[most] / total


def why_unmoved(comparison: Prediction) -> str | None:
    """Return what the step waits for instead, in a sentence, where the change leaves its time as it was."""
    if abs(comparison.simulated_ns - comparison.replayed_ns) > UNMOVED * comparison.replayed_ns:
        return None
    what, share = comparison.bound
    return f"The step's time does not move with this change: it waits for {what.awaited} ({share:.0%})."


class LongRow(Record):
    """A row of a recording and its duration."""

    name: str
    duration_ns: int


class Stretch(Record):
    """A stretch of a recording that lies before, between or behind the steps, and its longest rows."""

    where: str
    start_ns: int
    duration_ns: int
    longest: tuple[LongRow, ...]


class RecordedTime(Record):
    """What part of a recording covered steps are, 0 to 1; what part lies in no step, and where that is."""

    covered_share: float
    outside_share: float
    outside: tuple[Stretch, ...]

    def note(self) -> str | None:
        """Return a sentence where much of the recording lies in no step."""
        if self.outside_share < MUCH or not self.outside:
            return None
        parts = []
        for stretch in self.outside:
            named = ", ".join(f"{row.name} {_ms(row.duration_ns)}" for row in stretch.longest)
            parts.append(
                f"{_ms(stretch.duration_ns)} {stretch.where} them" + (f" ({named})" if named else "")
            )
        return (
            f"The covered steps are {100 * self.covered_share:.0f} % of the recording; in no step are "
            f"{' and '.join(parts)}. Predictions leave that time out."
        )


def recorded_time(trace: Trace) -> RecordedTime | None:
    """Return how much of a recording its steps are: the mean of its ranks, and stretches of the worst one.

    None where there are no rows or no steps with times.
    """
    by_rank: dict[int, list[Any]] = defaultdict(list)
    for step in trace.metadata.get("steps", []):
        by_rank[step.get("rank", 0)].append(step)
    start = trace["start_ns"]
    end = start + trace["duration_ns"]
    host = trace.is_kind("operator", "annotation", "runtime")
    known = []
    for rank, steps in sorted(by_rank.items()):
        mine = (trace["rank"] == rank) | (len(by_rank) == 1)
        timed = [step for step in steps if "end_ns" in step]
        if not mine.any() or not timed:
            continue
        taken = [(step["start_ns"], max(step.get("completion_ns", 0), step["end_ns"])) for step in timed]
        at = first = int(start[mine].min())
        last = int(end[mine].max())
        whole = max(last - first, 1)
        stretches = []
        for begin, stop in [*sorted(taken), (last, last)]:
            if begin - at >= WORTH_NAMING * whole:
                where = "before" if at == first else "behind" if begin == last else "between"
                inside = np.flatnonzero(host & mine & (start >= at) & (end <= begin))
                longest = _longest(trace, inside, start, end, WORTH_NAMING * (begin - at))
                stretches.append(Stretch(where, at, begin - at, longest))
            at = max(at, stop)
        covered = sum(step.get("measured_ns") or 0 for step in timed if step.get("covered"))
        outside = sum(stretch.duration_ns for stretch in stretches)
        known.append(RecordedTime(min(covered / whole, 1.0), outside / whole, tuple(stretches)))
    if not known:
        return None
    worst = max(known, key=lambda each: each.outside_share)
    return worst.but(covered_share=float(np.mean([each.covered_share for each in known])))


def _longest(
    trace: Trace, rows: np.ndarray, start: np.ndarray, end: np.ndarray, least_ns: float
) -> tuple[LongRow, ...]:
    """Return the longest of some rows, that do not overlap and take no less than so long."""
    rows = rows[np.argsort(start[rows] - end[rows], kind="stable")][:64]
    rows = rows[end[rows] - start[rows] >= least_ns]
    found: list[LongRow] = []
    while len(rows) and len(found) < MOST_NAMES:
        begin = start[rows[0]]
        stop = end[rows[0]]
        name = str(trace.values("name", rows[:1])[0])
        found.append(LongRow(name if len(name) <= 48 else name[:47] + "…", int(stop - begin)))
        rows = rows[(end[rows] <= begin) | (start[rows] >= stop)]
    return tuple(found)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.{0 if ns >= 100e6 else 1}f} ms"
