"""When threads of an export were blocked: off the CPU, in a call that waits, or held up by the profiler.

Each table that tells it is a query; together they are a view with the columns of the other tables, `name`
being the blocking call. What is shorter than 50 us is the scheduler's, and no wait.

| table | what counts |
|---|---|
| `SCHED_EVENTS` | from a switch out of a thread until the next switch in |
| `OSRT_API` | calls of the C library that wait, by their name |
| `COMPOSITE_EVENTS` | a stretch without a CPU sample, where no switches were recorded |
| `PROFILER_OVERHEAD` | the profiler's own pauses |

Calls that wake, in `OSRT_API`, tell who ended a wait.
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
WAKES = "daydream calls that wake"
WAKING = """
    SELECT start, rows."end", globalTid FROM OSRT_API AS rows JOIN StringIds ON StringIds.id = nameId
    WHERE StringIds.value IN (
        'pthread_cond_signal', 'pthread_cond_broadcast', 'sem_post', 'write', 'writev', 'send')"""
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
    with suppress(sqlite3.OperationalError):  # likewise
        export.connection.execute(f"EXPLAIN {WAKING}")
        export.define(WAKES, WAKING)


def wakers(
    start: np.ndarray, end: np.ndarray, thread: np.ndarray, calls: np.ndarray, caller: np.ndarray
) -> np.ndarray:
    """Return the thread that ended each interval, `NO_ID` for none: it woke, or began to wait itself then.

    A thread that hands over calls what wakes right before the switch in of the other, and where it has no
    more to do it blocks right before or behind that. It ran before that; of those that are hardly so close by
    chance the nearest counts. `thread` is each interval's `globalTid`; `calls` that wake began then, in
    order, by `caller`.
    """
    found = np.full(len(end), NO_ID)
    nearest = np.full(len(end), LATEST_NS)
    before = start.min() - LATEST_NS
    beyond = end.max() + LATEST_NS
    for other in np.unique(np.append(thread, caller)).tolist():
        own = np.flatnonzero(thread == other)
        own = own[np.argsort(start[own], kind="stable")]
        begins = np.concatenate([[before], start[own], [beyond]])
        ran = np.concatenate([begins[[0, 0]], end[own]])  # since when it ran before each of them
        behind = np.searchsorted(begins, end)
        after = np.where(ran[behind] < end, begins[behind] - end, LATEST_NS)
        woke = np.append(before, calls[caller == other])
        last = np.searchsorted(woke, end, side="right")
        for distance, often in (
            (np.minimum(end - begins[behind - 1], after), behind - np.searchsorted(begins, start) + 1),
            (end - woke[last - 1], last - np.searchsorted(woke, start)),
        ):
            sure = (often > 0) & (often * distance <= CHANCE * (end - start))
            better = sure & (distance < nearest) & (thread != other) & (thread >> 24 == other >> 24)
            found[better] = other & 0xFFFFFF
            nearest[better] = distance[better]
    return found
