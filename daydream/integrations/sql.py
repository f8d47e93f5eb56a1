"""SQL over a trace, by DuckDB: its tables are read, and nothing else (extra: `sql`).

    from daydream.integrations.sql import database, query

    query(trace, "SELECT name, sum(duration_ns) AS ns FROM kernels GROUP BY name ORDER BY ns DESC").rows

`daydream.integrations.sql_tables` says which tables there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError, MissingPackageError
from daydream.integrations.sql_tables import TABLES, arrow_tables

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from daydream.trace.trace import Trace

MOST_ROWS = 10_000  # of an answer, if not asked otherwise
ALONE: dict[
    str, str | bool | int | float | list[str]
] = {  # nothing but the trace: no file, no network, no extension, no variable of the program
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "threads": 1,  # sums of several threads may differ in their last digit
}


@dataclass(frozen=True)
class SqlRows:
    """What a query found: names and types of its columns, its rows, and whether there were more."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]
    more: bool

    def to_json(self) -> dict[str, Any]:
        """Return the object that `sql --json` prints."""
        columns = [
            {"name": name, "type": kind}
            for name, kind in zip(self.columns, self.types, strict=True)
        ]
        return {
            "columns": columns,
            "rows": [[_plain(value) for value in row] for row in self.rows],
            "more": self.more,
        }

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping for each row; a name that occurs again gets a number."""
        names: list[str] = []
        for name in self.columns:
            again = names.count(name) + sum(each.startswith(f"{name} ") for each in names)
            names.append(f"{name} {again + 1}" if again else name)
        return [
            {name: _plain(value) for name, value in zip(names, row, strict=True)}
            for row in self.rows
        ]


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
    with _told(), database(trace) as connection:
        import duckdb

        statements = connection.extract_statements(statement)
        reads = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(statements) != 1 or statements[0].type not in reads:
            kinds = " and ".join(each.type.name for each in statements) or "nothing"
            raise DaydreamError(f"a query is one SELECT, and this is {kinds}: a trace is only read")
        found = connection.execute(statements[0])
        columns = found.description or []
        rows = found.fetchmany(most + 1)
        return SqlRows(
            [str(column[0]) for column in columns],
            [str(column[1]) for column in columns],
            rows[:most],
            len(rows) > most,
        )


@contextmanager
def _told() -> Iterator[None]:
    """Say in one message what DuckDB has against a query."""
    try:
        yield
    except DaydreamError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"duckdb", "_duckdb"}:
            raise
        said = [line for line in str(error).splitlines() if line.strip()]
        tables = f"The tables are {', '.join(TABLES)}; DESCRIBE NAME shows the columns of one."
        raise DaydreamError("\n".join([*said[:3], tables])) from None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is none as None, what JSON has not as its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.hex() if isinstance(value, bytes) else str(value)
