"""What part of a recording its steps are, and what lies outside of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.lazy import regex
from daydream.results import Record
from daydream.text import rounded_time

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

MUCH = 0.2  # of a recording in no step at all, from which it is worth a note
WORTH_NAMING = 0.1  # of a stretch, and of the recording, that is named
MOST_NAMES = 2
MADE_UP = "This is the memory of "  # how the note begins where it never was
COMMUNICATES = regex(r"^(_?c10d(_functional)?::|FSDP::|record_param_comms)")


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
                f"{_ms(stretch.duration_ns)} {stretch.where} them"
                + (f" ({named})" if named else "")
            )
        return (
            f"The covered steps are {100 * self.covered_share:.0f}% of the recording; in no step are "
            f"{' and '.join(parts)}. Predictions leave that time out."
        )


def whole_recording(trace: Trace | None) -> list[str]:
    """Return that no steps were found in a trace, or steps of two kinds; empty where there are others."""
    if trace is None:
        return []
    source = str(trace.metadata.get("step_source", ""))
    if source.endswith("another kind"):
        return [
            "steps of two kinds: answers are about those that repeat, not about the one before them"
        ]
    if not source.startswith("the whole recording"):
        return []
    taken = "no steps found: the whole recording, {}, is taken as one"  # a recording without a task has none
    return [taken.format(rounded_time(step["measured_ns"])) for step in trace.metadata["steps"][:1]]


def silent_ranks(trace: Trace) -> int:
    """Return how many ranks a job has whose collectives the trace of one calls but does not hold, else 0."""
    ranks = trace.metadata.get("world_size") or 0
    if ranks < 2 or "fake_world" in trace.metadata or trace.is_kind("collective").any():
        return 0
    return ranks if any(map(COMMUNICATES.search, trace.text("name"))) else 0


def in_fake_world(trace: Trace) -> str | None:
    """Return which rank of a fake world a trace is of, in words; None for others."""
    world = trace.metadata.get("fake_world")
    others = " and others" if "ranks" in trace.metadata else ""
    return world and f"rank {world['rank']}{others} of {world['world_size']:,} in a fake world"


def made_up(trace: Trace) -> str | None:
    """Return in words what a recording is of that does not exist: a GPU, a world; None for others."""
    gpu = trace.metadata.get("emulated")
    return (
        ", ".join(filter(None, [gpu and f"emulated {gpu['device']}", in_fake_world(trace)])) or None
    )


def shared_already(trace: Trace) -> str | None:
    """Return why a trace is not of a whole job on one GPU: of one of several ranks, its share is recorded."""
    if fake := in_fake_world(trace):
        return (
            f"the trace is of {fake}, which share the work already; record another world instead: "
            "daydream collect --world N SCRIPT"
        )
    if ranks := silent_ranks(trace):
        return (
            f"the trace is of one of {ranks:,} ranks, which share the work already, and holds none of their "
            "collectives; ask it of a trace of one GPU alone, or record this job with its collectives: "
            f"daydream collect --world {ranks} SCRIPT"
        )
    return None


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
        taken = [
            (step["start_ns"], max(step.get("completion_ns", 0), step["end_ns"])) for step in timed
        ]
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
