"""SQL over a trace, by DuckDB: its tables are read, and nothing else (extra: `sql`).

    from daydream.integrations.sql import database, query

    query(trace, "SELECT name, sum(duration_ns) AS ns FROM kernels GROUP BY name ORDER BY ns DESC").rows

`TABLES` lists the tables, and what their columns mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import DaydreamError, MissingPackageError
from daydream.trace.memory_events import COLUMNS, MAY_BE_UNKNOWN
from daydream.trace.schema import FIELDS

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from daydream.trace.trace import Trace

MOST_ROWS = 10_000  # of an answer, if not asked otherwise
# Nothing but the trace: no file, no network, no extension, no variable of the program.
ALONE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "threads": 1,  # sums of several threads may differ in their last digit
}

# The tables ----------------------------------------------------------------------------------------

TYPES = {"int64": "BIGINT", "int32": "INTEGER", "text": "VARCHAR"}


@dataclass(frozen=True)
class SqlTable:
    """One table: what a row is, and its columns, name -> (type, meaning). `query` makes one of others."""

    meaning: str
    columns: dict[str, tuple[str, str]]
    query: str | None = None


def _columns(*described: str) -> dict[str, tuple[str, str]]:
    """Return columns of `name TYPE meaning`: name -> (type, meaning)."""
    parts = (each.split(" ", 2) for each in described)
    return {name: (kind, meaning) for name, kind, meaning in parts}


EVENT = {
    **_columns("row BIGINT place of the event in the trace, which `parent` refers to"),
    **{name: (TYPES[field.type], field.meaning) for name, field in FIELDS.items()},
    **_columns(
        "kind VARCHAR operator, annotation, runtime, module; kernel, memcpy, memset, collective; sync",
        "step INTEGER step it belongs to, as `steps.step`; device work has its launch's",
    ),
}
LAUNCHED = EVENT | _columns(
    "launched_ns BIGINT start of the call that launched it, null where that is not recorded"
)
STEP = _columns(
    "step BIGINT place of the step, which `events.step` refers to",
    "name VARCHAR as the profiler or the program named it",
    "rank BIGINT rank of the process",
    "start_ns BIGINT start of its range, from the trace's own origin",
    "end_ns BIGINT end of its range",
    "measured_ns BIGINT step time, completion to completion; null where it is not known",
    "covered BOOLEAN whether it counts in a prediction",
    "why_not VARCHAR why it does not",
)
DEVICE = _columns(
    "id BIGINT index of the device, which `events.device` refers to",
    "rank BIGINT rank of the process, null where all ranks have it",
    "name VARCHAR as its driver names it",
    "memory_bytes BIGINT its memory",
    "multiprocessors BIGINT streaming multiprocessors or compute units",
)
MEMORY = _columns(
    "rank BIGINT rank of the process",
    "time_ns BIGINT when, from the trace's own origin",
    "pid BIGINT process",
    "tid BIGINT thread",
    "device BIGINT index of the GPU, -1 for memory of the CPU",
    "address BIGINT where",
    "bytes BIGINT how much was allocated; negative for a free",
    "allocated_bytes BIGINT the device's total after it",
    "reserved_bytes BIGINT what the allocator has reserved after it",
)
HOST_ROWS = "SELECT * FROM events WHERE kind = '{}'"
DEVICE_ROWS = (
    "SELECT work.*, call.start_ns AS launched_ns FROM events AS work "
    "LEFT JOIN events AS call ON work.parent = call.row WHERE work.kind IN ('{}')"
)
TABLES = {
    "events": SqlTable("every event of the trace", EVENT),
    "operators": SqlTable(
        "operators of the framework on CPU threads", EVENT, HOST_ROWS.format("operator")
    ),
    "calls": SqlTable("calls into the CUDA or HIP runtime", EVENT, HOST_ROWS.format("runtime")),
    "kernels": SqlTable("kernels on a device", LAUNCHED, DEVICE_ROWS.format("kernel")),
    "copies": SqlTable(
        "copies and memsets on a device", LAUNCHED, DEVICE_ROWS.format("memcpy', 'memset")
    ),
    "collectives": SqlTable("collectives on a device", LAUNCHED, DEVICE_ROWS.format("collective")),
    "steps": SqlTable("training steps", STEP),
    "devices": SqlTable("devices that the trace names", DEVICE),
    "memory": SqlTable("allocations and frees, none where memory was not recorded", MEMORY),
}


def arrow_tables(trace: Trace) -> dict[str, pa.Table]:
    """Return the tables that are no queries, by name; what a trace does not say is null."""
    import pyarrow as pa

    types = (pa.int64(), pa.int32(), pa.string(), pa.bool_())
    kinds = dict(zip(("BIGINT", "INTEGER", "VARCHAR", "BOOLEAN"), types, strict=True))
    found = trace.to_arrow()
    there = dict(zip(found.schema.names, found.columns, strict=True))
    there["row"] = pa.array(np.arange(len(trace)))
    for name, (kind, _) in EVENT.items():
        there.setdefault(name, pa.nulls(len(trace), kinds[kind]))
    memory = {}
    for name, (*_, null) in COLUMNS.items():
        values = np.empty(0, np.int64) if trace.memory is None else trace.memory[name]
        mask = values == null if name in MAY_BE_UNKNOWN else None
        memory[name] = pa.array(values, pa.int64(), mask=mask)
    tables = {"events": pa.table({name: there[name] for name in EVENT}), "memory": pa.table(memory)}
    steps = [{"step": at, **step} for at, step in enumerate(trace.metadata.get("steps", []))]
    for table, records in {"steps": steps, "devices": trace.metadata.get("devices", [])}.items():
        columns = [(name, kinds[kind]) for name, (kind, _) in TABLES[table].columns.items()]
        tables[table] = pa.Table.from_pylist(records, schema=pa.schema(columns))
    return tables


# Queries -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SqlRows:
    """What a query found: its columns (`name`, `type`), its rows, and whether there were more."""

    columns: list[dict[str, str]]
    rows: list[tuple[Any, ...]]
    more: bool

    def to_json(self) -> dict[str, Any]:
        """Return the object that `sql --json` prints."""
        rows = [[_plain(value) for value in row] for row in self.rows]
        return {"columns": self.columns, "rows": rows, "more": self.more}

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping for each row; a name that occurs again gets a number."""
        names: list[str] = []
        for name in (column["name"] for column in self.columns):
            again = names.count(name) + sum(each.startswith(f"{name} ") for each in names)
            names.append(f"{name} {again + 1}" if again else name)
        return [dict(zip(names, map(_plain, row), strict=True)) for row in self.rows]


