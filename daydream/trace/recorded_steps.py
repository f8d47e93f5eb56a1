"""The steps that stand for a long recording: an answer takes no longer, however much was recorded.

A run of steps that follow each other is typical where its mean measured step is that of all covered steps
within 1%. So what comes now and then (a slow batch, an evaluation) is in it as often as in the recording.
Where no short run is typical, longer ones are looked at, in the end all steps.

Some of a trace's steps, as if only these had been recorded: `10:20` are the steps 10 to 19 of each rank.

`typical` are those that stand for a long recording (`typical_run`), all of a shorter one.

The step before the first one is kept too, but is not covered: it is what the first one begins with, work that
still runs and a launch queue that is not empty. A range that ends where the trace does goes to its end.

| kept are | because |
|---|---|
| rows of these steps, wherever they lie | device work runs after the step that launched it |
| rows of no step while these steps run | other threads of the same time |

A range around all steps ends with the last that is kept, and a parent that is not kept is unknown. Memory
that was recorded is left out: what was held when these steps began is not known.

`recorded_time` is what part of a recording its steps are, and what lies outside of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.results import Record
from daydream.text import rounded_time
from daydream.trace.schema import NO_ID, UNKNOWN, Columns

if TYPE_CHECKING:
    from pyarrow.compute import Expression

    from daydream.trace.trace import Trace

TYPICAL = "typical"
ENOUGH = 200_000  # rows: an answer from so many takes two seconds
LONG = 2 * ENOUGH  # rows: of fewer all steps are looked at
FEWEST = 4  # steps: fewer tell little of how steps vary
ALIKE = 0.01  # of the mean step


class TypicalRun(NamedTuple):
    """Steps of each rank from `first` to before `end`, counted from 0, which stand for all `of` them.

    Their mean measured step is `off` that of all, relatively.
    """

    first: int
    end: int
    of: int
    off: float

    @property
    def note(self) -> str:
        """What a reader of an answer should know."""
        off = f"{100 * max(self.off, 0.001):.1f}%"
        return (
            f"{self.end - self.first:,} of {self.of:,} steps stand for all (--steps {self.first}:{self.end}, "
            f"with a mean within {off} of that of all); --steps : takes them all."
        )


def steps_by_rank(steps: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Return the numbers of the steps of each rank, in their order."""
    found: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        found.setdefault(int(step.get("rank", 0)), []).append(number)
    return found


def is_long(rows: int) -> bool:
    """Return whether a recording of so many rows may be answered from some of its steps."""
    return rows > LONG


