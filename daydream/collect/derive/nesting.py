"""Which host row encloses which, and which call launched which device row.

Rows of a thread become properly nested intervals: two rows are apart or one lies
in the other. Profilers that round to microseconds let a child end after its parent
by one; such a row is cut at its parent's end. Or they let a row end after the next one begins; it is cut
there. Larger crossings are cut and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from daydream import compiled
from daydream.arrays import innermost, take
from daydream.collect.derive.recording import ROUNDING_NS, Recording, narrow
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS, UNKNOWN

STEP_MARKER = regex(r"^ProfilerStep#")
LAUNCH_CALL = regex(r"launch|memcpy|memset|memprefetch", re.IGNORECASE)
THREAD_BITS = 47  # of a time in ns: a recording is of a day
MOST_CUTS = 4  # a row that begins so may hold others that do, too

ANNOTATION, OPERATOR, RUNTIME = 0, 1, 2  # outer to inner, for rows that begin and end together


@dataclass
class Nesting:
    """For each row: the enclosing row, the enclosing module row, and the duration after cutting."""

    parent: np.ndarray
    module: np.ndarray
    duration_ns: np.ndarray
    crossings: int


def nest(recording: Recording) -> Nesting:
    """Return the nesting of the host rows.

    Operators, annotations and runtime calls nest in one another; `ProfilerStep#`
    ranges take no part, as they cut through what a script does. Modules nest in modules only.
    """
    rows = len(recording)
    parent = np.full(rows, UNKNOWN, np.int32)
    module = np.broadcast_to(np.int32(UNKNOWN), rows)
    start = recording["start_ns"]
    end = np.add(
        start, recording["duration_ns"], dtype=np.int64
    )  # columns are as narrow as their numbers

    depth = np.full(rows, -1, np.int8)
    for level, kind in enumerate(("annotation", "operator", "runtime")):
        depth[recording.is_kind(kind)] = level
    depth[recording.named(STEP_MARKER, "annotation")] = -1
    is_module = recording.is_kind("module")

    crossings = 0
    host = np.flatnonzero(depth >= 0).astype(np.int32)
    for members in (np.flatnonzero(is_module), host):
        order = _outer_first(recording, members, end, depth)
        _end_before_next(recording, order, end)
        crossings += _nest_threads(recording, order, end, depth, parent)
    if is_module.any():
        module = np.full(rows, UNKNOWN, np.int32)
        _enclosing_modules(recording, host, np.flatnonzero(is_module), start, end, parent, module)
    end -= start
    return Nesting(parent, module, narrow(end), crossings)


def _outer_first(
    recording: Recording, rows: np.ndarray, end: np.ndarray, depth: np.ndarray
) -> np.ndarray:
    """Return rows by thread and start, outer before inner.

    Rows that begin and end together: by kind, then by profiler id, which is given out in order of beginning.
    """
    start = recording["start_ns"]
    threads = recording.threads
    if (start[1:] < start[:-1]).any():
        rows = rows[np.argsort(start[rows], kind="stable")]
    rows = rows[np.argsort(threads[rows], kind="stable")]
    times = start[rows]
    lanes = threads[rows]
    tied = np.zeros(len(rows), bool)
    tied[1:] = (times[1:] == times[:-1]) & (lanes[1:] == lanes[:-1])
    tied[:-1] |= tied[1:]
    few = rows[tied]
    rows[tied] = few[
        np.lexsort(
            (few, recording["external_id"][few], depth[few], -end[few], start[few], threads[few])
        )
    ]
    return rows


def _end_before_next(recording: Recording, order: np.ndarray, end: np.ndarray) -> None:
    """Cut `end` of rows that the next one of their thread begins before: by no more than clocks round.

    That one goes on for longer behind them than it overlaps with them, so it is no part of them.
    """
    lane = recording.threads[order].astype(np.int64) << THREAD_BITS
    begin = lane + recording["start_ns"][order]
    for _ in range(MOST_CUTS):
        until = lane + end[order]
        following = np.searchsorted(begin, until) - 1  # which begins last before a row ends
        overlap = until - begin[following]
        late = (following > np.arange(len(order))) & (overlap <= ROUNDING_NS)
        late &= end[order[following]] - end[order] > overlap
        if not late.any():
            return
        end[order[late]] -= overlap[late]


def _nest_threads(
    recording: Recording, order: np.ndarray, end: np.ndarray, depth: np.ndarray, parent: np.ndarray
) -> int:
    """Fill `parent` and cut `end`, for rows ordered by thread and start; return the crossings cut.

    Each row depends on the cuts before it, so this is a loop: compiled, or some 0.5 us a row.
    """
    engine = compiled.engine()
    if engine is None:
        return _nest_in_python(recording, order, end, depth, parent)
    start = np.require(recording["start_ns"], np.int64, "C")
    threads = recording.threads.astype(np.int32)
    rows = order.astype(np.int32)
    enclosing = np.empty(len(order), np.int32)
    crossings: int = engine.nest(rows, start, end, depth, threads, parent, enclosing, ROUNDING_NS)
    return crossings


def _nest_in_python(
    recording: Recording, order: np.ndarray, end: np.ndarray, depth: np.ndarray, parent: np.ndarray
) -> int:
    """Do what `_nest_threads` does."""
    opened: list[
        tuple[int, int, int, int]
    ] = []  # rows that enclose the present one: start, end and kind
    lane = -1
    crossings = 0
    parents = []
    ends = []
    late: list[tuple[int, int]] = []  # annotations and calls that were cut after they had been left
    for row, at, until, level, thread in zip(
        order.tolist(),
        recording["start_ns"][order].tolist(),
        end[order].tolist(),
        depth[order].tolist(),
        recording.threads[order].tolist(),
        strict=True,
    ):
        stop = until
        if thread != lane:
            lane = thread
            opened = []
        while opened:
            _, began, ended, kind = opened[-1]
            if ended > at:
                break
            if ended == at == stop == began and kind < level:
                break  # both last no time: a call of an operator, too short for the clock
            opened.pop()
        while opened:
            outer, _, ended, kind = opened[-1]
            over = stop - ended
            in_call = kind == RUNTIME and level != RUNTIME
            if in_call or (over > ROUNDING_NS and kind == ANNOTATION and level != ANNOTATION):
                # Only calls happen in a call: it ended before, the clock could not tell. And an
                # annotation can be asynchronous: the operator is what the thread really did.
                crossings += not in_call or ended - at > ROUNDING_NS
                late.append((outer, at))
                opened.pop()
                continue
            if over > 0:
                crossings += over > ROUNDING_NS
                stop = ended
            break
        parents.append(opened[-1][0] if opened else UNKNOWN)
        ends.append(stop)
        opened.append((row, at, stop, level))
    end[order] = ends
    parent[order] = parents
    for row, at in late:
        end[row] = at
    return crossings


def _enclosing_modules(
    recording: Recording,
    host: np.ndarray,
    modules: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    parent: np.ndarray,
    module: np.ndarray,
) -> None:
    """Fill `module`: the innermost module row of the same thread whose range holds the row's start."""
    threads = recording.threads
    modules = modules[np.lexsort((-end[modules], start[modules], threads[modules]))]
    place = np.full(len(recording) + 1, UNKNOWN)
    place[modules] = np.arange(len(modules))
    found = innermost(
        threads[modules],
        start[modules],
        end[modules],
        place[parent[modules]],
        threads[host],
        start[host],
    )
    module[host] = take(modules, found)


