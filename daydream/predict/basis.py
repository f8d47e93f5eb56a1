"""The step that answers are about, and what a reader should know before trusting them.

It was timed without a profiler, is estimated to be so, or is as it was recorded. Notes of a replay and of a
prediction are a sentence each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import sqrt
from statistics import fmean, median, pvariance, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.tables import CPU, covered_steps, step_rank
from daydream.simulate.critical_path import ON_CPU, Bound, by_bound, ns_by_cause
from daydream.simulate.steady_state import SETTLED, SteadyState
from daydream.text import counted, rounded_time
from daydream.trace.recorded_steps import recorded_time, silent_ranks, whole_recording
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction

Basis = Literal["unprofiled", "estimated", "recorded"]
UNPROFILED, ESTIMATED, RECORDED = get_args(Basis)
TWO_SIDED_90 = 1.645  # of the normal distribution
STUDENT_90 = (
    6.314,
    2.920,
    2.353,
    2.132,
    2.015,
    1.943,
    1.895,
    1.860,
    1.833,
)  # with 1 to 9 degrees of freedom
SLOW = 5.0  # times the median: an evaluation, a checkpoint
MOST_LEFT_OUT = 0.1  # of the timed steps
FASTER = 0.01  # of the timed step: recorded steps that are this much faster contradict it


class TimedSteps(NamedTuple):
    """Steps that were timed without a profiler, in ns: those that count, and those that are left out."""

    kept: tuple[int, ...]
    left_out: tuple[int, ...]

    @property
    def mean_ns(self) -> int:
        """The mean of those that count."""
        return round(fmean(self.kept))

    @property
    def spread(self) -> float:
        """Half-width at 90% of that mean, as a part of it."""
        return variation([self.kept])

    @property
    def added_ns(self) -> float:
        """What those that are left out add to a step of the run."""
        return fmean([*self.kept, *self.left_out]) - fmean(self.kept)

    def slower_than(self, recorded_ns: int) -> bool:
        """Tell whether recorded steps are faster than these, by more than nine in ten of these vary."""
        varies = TWO_SIDED_90 * stdev(self.kept) if len(self.kept) > 1 else 0.0
        return recorded_ns < min(fmean(self.kept) - varies, (1 - FASTER) * fmean(self.kept))

    def notes(self) -> list[str]:
        """Return what is left out and what it adds, a sentence."""
        if not self.left_out:
            return []
        number = len(self.left_out)
        whole = len(self.kept) + len(self.left_out)
        takes = f"took {rounded_time(fmean(self.left_out))}{' each' if number > 1 else ''}"
        verb = "is" if number == 1 else "are"
        adds = f"{'it' if number == 1 else 'they'} would add {self.added_ns / 1e6:,.3g} ms per step"
        return [f"{number} of {counted(whole, 'timed step')} {takes} and {verb} left out; {adds}."]


def timed_steps(trace: Trace, recorded_ns: Sequence[int]) -> TimedSteps | None:
    """Return the steps of a trace that were timed without a profiler; None if there are none.

    A few steps that take many times what the others take (a checkpoint, an evaluation) are left out, unless
    they come back at a period, as a data loader's stalls do, or the recorded steps are as uneven.
    """
    times = [int(ns) for ns in trace.metadata.get("unprofiled_step_ns") or ()]
    if not times:
        return None
    slow = [place for place, ns in enumerate(times) if ns > SLOW * median(times)]
    uneven = recorded_ns and max(recorded_ns) > SLOW * median(recorded_ns)
    if not slow or len(slow) > MOST_LEFT_OUT * len(times) or uneven or _periodic(slow, len(times)):
        return TimedSteps(tuple(times), ())
    kept = tuple(ns for place, ns in enumerate(times) if place not in slow)
    return TimedSteps(kept, tuple(times[place] for place in slow))


def _periodic(places: Sequence[int], size: int) -> bool:
    """Tell whether places are all the multiples of a period; of two, those counted from the first step."""
    if len(places) < 2:
        return False
    period = places[1] - places[0]
    if list(places) != list(range(places[0], size, period)):
        return False
    return places[0] < period if len(places) > 2 else places[0] in (0, period - 1, period)


def recording_share(graph: Graph, corrected: Graph) -> float:
    """Return how much of the busiest CPU thread's time in the steps a corrected graph is without, 0 to 1."""
    covered = covered_steps(graph)[graph.step]
    tasks = graph.alive & (graph.kind == CPU) & (graph.row >= 0) & covered
    before, after = (
        np.bincount(
            graph.lane[tasks], (each.duration_ns + each.gap_ns)[tasks], max(len(graph.lanes), 1)
        )
        for each in (graph, corrected)
    )
    busiest = np.argmax(before)
    return float(1 - after[busiest] / before[busiest]) if before[busiest] else 0.0


def variation(kinds: Sequence[Sequence[int]]) -> float:
    """Return the relative half-width at 90% of the mean of steps of some kinds; 0 for single ones."""
    times = [*chain(*kinds)]
    freedom = len(times) - len(kinds)
    if freedom < 1 or fmean(times) <= 0:  # steps of a damaged recording may cancel
        return 0.0
    student = (
        STUDENT_90[freedom - 1]
        if freedom <= len(STUDENT_90)
        else TWO_SIDED_90 * (1 + 1.15 / freedom)
    )
    within = sum(len(kind) * pvariance(kind) for kind in kinds)
    return student * sqrt(within / freedom) / sqrt(len(times)) / fmean(times)


def without_start_up(graph: Graph, notes: list[str]) -> tuple[Graph, int]:
    """Return a graph in which calls that start up the driver are as long as its usual calls; add a note.

    A call that prepares something for the first time reads files, waits for the device's firmware or for
    other processes: it stands far longer than the others. A later step has none of it. With other steps
    beside it such a step is left out: this is for a graph of one step. Where start-up is a small part of it
    the graph stays as it is, and there is no note.

    Returns:
        the graph, and how long such calls took, in ns.
    """
    from daydream.collect.derive.quality import LOADS, LOADS_NS, WAITS, WORTH_SAYING

    (step,) = graph.steps
    if not step.get("covered"):
        return graph, 0
    calls = np.flatnonzero((graph.kind == CPU) & graph.alive & graph.of_rows("runtime"))
    if not len(calls):
        return graph, 0
    took = graph.duration_ns[calls]
    usual = np.median(took)
    long = (took >= max(LOADS_NS, LOADS * usual)) & ~graph.named(WAITS.search, calls)
    total = int(took[long].sum())
    if not total or total < WORTH_SAYING * (step.get("measured_ns") or 0):
        return graph, 0
    duration = graph.duration_ns.copy()
    duration[calls[long]] = usual
    notes.append(
        f"Start-up is left out of the only step: {total / 1e6:,.4g} ms in "
        f"{counted(long.sum(), 'call')} into the driver, which a later step does not make."
    )
    return graph.retimed(duration, graph.gap_ns), total


UNMOVED = 0.002  # of the step: less is shown as 1.00x


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
        (silent := silent_ranks(trace))
        and f"The trace is of one of {silent:,} ranks and holds none of their collectives: every answer leaves "
        "communication out.",
        trace.metadata.get("backend") == "fake"
        and "torch's fake backend does not tell which group an operator used: `daydream collect --world N` records "
        "it.",
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
    of_memory = (
        () if answer.memory is None else (*answer.memory.recording_notes, *answer.memory.notes)
    )
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
        (prediction.changed or prediction.inserted or prediction.removed)
        and why_unmoved(prediction),
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
