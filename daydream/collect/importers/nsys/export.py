"""The SQLite file of an Nsight Systems export: tables and columns as they are there, read in blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from daydream.collect.importers.database import quoted
from daydream.errors import TraceError
from daydream.files.input_files import StrPath
from daydream.trace.schema import UNKNOWN, Columns

MISSING = -(2**63)
"""Value of a time that is null."""
BLOCK = 50_000
TIMES = ("start", "end")


class Export:
    """Tables of one export. What a version does not have reads as absent or unknown.

    Raises `TraceError` if the database is no Nsight Systems export.
    """

    def __init__(self, connection: sqlite3.Connection, path: StrPath) -> None:
        self.connection = connection
        self.path = path
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables = {name: self._columns(name) for (name,) in names if isinstance(name, str)}
        if "StringIds" not in self.tables:
            raise TraceError(
                f"{path} is an SQLite database, but not an Nsight Systems export: it has no table StringIds."
            )
        self.strings: dict[int, str | None] = {}

    def __contains__(self, table: str) -> bool:
        return table in self.tables

    def blocks(self, table: str, fields: Sequence[str], *, text: str | None = None) -> Iterator[Columns]:
        """Yield integer columns of a table in blocks of rows; one text column may follow, as objects.

        Null is `MISSING` in times and `UNKNOWN` in other columns, as is a column the table lacks.
        """
        chosen = [self._chosen(table, field) for field in fields]
        if text is not None:
            chosen.append(quoted(text) if text in self.tables[table] else "NULL")
        cursor = self.connection.execute(f"SELECT {', '.join(chosen)} FROM {quoted(table)}")  # noqa: S608
        while rows := cursor.fetchmany(BLOCK):
            try:
                numbers = np.array([row[: len(fields)] for row in rows], np.int64)
            except (TypeError, ValueError, OverflowError):
                raise TraceError(f"{self.path}: table {table} holds more than whole numbers.") from None
            block = dict(zip(fields, np.ascontiguousarray(numbers.T), strict=True))
            if text is not None:
                block[text] = np.array([row[-1] for row in rows], object)
            yield block

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries; none if it is not there."""
        if table not in self.tables:
            return []
        rows = self.connection.execute(f"SELECT * FROM {quoted(table)}").fetchall()  # noqa: S608
        return [dict(zip(self.tables[table], row, strict=True)) for row in rows]

    def define(self, view: str, query: str) -> None:
        """Add a view of the tables; it is read as they are."""
        self.connection.execute(f"CREATE TEMP VIEW {quoted(view)} AS {query}")
        self.tables[view] = self._columns(view)

    def enum(self, table: str, column: str) -> dict[int, str]:
        """Return id to word of an enum table; empty if it is not there."""
        return {
            row["id"]: row[column]
            for row in self.records(table)
            if isinstance(row.get("id"), int) and isinstance(row.get(column), str)
        }

    def string(self, code: int) -> str | None:
        """Return the text behind an id of `StringIds`, None if there is none."""
        if code not in self.strings:
            row = self.connection.execute("SELECT value FROM StringIds WHERE id = ?", (code,)).fetchone()
            self.strings[code] = row[0] if row and isinstance(row[0], str) else None
        return self.strings[code]

    def about(self, name: str) -> str:
        """Return one value of the export's own description, empty if it is not there."""
        for row in self.records("META_DATA_EXPORT"):
            if row.get("name") == name:
                return str(row.get("value"))
        return ""

    def diagnostics(self) -> list[str]:
        """Return what Nsight Systems itself says of the recording, but for what is no warning."""
        rows = self.records("DIAGNOSTIC_EVENT")
        said = dict.fromkeys(row.get("text") for row in rows if row.get("severity") not in (1, 4))
        return [text for text in said if isinstance(text, str)]

    def session_start_ns(self) -> int:
        """Return when the session began, in ns since 1970; 0 if the file does not say."""
        for row in self.records("TARGET_INFO_SESSION_START_TIME"):
            if isinstance(row.get("utcEpochNs"), int):
                return int(row["utcEpochNs"])
        return 0

    def _columns(self, table: str) -> list[str]:
        return [row[1] for row in self.connection.execute(f"PRAGMA table_info({quoted(table)})")]

    def _chosen(self, table: str, field: str) -> str:
        null = MISSING if field in TIMES else UNKNOWN
        return f"IFNULL({quoted(field)}, {null})" if field in self.tables[table] else str(null)
