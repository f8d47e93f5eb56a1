"""The Nsight Systems export that a recording of some steps of a machine's run would give.

Operators and annotations are NVTX ranges, steps are ranges `step`. `switches` writes the context switches
of every thread that calls CUDA, as `--cpuctxsw=process-tree` does: when each was off the CPU, and nothing
else. Who woke whom is in no table.
"""

import re
import sqlite3
from typing import Any

from .kineto import IDS, ORIGIN_NS, PID, window

PROCESS = 1 << 48 | PID << 24
OPERATIONS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}
COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
Table = list[dict[str, Any]]


def write_nsys(path, run, first_step, last_step, *, switches):
    """Write the export as .sqlite."""
    host, device = window(run, first_step, last_step)
    begin, end = run.step_starts[first_step], run.step_ends[last_step]
    names = sorted({row.name for row in [*host, *device]})

    def span(start, end, lane=""):
        owner = {"globalTid": _thread(lane)} if lane else {"globalPid": PROCESS}
        return {"start": ORIGIN_NS + start, "end": ORIGIN_NS + end, **owner}

    tables = {
        "StringIds": [{"id": names.index(name), "value": name} for name in names],
        "NVTX_EVENTS": [
            {**span(start, end, "main"), "eventType": 59, "text": "step", "textId": None}
            for start, end in zip(run.step_starts, run.step_ends, strict=False)
            if begin <= start and end <= run.step_ends[last_step]
        ],
    }
    for row in host:
        if row.category == "cuda_runtime":
            own = {"correlationId": row.correlation, "nameId": names.index(row.name)}
            name = "CUPTI_ACTIVITY_KIND_RUNTIME"
        else:
            own, name = {"eventType": 59, "text": row.name, "textId": None}, "NVTX_EVENTS"
        tables.setdefault(name, []).append({**span(row.start, row.end, str(row.lane)), **own})
    for row in device:
        place = {"deviceId": 0, "contextId": 1, "streamId": row.lane, "correlationId": row.correlation}
        copy = COPY.match(row.name)
        if copy:
            kinds = OPERATIONS[copy[1]], MEMORY[copy[2]], MEMORY[copy[3]]
            own = {"bytes": 1 << 20, **dict(zip(("copyKind", "srcKind", "dstKind"), kinds, strict=True))}
        else:
            own = {"demangledName": names.index(row.name)}
        name = "CUPTI_ACTIVITY_KIND_" + ("MEMCPY" if copy else "KERNEL")
        tables.setdefault(name, []).append({**span(row.start, row.end), **place, **own})
    off = [each for each in run.blocked if each.thread in IDS and begin <= each.end and each.start < end]
    if switches and off:
        tables["SCHED_EVENTS"] = [
            {"start": ORIGIN_NS + at, "cpu": 0, "isSchedIn": is_in, "globalTid": _thread(each.thread)}
            for each in off
            for is_in, at in enumerate((each.start, each.end))
        ]
    return write_tables(path, tables)


def write_tables(path, tables):
    """Write tables of rows to SQLite; each has the columns of its first row."""
    with sqlite3.connect(path) as database:
        for name, rows in tables.items():
            columns = ", ".join(f'"{column}"' for column in rows[0])
            values = [tuple(row[column] for column in rows[0]) for row in rows]
            database.execute(f'CREATE TABLE "{name}" ({columns})')
            database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(rows[0]))})', values)
    database.close()
    return path


def _thread(name):
    return PROCESS | IDS[name] & 0xFFFFFF
