"""The tables that SQL sees of a trace, imported from whatever it was: columns, types and meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.trace.memory_events import COLUMNS as MEMORY_COLUMNS
from daydream.trace.schema import FIELDS, NO_ID, UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa

    from daydream.trace.trace import Trace

TYPES = {"int64": "BIGINT", "int32": "INTEGER", "text": "VARCHAR"}


@dataclass(frozen=True)
class SqlTable:
    """One table: what a row is, and its columns, name -> (type, meaning). `query` makes one of others."""

    meaning: str
    columns: dict[str, tuple[str, str]]
    query: str | None = None


ROW = {"row": ("BIGINT", "place of the event in the trace, which `parent` refers to")}
EVENT = ROW | {name: (TYPES[field.type], field.meaning) for name, field in FIELDS.items()}
EVENT["kind"] = (
    "VARCHAR",
    "operator, annotation, runtime, module; kernel, memcpy, memset, collective; sync",
)
EVENT["step"] = (
    "INTEGER",
    "step it belongs to, as `steps.step`; device work has its launch's",
)
LAUNCHED = {
    "launched_ns": (
        "BIGINT",
        "start of the call that launched it, null where that is not recorded",
    )
}
STEP = {
    "step": ("BIGINT", "place of the step, which `events.step` refers to"),
    "name": ("VARCHAR", "as the profiler or the program named it"),
    "rank": ("BIGINT", "rank of the process"),
    "start_ns": ("BIGINT", "start of its range, from the trace's own origin"),
    "end_ns": ("BIGINT", "end of its range"),
    "measured_ns": (
        "BIGINT",
        "step time, completion to completion; null where it is not known",
    ),
    "covered": ("BOOLEAN", "whether it counts in a prediction"),
    "why_not": ("VARCHAR", "why it does not"),
}
DEVICE = {
    "id": ("BIGINT", "index of the device, which `events.device` refers to"),
    "rank": ("BIGINT", "rank of the process, null where all ranks have it"),
    "name": ("VARCHAR", "as its driver names it"),
    "memory_bytes": ("BIGINT", "its memory"),
    "multiprocessors": ("BIGINT", "streaming multiprocessors or compute units"),
}
MEMORY = {
    "rank": ("BIGINT", "rank of the process"),
    "time_ns": ("BIGINT", "when, from the trace's own origin"),
    "pid": ("BIGINT", "process"),
    "tid": ("BIGINT", "thread"),
    "device": ("BIGINT", "index of the GPU, -1 for memory of the CPU"),
    "address": ("BIGINT", "where"),
    "bytes": ("BIGINT", "how much was allocated; negative for a free"),
    "allocated_bytes": ("BIGINT", "the device's total after it"),
    "reserved_bytes": ("BIGINT", "what the allocator has reserved after it"),
}


DEVICE_WORK = (
    "SELECT work.*, call.start_ns AS launched_ns FROM events AS work "
    "LEFT JOIN events AS call ON work.parent = call.row WHERE work.kind IN ({})"
)
TABLES = {
    "events": SqlTable("every event of the trace", EVENT),
    "operators": SqlTable(
        "operators of the framework on CPU threads",
        EVENT,
        "SELECT * FROM events WHERE kind = 'operator'",
    ),
    "calls": SqlTable(
        "calls into the CUDA or HIP runtime",
        EVENT,
        "SELECT * FROM events WHERE kind = 'runtime'",
    ),
    "kernels": SqlTable("kernels on a device", EVENT | LAUNCHED, DEVICE_WORK.format("'kernel'")),
    "copies": SqlTable(
        "copies and memsets on a device",
        EVENT | LAUNCHED,
        DEVICE_WORK.format("'memcpy', 'memset'"),
    ),
    "collectives": SqlTable(
        "collectives on a device", EVENT | LAUNCHED, DEVICE_WORK.format("'collective'")
    ),
    "steps": SqlTable("training steps", STEP),
    "devices": SqlTable("devices that the trace names", DEVICE),
    "memory": SqlTable("allocations and frees, none where memory was not recorded", MEMORY),
}


def arrow_tables(trace: Trace) -> dict[str, pa.Table]:
    """Return the tables that are no queries, by name; what a trace does not say is null."""
    import pyarrow as pa

    found = trace.to_arrow()
    there = dict(zip(found.schema.names, found.columns, strict=True))
    kinds = {
        "BIGINT": pa.int64(),
        "INTEGER": pa.int32(),
        "VARCHAR": pa.string(),
        "BOOLEAN": pa.bool_(),
    }
    events = {"row": pa.array(np.arange(len(trace)))}
    for name in FIELDS:
        column = there.get(name)
        events[name] = pa.nulls(len(trace), kinds[EVENT[name][0]]) if column is None else column
    steps = [{"step": at, **step} for at, step in enumerate(trace.metadata.get("steps", []))]
    rows = {
        "steps": (STEP, steps),
        "devices": (DEVICE, trace.metadata.get("devices", [])),
    }
    tables = {"events": pa.table(events), "memory": _memory(trace)}
    for table, (columns, records) in rows.items():
        tables[table] = pa.table(
            {
                name: pa.array([_typed(record.get(name), kind) for record in records], kinds[kind])
                for name, (kind, _) in columns.items()
            }
        )
    return tables


def _typed(value: Any, kind: str) -> Any:
    """Return a value of the metadata if it is of the column's type, else None."""
    if kind == "BIGINT":
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and abs(value) < 2**63 else None
    return value if isinstance(value, str if kind == "VARCHAR" else bool) else None


def _memory(trace: Trace) -> pa.Table:
    import pyarrow as pa

    nulls: dict[str, Any] = {"pid": NO_ID, "tid": NO_ID, "address": UNKNOWN}
    nulls |= {"allocated_bytes": UNKNOWN, "reserved_bytes": UNKNOWN}
    columns = {}
    for name in MEMORY_COLUMNS:
        values = np.empty(0, np.int64) if trace.memory is None else trace.memory[name]
        unknown = values == nulls[name] if name in nulls else None
        columns[name] = pa.array(values, pa.int64(), mask=unknown)
    return pa.table(columns)