def link_launches(recording: Recording) -> np.ndarray:
    """Return for each device row the row of the call that launched it, else unknown.

    The two share a correlation id. Where several calls do (a driver call inside a
    runtime call), the innermost one that launches counts: the last to begin.
    """
    launch = np.full(len(recording), UNKNOWN, np.int32)
    correlation = np.asarray(recording["correlation"])
    calls = np.flatnonzero(recording.is_kind("runtime") & (correlation >= 0))
    work = np.flatnonzero(recording.is_kind(*DEVICE_KINDS) & (correlation >= 0))
    if not len(calls) or not len(work):
        return launch
    launches = recording.named(LAUNCH_CALL, "runtime")
    order = np.lexsort((calls, recording["start_ns"][calls], launches[calls], correlation[calls]))
    calls = calls[order]
    ids = correlation[calls]
    start = recording["start_ns"][calls]
    end = (recording["start_ns"] + recording["duration_ns"])[calls]
    unclear = np.zeros(
        len(calls), bool
    )  # ids that are none: calls one after the other have the same
    unclear[1:] = (ids[1:] == ids[:-1]) & launches[calls[:-1]] & (start[1:] >= end[:-1])
    slot = np.searchsorted(ids, correlation[work], side="right") - 1
    found = (slot >= 0) & (ids[slot] == correlation[work]) & ~unclear[slot]
    launch[work[found]] = calls[slot[found]]
    return launch


def nearest(flags: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Return for each row itself or its nearest ancestor that is flagged, else unknown."""
    found = np.array(parent, np.int32)
    found[flags] = np.flatnonzero(flags)
    rows = np.flatnonzero(found >= 0)
    while len(rows := rows[~flags[found[rows]]]):
        found[rows] = found[found[rows]]
        rows = rows[found[rows] >= 0]
    return found