def typical_run(metadata: Mapping[str, Any], rows: int) -> TypicalRun | None:
    """Return the shortest typical run of a recording of so many rows; None if all its steps are looked at.

    All are where it is short, or where its ranks have different numbers of steps. Of equally long runs it is
    the one of which about as many steps are longer than the median as of all, the last of those.
    """
    steps = metadata.get("steps", [])
    by_rank = list(steps_by_rank(steps).values())
    count = len(by_rank[0]) if by_rank else 0
    length = max(FEWEST, ENOUGH * count // max(rows, 1))
    if not is_long(rows) or length >= count or any(len(mine) != count for mine in by_rank):
        return None
    covered, measured = (  # of each place, the ranks' steps together
        np.array([[steps[number].get(name) or 0 for number in mine] for mine in by_rank], np.int64)
        for name in ("covered", "measured_ns")
    )
    measured *= covered
    median = np.median(measured[covered > 0]) if covered.any() else 0
    judged, total, above = (
        np.append(0, np.cumsum(each.sum(axis=0))) for each in (covered, measured, measured > median)
    )
    if total[-1] <= 0:
        return None
    mean = total[-1] / judged[-1]
    share = above[-1] / judged[-1]
    while length < count:
        inside, took, longer = (each[length:] - each[:-length] for each in (judged, total, above))
        enough = inside >= FEWEST * len(by_rank)
        inside = np.maximum(inside, 1)
        off = np.where(enough, np.abs(took / inside - mean) / mean, np.inf)
        if (off <= ALIKE).any():
            unlike = np.where(off <= ALIKE, np.abs(longer / inside - share), np.inf)
            first = len(unlike) - 1 - int(np.argmin(unlike[::-1]))
            return TypicalRun(
                first,
                first + length,
                count,
                float(off[first]),
            )
        length += length // 4
    return None


RANGE = regex(r"(\d{0,9}):(\d{0,9})", re.ASCII)
BEFORE = "it comes before the steps that were asked for"
OF_MEMORY = ("held_before", "memory_from")
ALWAYS = np.iinfo(np.int64)


class StepRange(NamedTuple):
    """Steps of each rank from `first` to before `end` (None: all that follow), counted from 0."""

    first: int
    end: int | None

    @classmethod
    def parse(cls, text: str) -> StepRange:
        """Return the range that a text such as `10:20`, `10:` or `:20` means.

        Raises `TraceError` if it means none.
        """
        found = RANGE.fullmatch(text)
        if found is None:
            raise TraceError(f"{text!r} is no range of steps; one such as 10:20 was needed")
        first, end = found.groups()
        return cls(int(first or 0), int(end) if end else None)

    def __str__(self) -> str:
        return f"{self.first}:{'' if self.end is None else self.end}"


def is_range(text: str | None) -> bool:
    """Return whether a text says which steps are read."""
    return text is not None and RANGE.fullmatch(text) is not None


class Chosen(NamedTuple):
    """What a range means for the steps of one trace.

    Attributes:
        numbers: of the steps that are kept, those before a range too; int64, ascending.
        windows: when they run, by rank, from the first ns to before the second; ranks without any step are
            not there.
        metadata: of the trace that they are.
    """

    numbers: np.ndarray
    windows: dict[int, tuple[int, int]]
    metadata: dict[str, Any]

    def rows(self, step: np.ndarray, rank: np.ndarray, start_ns: np.ndarray) -> np.ndarray:
        """Return which rows are kept: bool, shape (rows,), as the columns of the trace that are given."""
        kept = np.isin(step, self.numbers)
        nowhere = step == UNKNOWN
        for number, (begin, end) in self.windows.items():
            during = (begin <= start_ns) & (start_ns < end)
            kept |= nowhere & (np.maximum(rank, 0) == number) & during
        return kept

    def filters(self, names: Container[str]) -> Expression:
        """Return the same as a filter of a file's rows, which has columns of these names."""
        from pyarrow import compute

        step, start_ns = compute.field("step"), compute.field("start_ns")
        rank = compute.coalesce(compute.field("rank"), 0) if "rank" in names else compute.scalar(0)
        first, last = int(self.numbers[0]), int(self.numbers[-1])
        kept = (first <= step) & (step <= last) & step.isin(self.numbers.tolist())
        for number, (begin, end) in self.windows.items():
            kept |= step.is_null() & (rank == number) & (begin <= start_ns) & (start_ns < end)
        return kept

    def taken(self, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> Columns:
        """Return the columns of the rows that are kept with steps and parents numbered among them.

        Args:
            columns: of these rows, with steps and parents as the whole trace numbers them.
            rows: their own numbers in the whole trace, ascending, int64, shape (kept,).

        """
        taken = dict(columns)
        if "step" in taken:
            step = taken["step"]
            found = np.searchsorted(self.numbers, step)
            taken["step"] = np.where(step == UNKNOWN, UNKNOWN, found).astype(step.dtype)
        if "parent" in taken:
            parent = taken["parent"]
            place = np.searchsorted(rows, parent)
            known = place < len(rows)
            known[known] = rows[place[known]] == parent[known]
            taken["parent"] = np.where(known, place, UNKNOWN).astype(parent.dtype)
        if {"step", "start_ns", "duration_ns", "tid"} <= columns.keys():
            taken["duration_ns"] = self._ended(columns)
        return taken

    def _ended(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return durations, in ns, of which those of ranges around all steps end with the last that is kept.

        What they hold behind it is not kept, and would count as their own time.
        """
        start = columns["start_ns"]
        duration = columns["duration_ns"].copy()
        around = (columns["step"] == UNKNOWN) & (columns["tid"] != NO_ID)
        rank = (
            np.maximum(columns["rank"], 0) if "rank" in columns else np.zeros(len(start), np.int64)
        )
        for number, (_, end) in self.windows.items():
            if end == ALWAYS.max:
                continue
            left = end - 1 - start
            beyond = around & (rank == number) & (duration > left) & (left > 0)
            duration[beyond] = left[beyond]
        return duration


def chosen_steps(
    metadata: Mapping[str, Any], steps: str, rows: int, *, with_memory: bool
) -> Chosen | None:
    """Return what `10:20` or `typical` keeps of a trace with this metadata, which has been checked.

    None if that is all of its `rows`. Of a recording of memory all steps are typical: what was held when
    others began is not known.

    Raises `TraceError` if no step is in the range.
    """
    run: TypicalRun | None = None
    if steps != TYPICAL:
        wanted = StepRange.parse(steps)
    else:
        run = None if with_memory else typical_run(metadata, rows)
        if run is None:
            return None
        wanted = StepRange(run.first, run.end)
    every: Sequence[Mapping[str, Any]] = metadata.get("steps", [])
    by_rank = steps_by_rank(every)
    numbers: list[int] = []
    before: list[int] = []
    windows: dict[int, tuple[int, int]] = {}
    for rank, mine in by_rank.items():
        inside = mine[wanted.first : wanted.end]
        if not inside:
            continue
        at = mine.index(inside[0])
        lead = mine[at - 1 : at] if at else []
        kept = [*lead, *inside]
        begin = int(every[kept[0]]["start_ns"]) if kept[0] != mine[0] else ALWAYS.min
        end = max(int(every[number]["end_ns"]) for number in kept) + 1
        windows[rank] = begin, end if kept[-1] != mine[-1] else ALWAYS.max
        numbers += kept
        before += lead
    if not numbers:
        most = max(map(len, by_rank.values()), default=0)
        held = f"the steps 0 to {most - 1}" if most else "no steps at all"
        raise TraceError(
            f"it has none of the steps {wanted}, as there are {held}; ask for some of these"
        )
    if len(numbers) == len(every) and not before:
        return None
    numbers.sort()
    found = _without_memory(metadata)
    if "ranks" in found:
        found["ranks"] = [_without_memory(rank) for rank in found["ranks"]]
    found["steps"] = [
        {**every[number], "covered": False, "why_not": BEFORE}
        if number in before
        else dict(every[number])
        for number in numbers
    ]
    if run is not None:
        note = found["typical_run"] = run.note
    else:
        found["steps_read"] = str(wanted)
        note = (
            f"Only the {len(numbers) - len(before)} steps {wanted} of {len(every)} were read, and no memory "
            "events: what lies outside is not known here."
        )
    found["notes"] = [*metadata.get("notes", []), note]
    return Chosen(np.array(numbers), windows, found)


def _without_memory(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in OF_MEMORY}


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
