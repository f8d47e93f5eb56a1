"""The step that answers are about: timed without a profiler, estimated to be so, or as it was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import sqrt
from statistics import fmean, median, pvariance, stdev
from typing import Literal, NamedTuple, get_args

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.tables import CPU, covered_steps
from daydream.text import counted, rounded_time
from daydream.trace.trace import Trace

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