def database(trace: Trace) -> DuckDBPyConnection:
    """Return a connection to a database in memory that holds a trace's tables and can reach nothing else.

    Raises `DaydreamError` where DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingPackageError("duckdb", "sql") from None
    connection = duckdb.connect(":memory:", config=ALONE)
    for name, table in arrow_tables(trace).items():
        connection.register(name, table)
    for name, each in TABLES.items():
        if each.query is not None:
            connection.execute(f"CREATE VIEW {name} AS {each.query}")
    connection.execute("SET lock_configuration = true")
    return connection


def query(trace: Trace, statement: str, *, most: int = MOST_ROWS) -> SqlRows:
    """Return what one SELECT finds in a trace's tables.

    Args:
        trace: any trace, imported from whatever it was.
        statement: one SELECT, also as WITH, FROM, DESCRIBE, SHOW TABLES or EXPLAIN.
        most: how many rows at most.

    Raises:
        DaydreamError: it is not one SELECT, DuckDB refuses it, or DuckDB is not installed.

    """
    with database(trace) as connection:
        import duckdb

        reads = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        try:
            statements = connection.extract_statements(statement)
            if len(statements) != 1 or statements[0].type not in reads:
                kinds = " and ".join(each.type.name for each in statements) or "nothing"
                reason = f"a query is one SELECT, and this is {kinds}: a trace is only read"
                raise DaydreamError(reason)
            found = connection.execute(statements[0])
            rows = found.fetchmany(most + 1)
        except duckdb.Error as error:
            told = [line for line in str(error).splitlines() if line.strip()]
            tables = f"The tables are {', '.join(TABLES)}; DESCRIBE NAME shows the columns of one."
            raise DaydreamError("\n".join([*told[:3], tables])) from None
        columns = [{"name": str(name), "type": str(kind)} for name, kind, *_ in found.description]
        return SqlRows(columns, rows[:most], len(rows) > most)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is none as None, what JSON has not as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)
