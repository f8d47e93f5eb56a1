"""Small Nsight Systems exports for the tests, a row a line, written to SQLite.

    RUNTIME cudaLaunchKernel_v7000 1000 1010 correlationId=5
    KERNEL 1015 1100 correlationId=5 streamId=8

is a table, a name or text where it has one, begin and end, and what differs from `USUAL`; `tid` and `pid`
are packed as Nsight packs them, `-` is NULL.
"""

import json
import sqlite3

from daydream.collect.importers.databases import open_database
from daydream.collect.importers.nsys import read_export
from daydream.trace.trace import Trace

PID, MAIN, OTHER = 700, 701, 702
NOTHING = 0xFFFFFFFF
NAMES = ["[Unknown]", "void add<float>(int)", "add", "_Z3addi"]
ID = {name: code for code, name in enumerate(NAMES)}
ON_DEVICE = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 0, "graphNodeId": None}
EXTENTS = {"gridX": 40, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
KERNEL_NAMES = {"demangledName": 1, "shortName": 2, "mangledName": 3}
COPY = {"bytes": 4096, "copyKind": 1, "srcKind": 0, "dstKind": 2}
SYNC = {"streamId": NOTHING, "syncType": 0, "eventId": NOTHING}
USUAL = {  # the columns of tables, but for begin, end, process and thread
    "RUNTIME": {"correlationId": 0, "eventClass": 0, "returnValue": 0, "nameId": 0},
    "KERNEL": ON_DEVICE | KERNEL_NAMES | EXTENTS,
    "MEMCPY": ON_DEVICE | COPY,
    "MEMSET": ON_DEVICE | {"value": 0, "bytes": 64, "memKind": 2},
    "SYNCHRONIZATION": ON_DEVICE | SYNC,
    "CUDA_EVENT": ON_DEVICE | {"eventId": 0},
    "GRAPH_TRACE": {**ON_DEVICE, "graphId": 4, "graphExecId": 5},
    "NVTX_EVENTS": {"eventType": 59, "text": None, "textId": None, "domainId": 0},
    "OSRT_API": {"nameId": 0},
    "PROFILER_OVERHEAD": {"nameId": 0},
    "SCHED_EVENTS": {"cpu": 0, "isSchedIn": 0},
    "CUDA_GPU_MEMORY_USAGE_EVENTS": {
        "deviceId": 0, "contextId": 1, "address": 4096, "pc": 0, "bytes": 512, "memKind": 2, "name": None,
        "memoryOperationType": 0, "correlationId": 0, "streamId": 0,
    },
}  # fmt: skip
OF_PROCESS = {"KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "CUDA_EVENT", "GRAPH_TRACE", "GRAPH_HOST_NODE"}
OF_PROCESS |= {"CUDA_GPU_MEMORY_USAGE_EVENTS"}
ACTIVITIES = OF_PROCESS - {"CUDA_GPU_MEMORY_USAGE_EVENTS", "CUDA_EVENT"} | {"RUNTIME"}


def packed(tid=0, pid=PID):
    """Return a globalTid, or a globalPid for thread 0."""
    return 1 << 48 | pid << 24 | tid


def tables(text):
    """Return the tables of a text, each a list of rows."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        table, *words = line.split()
        given = [word.split("=", 1) for word in words if "=" in word and not word.startswith("=")]
        told = [word for word in words if "=" not in word or word.startswith("=")]
        times = [None if word == "-" else int(word) for word in told[-2:]]
        columns = {key: json.loads(value) if value != "-" else None for key, value in given}
        found.setdefault(table, []).append(row_of(table, " ".join(told[:-2]), *times, **columns))
    return found


def row_of(table, name, start, end, *, tid=MAIN, pid=PID, **columns):
    """Return a row of a table."""
    owner = {"globalPid": packed(0, pid)} if table in OF_PROCESS else {"globalTid": packed(tid, pid)}
    row = {"start": start, "end": end, **owner, **USUAL.get(table, {})}
    if table == "NVTX_EVENTS":
        row["text"] = name or None
    elif name:
        row["nameId"] = ID.setdefault(name, len(ID))
    return row | columns


def write_export(path, given, *, version="3.16.1", **more):
    """Write an export of a text, or of tables as lists of rows; a table has the columns of its first row."""
    everything = {**(tables(given) if isinstance(given, str) else given), **more}
    strings = [{"id": code, "value": name} for name, code in ID.items()]
    about = {"EXPORT_PRODUCT_VERSION": "2024.6.2.225", "EXPORT_SCHEMA_VERSION": version}
    everything = {
        "StringIds": strings,
        "META_DATA_EXPORT": [{"name": name, "value": value} for name, value in about.items()],
        **everything,
    }
    with sqlite3.connect(path) as database:
        for name, rows in everything.items():
            table = f"CUPTI_ACTIVITY_KIND_{name}" if name in ACTIVITIES else name
            columns = ", ".join(f'"{column}"' for column in rows[0])
            database.execute(f'CREATE TABLE "{table}" ({columns})')
            marks = ", ".join("?" * len(rows[0]))
            values = [tuple(row[column] for column in rows[0]) for row in rows]
            database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
    database.close()
    return path


def read_nsys(path):
    """Return the recording in an export, as it is read for a trace."""
    with open_database(path, None) as database:
        return read_export(database)


def rows_of(recording, *columns, kind=None):
    """Return rows as tuples of Python values, None for unknown; those of a kind where one is given."""
    trace = Trace(recording.columns, recording.texts)
    found = zip(*(trace.values(name) for name in ("kind", *columns)), strict=True)
    return [values for of, *values in found if kind in (None, of)]
