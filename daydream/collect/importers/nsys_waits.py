"""What an export of Nsight Systems tells of waits: for the device, and of threads that were blocked.

A synchronization row says which wait it is, and the records of events what it waits for. When threads were
blocked (off the CPU, in a call that waits, or held up by the profiler) is told by four tables; what is
shorter than 50 us is the scheduler's, and no wait.

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
from collections.abc import Mapping

import numpy as np

from daydream import arrays
from daydream.collect.derive.recording import Recording
from daydream.collect.importers.databases import Database
from daydream.collect.importers.row_builder import RowBuilder
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS, NO_ID, UNKNOWN, Columns

SYNC_COLUMNS = ("deprecatedSyncType", "eventId", "eventSyncId")
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


def calls_of(recording: Recording, correlation: np.ndarray) -> np.ndarray:
    """Return the runtime row with each correlation id, -1 where there is none."""
    ids = np.where(recording.is_kind("runtime"), recording["correlation"], UNKNOWN)
    return np.where(correlation >= 0, arrays.lookup(ids, correlation), UNKNOWN)


def name_syncs(recording: Recording, extra: Mapping[str, np.ndarray]) -> None:
    """Name the sync rows whose type is unknown by the call they belong to, the older type, or their ids.

    A query is recorded like a wait, but never waits: it is named after its call. `extra` has what rows of
    synchronization tell besides, as columns of the recording.
    """
    rows = np.flatnonzero(recording.is_kind("sync"))
    says = {
        text: next((name for pattern, name in CALLS if pattern.search(text)), None)
        for text in recording.text("name")
    }
    call = calls_of(recording, recording["correlation"][rows])
    texts = recording.texts_of("name", call)
    names = []
    for row, of_call, text, given in zip(
        rows.tolist(), call.tolist(), texts, recording.texts_of("name", rows), strict=True
    ):
        said = says[text] if of_call >= 0 and text else None
        by_ids = (
            "Event Sync"
            if extra["eventId"][row] >= 0
            else "Stream Sync"
            if recording["stream"][row] >= 0
            else "Context Sync"
        )
        older = DEPRECATED_TYPES.get(int(extra["deprecatedSyncType"][row]))
        names.append(said if said in QUERIES else given or said or older or by_ids)
    recording.set_texts("name", rows, names)


def place_syncs(recording: Recording, process: np.ndarray, context: np.ndarray) -> None:
    """Give sync rows the device of their context: what the file says there is device 0 at times."""
    known = np.flatnonzero(recording.is_kind(*DEVICE_KINDS) & (context >= 0))
    rows = np.flatnonzero(recording.is_kind("sync"))
    _, group = arrays.distinct_rows([process, context])
    at = arrays.lookup(group[known[::-1]], group[rows])
    known = known[::-1][at[at >= 0]]
    recording.set_numbers("device", rows[at >= 0], recording["device"][known])


def resolve_waits(recording: Recording, extra: Mapping[str, np.ndarray], records: Columns) -> None:
    """Fill wait_stream and wait_correlation of sync rows: the latest record of their event before them.

    `records` are those of events, with correlation ids as in the recording. Waits without a record are
    counted in a note.
    """
    waits = recording.is_kind("sync") & recording.whose_name(EVENT_WAITS.__contains__)
    rows = np.flatnonzero(waits & (extra["eventId"] >= 0))
    if not len(rows):
        return
    call = calls_of(recording, records["correlation"])
    records = {name: column[call >= 0] for name, column in records.items()}
    # An event is recorded again and again; newer exports number the records of an event.
    numbered = bool((records["eventSyncId"] >= 0).any())
    ids = recording["correlation"]
    _, event = arrays.distinct_rows(
        [
            np.append(records["correlation"] >> 32, ids[rows] >> 32),
            np.append(records["eventId"], extra["eventId"][rows]),
            np.append(records["eventSyncId"], extra["eventSyncId"][rows]) * numbered,
        ]
    )
    known = len(records["eventId"])
    start = recording["start_ns"]
    record = arrays.last_before(event[:known], start[call[call >= 0]], event[known:], start[rows])
    found = record >= 0
    if found.any():
        recording.set_numbers("wait_stream", rows[found], records["stream"][record[found]])
        recording.set_numbers(
            "wait_correlation", rows[found], records["correlation"][record[found]]
        )
    if not found.all():
        recording.note(
            f"{int((~found).sum()):,} of {len(rows):,} waits for an event have no record of the event in the file."
        )


LATEST_NS = (
    1_000_000  # between a thread's wait and the switch in of the one that it woke: 0 to 370 us
)
CHANCE = 0.1  # of any moment to lie as close to one of its waits
WAITS = regex(
    r"^(off the CPU|no CPU sample|profiler: )|wait|poll|select|sleep|recv|join|_lock$"
    r"|^(p?readv?\d*|accept4?|futex|pause|flock|fsync)$"
)
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


ON_THREAD = {"start": "start", "end": "[end]", "thread": "globalTid"}


def add_blocked(database: Database, builder: RowBuilder) -> None:
    """Add when the threads of the other rows were blocked, while these lasted."""
    if not len(builder):
        return
    times = (
        builder.gathered("start_ns"),
        builder.gathered("start_ns") + builder.gathered("duration_ns"),
    )
    tid = builder.gathered("tid")
    recorded = np.unique(np.where(tid == NO_ID, 0, builder.gathered("process") << 24 | tid))
    told = [query for query in BLOCKED_QUERIES if _is_told(database, query)]
    if SWITCHES in told:
        told = [query for query in told if query != SAMPLES]
    if not told:
        return
    processes = ", ".join(map(str, np.unique(recorded >> 24).tolist()))
    blocks = list(
        database.blocks(
            "of blocked threads",
            {**ON_THREAD, "name": "name"},
            texts=["name"],
            where=f"[end] - start >= 50000 AND globalTid >> 24 IN ({processes})",
            query=f"({' UNION ALL '.join(told)})",
        )
    )
    names = [name or b"None" for block in blocks for name in block["name"]]
    waiting = {
        name: WAITS.search(name.decode("utf-8", "replace")) is not None for name in set(names)
    }
    waits = np.flatnonzero([waiting[name] for name in names])
    if not len(waits):
        return
    start, end, thread = (
        np.concatenate([block[name] for block in blocks])[waits] for name in ON_THREAD
    )
    woke = [
        np.stack([block["start"], block["thread"]])
        for block in (
            database.blocks("OSRT_API", ON_THREAD, query=f"({WAKING})")
            if _is_told(database, WAKING)
            else ()
        )
    ]
    calls, caller = np.concatenate([np.empty((2, 0), np.int64), *woke], axis=1)
    order = np.argsort(calls, kind="stable")
    waker = wakers(start, end, thread, calls[order], caller[order])
    start = np.maximum(start, int(times[0].min()))
    end = np.minimum(end, int(times[1].max()))
    kept = (start < end) & np.isin(thread, recorded)
    builder.add(
        "blocked",
        start[kept],
        end[kept],
        waker=waker[kept],
        name=builder.coded("name", [names[place] for place in waits[kept].tolist()]),
        process=thread[kept] >> 24,
        pid=thread[kept] >> 24 & 0xFFFFFF,
        tid=thread[kept] & 0xFFFFFF,
    )


def _is_told(database: Database, query: str) -> bool:
    """Return whether the tables of a query are there, with its columns."""
    try:
        database.connection.execute(f"EXPLAIN {query}")
    except sqlite3.OperationalError:
        return False
    return True


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
