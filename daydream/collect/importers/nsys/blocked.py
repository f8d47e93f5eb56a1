"""When threads of an export were blocked: off the CPU, in a call that waits, or held up by the profiler.

Each table that tells it is a query; together they are a view with the columns of the other tables, `name`
being the blocking call. What is shorter than 50 us is the scheduler's, and no wait.

| table | what counts |
|---|---|
| `SCHED_EVENTS` | from a switch out of a thread until the next switch in |
| `OSRT_API` | calls of the C library that wait, by their name |
| `COMPOSITE_EVENTS` | a stretch without a CPU sample, where no switches were recorded |
| `PROFILER_OVERHEAD` | the profiler's own pauses |
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from daydream.collect.importers.nsys.export import Export
from daydream.lazy import regex
from daydream.trace.schema import NO_ID

BLOCKED = "daydream blocked intervals"
LATEST_NS = 1_000_000  # between a thread's wait and the switch in of the one that it woke: 0 to 370 us
CHANCE = 0.1  # of any moment to lie as close to one of its waits
WAITS = regex(
    r"^(off the CPU|no CPU sample|profiler: )|wait|poll|select|sleep|recv|join|_lock$"
    r"|^(p?readv?\d*|accept4?|futex|pause|flock|fsync)$"
)
SWITCHES = """
    SELECT start, "end", globalTid, 'off the CPU' AS name FROM (
        SELECT start, globalTid, isSchedIn,
            LEAD(start) OVER thread AS "end", LEAD(isSchedIn) OVER thread AS after
        FROM SCHED_EVENTS WINDOW thread AS (PARTITION BY globalTid ORDER BY start))
    WHERE isSchedIn = 0 AND after <> 0"""
NAMED = """
    SELECT start, rows."end", globalTid, {} || StringIds.value AS name
    FROM {} AS rows JOIN StringIds ON StringIds.id = nameId"""
SAMPLES = """
    SELECT start, "end", globalTid, 'no CPU sample' AS name FROM (
        SELECT start, globalTid, LEAD(start) OVER (PARTITION BY globalTid ORDER BY start) AS "end"
        FROM COMPOSITE_EVENTS)
    WHERE "end" - start >= 50000000"""  # threads on a CPU are sampled about once a millisecond
QUERIES = SWITCHES, NAMED.format("''", "OSRT_API"), NAMED.format("'profiler: '", "PROFILER_OVERHEAD"), SAMPLES


def define_blocked(export: Export, processes: Sequence[int]) -> None:
    """Give an export the view `BLOCKED` of the intervals of some processes, where a table tells them."""
    told = []
    for query in QUERIES:
        with suppress(sqlite3.OperationalError):  # the table is not there, or lacks a column
            export.connection.execute(f"EXPLAIN {query}")
            told.append(query)
    if SWITCHES in told:
        told = [query for query in told if query != SAMPLES]
    if told:
        every = " UNION ALL ".join(told)
        of = f"globalTid >> 24 IN ({', '.join(map(str, processes))})"
        export.define(BLOCKED, f'SELECT * FROM ({every}) WHERE "end" - start >= 50000 AND {of}')  # noqa: S608


def wakers(start: np.ndarray, end: np.ndarray, thread: np.ndarray) -> np.ndarray:
    """Return the thread that ended each interval by the time it began to wait itself, `NO_ID` for none.

    A thread that hands over and has no more to do blocks right before or behind the switch in of the other.
    It ran before that; of those that are hardly so close by chance the nearest counts. `thread` is each
    interval's `globalTid`.
    """
    found = np.full(len(end), NO_ID)
    nearest = np.full(len(end), LATEST_NS)
    first, last = start.min() - LATEST_NS, end.max() + LATEST_NS
    for other in np.unique(thread).tolist():
        own = np.flatnonzero(thread == other)
        own = own[np.argsort(start[own], kind="stable")]
        begins = np.concatenate([[first], start[own], [last]])
        ran = np.concatenate([begins[[0, 0]], end[own]])  # since when it ran before each of them
        behind = np.searchsorted(begins, end)
        after = np.where(ran[behind] < end, begins[behind] - end, LATEST_NS)
        distance = np.minimum(end - begins[behind - 1], after)
        often = behind - np.searchsorted(begins, start) + 1
        sure = often * distance <= CHANCE * (end - start)
        better = sure & (distance < nearest) & (thread != other) & (thread >> 24 == other >> 24)
        found[better] = other & 0xFFFFFF
        nearest[better] = distance[better]
    return found
