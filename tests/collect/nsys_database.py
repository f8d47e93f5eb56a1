"""Small Nsight Systems exports for the tests: tables as lists of rows, written to SQLite."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from daydream.collect.importers.databases import open_database
from daydream.collect.importers.nsys import read_export
from daydream.trace.trace import Trace

Row = Mapping[str, Any]

PID, MAIN, OTHER = 700, 701, 702
NAMES = (
    "[Unknown]",
    "cudaLaunchKernel_v7000",
    "cudaMemcpyAsync_v3020",
    "cudaMemsetAsync_v3020",
    "cudaStreamSynchronize_v3020",
    "cudaEventSynchronize_v3020",
    "cudaDeviceSynchronize_v3020",
    "cudaEventRecord_v3020",
    "cudaEventQuery_v3020",
    "cudaStreamWaitEvent_v3020",
    "cudaGraphLaunch_v10000",
    "cuMemFree_v2",
    "void add<float>(int)",
    "add",
    "_Z3addi",
    "a registered range",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)",
    "read",
    "sem_wait",
    "sem_post",
)
ID = {name: code for code, name in enumerate(NAMES)}
LAUNCH, COPY = "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"
NOTHING = 0xFFFFFFFF
OTHER_TABLES = (
    "CUPTI",
    "CUDA_EVENT",
    "CUDA_GPU",
    "DIAGNOSTIC",
    "ENUM",
    "META",
    "NVTX",
    "PROCESSES",
    "TARGET",
    "SCHED",
    "OSRT",
    "COMPOSITE",
    "PROFILER",
)


def read_nsys(path):
    """Return the recording in an export, as it is read for a trace."""
    with open_database(path, None) as database:
        return read_export(database)


def packed(tid=0, pid=PID):
    """Return a globalTid, or a globalPid for thread 0."""
    return 1 << 48 | pid << 24 | tid


def call(start, end, correlation, name, *, tid=MAIN, pid=PID):
    return {
        "start": start,
        "end": end,
        "eventClass": 0,
        "globalTid": packed(tid, pid),
        "correlationId": correlation,
        "nameId": ID[name],
        "returnValue": 0,
    }


def on_device(start, end, correlation, *, pid=PID, **more):
    return {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": correlation,
        "globalPid": packed(0, pid),
        "graphNodeId": None,
        **more,
    }


def kernel(start, end, correlation, **more):
    names = zip(("demangledName", "shortName", "mangledName"), NAMES[12:15], strict=True)
    extents = {"gridX": 40, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
    return on_device(start, end, correlation, **{column: ID[name] for column, name in names} | extents | more)


def copy(start, end, correlation, kinds, **more):
    named = dict(zip(("copyKind", "srcKind", "dstKind"), kinds, strict=True))
    return on_device(start, end, correlation, bytes=4096, **named, **more)


def memset(start, end, correlation, kind=2):
    return on_device(start, end, correlation, value=0, bytes=64, memKind=kind)


def sync(start, end, correlation, **more):
    return on_device(
        start, end, correlation, **{"streamId": NOTHING, "syncType": 0, "eventId": NOTHING} | more
    )


def record(correlation, event, stream, **more):
    return on_device(0, 0, correlation, streamId=stream, eventId=event, **more)


def range_(start, end, text, *, type_=59, tid=MAIN, **more):
    return {
        "start": start,
        "end": end,
        "eventType": type_,
        "text": text,
        "globalTid": packed(tid),
        "textId": None,
        "domainId": 0,
        **more,
    }


def allocation(start, nbytes, correlation=0, *, pid=PID, **more):
    """Return an allocation of memory on device 0; a free with `memoryOperationType=1`."""
    return {
        "start": start,
        "globalPid": packed(0, pid),
        "deviceId": 0,
        "contextId": 1,
        "address": 4096,
        "pc": 0,
        "bytes": nbytes,
        "memKind": 2,
        "memoryOperationType": 0,
        "name": None,
        "correlationId": correlation,
        "streamId": 0,
        **more,
    }


def write_export(path, tables, *, version="3.16.1"):
    """Write an export; CUPTI tables go by their last word, and a table has the columns of its first row."""
    everything = {
        "StringIds": [{"id": code, "value": name} for code, name in enumerate(NAMES)],
        "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2024.6.2.225"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": version},
        ],
    }
    for name, rows in tables.items():
        is_activity = name.isupper() and not name.startswith(OTHER_TABLES)
        everything["CUPTI_ACTIVITY_KIND_" + name if is_activity else name] = rows
    with sqlite3.connect(path) as database:
        for name, rows in everything.items():
            columns = ", ".join(f'"{column}"' for column in rows[0])
            marks = ", ".join("?" * len(rows[0]))
            database.execute(f'CREATE TABLE "{name}" ({columns})')
            database.executemany(
                f'INSERT INTO "{name}" VALUES ({marks})', [tuple(row[c] for c in rows[0]) for row in rows]
            )
    database.close()
    return path


def read(folder, tables, **how):
    return read_nsys(write_export(folder / "a.sqlite", tables, **how))


def rows_of(recording, *columns):
    """Return rows as tuples of Python values, None for unknown."""
    return list(
        zip(*(Trace(recording.columns, recording.texts).values(name) for name in columns), strict=True)
    )


def names_of(recording, kind):
    return [name for name, found in rows_of(recording, "name", "kind") if found == kind]
