"""Which wait a synchronization row of an Nsight Systems export is, and what it waits for.

When threads of an export were blocked: off the CPU, in a call that waits, or held up by the profiler.

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
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.nsys.export import Export
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS, NO_ID, UNKNOWN

# Kineto's names of what CUPTI's types are called.
TYPE_NAMES = {
    "EVENT_SYNCHRONIZE": "Event Sync",
    "STREAM_WAIT_EVENT": "Stream Wait Event",
    "STREAM_SYNCHRONIZE": "Stream Sync",
    "CONTEXT_SYNCHRONIZE": "Context Sync",
}
TYPES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
# Older exports leave syncType unknown and count like this; seen with 3.17.
DEPRECATED_TYPES = {0: "Context Sync", 1: "Event Sync", 2: "Stream Sync"}
CALLS = (
    (regex(r"EventQuery"), "Event Query"),
    (regex(r"StreamQuery"), "Stream Query"),
    (regex(r"StreamWaitEvent"), "Stream Wait Event"),
    (regex(r"EventSynchronize"), "Event Sync"),
    (regex(r"StreamSynchronize"), "Stream Sync"),
    (regex(r"DeviceSynchronize|ThreadSynchronize|CtxSynchronize"), "Context Sync"),
)
QUERIES = ("Event Query", "Stream Query")
EVENT_WAITS = ("Event Sync", "Stream Wait Event")


def name_syncs(
    recording: Recording, rows: np.ndarray, sync: Mapping[str, np.ndarray], enum: Mapping[int, str]
) -> list[str]:
    """Return the name of each sync row.

    By its type; where that is unknown, by the call it belongs to, then by the older type,
    then by the ids it holds. A query is recorded like a wait, but never waits: it is
    named after its call.
    """
    types = dict(TYPES)
    for code, word in enum.items():
        for ending, name in TYPE_NAMES.items():
            if word.endswith(ending):
                types[code] = name
    texts = recording.text("name")
    says = [
        next((name for pattern, name in CALLS if pattern.search(text)), None) for text in texts
    ] + [None]
    call = _calls(recording, recording["correlation"][rows])
    columns = (
        np.where(call >= 0, recording["name"][call], len(texts)),
        sync["syncType"],
        sync["deprecatedSyncType"],
        sync["eventId"],
        recording["stream"][rows],
    )
    names: list[str] = []
    for code, kind, older, event, stream in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        said = says[code]
        by_ids = "Event Sync" if event >= 0 else "Stream Sync" if stream >= 0 else "Context Sync"
        by_type = types.get(kind) or said or DEPRECATED_TYPES.get(older) or by_ids
        names.append(said if said is not None and said in QUERIES else by_type)
    return names


def place_syncs(recording: Recording, processes: np.ndarray, contexts: np.ndarray) -> None:
    """Give sync rows the device of their context: what the file says there is device 0 at times."""
    context = np.stack([processes, contexts])
    known = np.flatnonzero(recording.is_kind(*DEVICE_KINDS) & (contexts >= 0))
    rows = np.flatnonzero(recording.is_kind("sync"))
    _, group = np.unique(context[:, np.concatenate((known, rows))], axis=1, return_inverse=True)
    group = group.reshape(-1)
    device = np.full(group.max(initial=-1) + 1, UNKNOWN)
    device[group[: len(known)]] = recording["device"][known]
    found = device[group[len(known) :]]
    recording.columns["device"][rows[found >= 0]] = found[found >= 0]


def resolve_waits(
    recording: Recording,
    rows: np.ndarray,
    sync: Mapping[str, np.ndarray],
    records: Sequence[Mapping[str, np.ndarray]],
) -> None:
    """Fill wait_stream and wait_correlation of sync rows: the latest record of their event before them.

    `records` are the blocks of the event table, with correlation ids as in the recording.
    Waits without a record are counted in a note.
    """
    names = recording.text("name")
    waits = np.isin(
        recording["name"][rows], [code for code, name in enumerate(names) if name in EVENT_WAITS]
    )
    waits &= sync["eventId"] >= 0
    where = rows[waits]
    stream = np.full(len(recording), UNKNOWN)
    correlation = np.full(len(recording), UNKNOWN)
    if len(where) and records:
        table = {name: np.concatenate([block[name] for block in records]) for name in records[0]}
        call = _calls(recording, table["correlationId"])
        table = {name: column[call >= 0] for name, column in table.items()}
        recorded_ns = recording["start_ns"][call[call >= 0]]
        # An event is recorded again and again; newer exports number the records of an event.
        numbered = bool((table["eventSyncId"] >= 0).any())
        events = np.stack(
            [
                np.concatenate(
                    (table["correlationId"] >> 32, recording["correlation"][where] >> 32)
                ),
                np.concatenate((table["eventId"], sync["eventId"][waits])),
                np.concatenate((table["eventSyncId"], sync["eventSyncId"][waits])) * numbered,
            ]
        )
        group = np.unique(events, axis=1, return_inverse=True)[1].reshape(-1)
        time_ns = np.concatenate((recorded_ns, recording["start_ns"][where]))
        is_wait = np.arange(len(group)) >= len(recorded_ns)
        order = np.lexsort((is_wait, time_ns, group))
        place = np.where(is_wait[order], -1, np.arange(len(order)))
        latest = np.maximum.accumulate(place)
        found = (
            (latest >= 0) & (group[order][np.maximum(latest, 0)] == group[order]) & is_wait[order]
        )
        record = order[latest[found]]
        wait = where[order[found] - len(recorded_ns)]
        stream[wait] = table["streamId"][record]
        correlation[wait] = table["correlationId"][record]
    if len(where):
        recording.columns["wait_stream"] = stream
        recording.columns["wait_correlation"] = correlation
    unresolved = int((correlation[where] < 0).sum())
    if unresolved:
        recording.note(
            f"{unresolved:,} of {len(where):,} waits for an event have no record of the event in the file."
        )


def _calls(recording: Recording, correlation: np.ndarray) -> np.ndarray:
    """Return the runtime row with each correlation id, -1 where there is none."""
    runtime = np.flatnonzero(recording.is_kind("runtime") & (recording["correlation"] >= 0))
    if not len(runtime):
        return np.full(len(correlation), UNKNOWN)
    runtime = runtime[np.argsort(recording["correlation"][runtime], kind="stable")]
    known = recording["correlation"][runtime]
    at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where(known[at] == correlation, runtime[at], UNKNOWN)


BLOCKED = "daydream blocked intervals"
LATEST_NS = (
    1_000_000  # between a thread's wait and the switch in of the one that it woke: 0 to 370 us
)
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
BLOCKED_QUERIES = (
    SWITCHES,
    NAMED.format("''", "OSRT_API"),
    NAMED.format("'profiler: '", "PROFILER_OVERHEAD"),
    SAMPLES,
)


def define_blocked(export: Export, processes: Sequence[int]) -> None:
    """Give an export the view `BLOCKED` of the intervals of some processes, where a table tells them."""
    told = []
    for query in BLOCKED_QUERIES:
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
            (
                np.minimum(end - begins[behind - 1], after),
                behind - np.searchsorted(begins, start) + 1,
            ),
            (end - woke[last - 1], last - np.searchsorted(woke, start)),
        ):
            sure = (often > 0) & (often * distance <= CHANCE * (end - start))
            better = sure & (distance < nearest) & (thread != other) & (thread >> 24 == other >> 24)
            found[better] = other & 0xFFFFFF
            nearest[better] = distance[better]
    return found
