"""The SQLite file of an Nsight Systems export: tables and columns as they are there, read in blocks."""

from __future__ import annotations

import gzip
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from daydream.errors import TraceError
from daydream.files.input_files import Counted, check_regular, most_unpacked
from daydream.files.own_folders import own_folder
from daydream.trace.schema import UNKNOWN

MAGIC = b"SQLite format 3\x00"
MISSING = -(2**63)
"""Value of a time that is null."""
BLOCK = 50_000
TIMES = ("start", "end")


@contextmanager
def open_export(path: str | os.PathLike[str], max_unpacked: int | None = None) -> Iterator[Export]:
    """Open an export read-only; a gzipped one is unpacked to a temporary file.

    Raises `TraceError` if the file is missing, damaged or no Nsight Systems export, at
    once or, where SQLite notices later, from within the block.
    """
    with own_folder("daydream") as folder:
        database = _unpacked(Path(path), folder, max_unpacked)
        connection = None
        try:
            # immutable: nothing else writes the file, and no lock or journal appears beside it
            connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield Export(connection, path)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            said = str(error)
            raise TraceError(f"{path} is damaged or cut off (SQLite: {said!r}); export it again.") from None
        finally:
            if connection is not None:
                connection.close()


class Export:
    """Tables of one export. What a version does not have reads as absent or unknown."""

    def __init__(self, connection: sqlite3.Connection, path: str | os.PathLike[str]) -> None:
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

    def blocks(
        self, table: str, fields: Sequence[str], *, text: str | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield integer columns of a table in blocks of rows; one text column may follow, as objects.

        Null is `MISSING` in times and `UNKNOWN` in other columns, as is a column the table lacks.
        """
        chosen = [self._chosen(table, field) for field in fields]
        if text is not None:
            chosen.append(_quoted(text) if text in self.tables[table] else "NULL")
        cursor = self.connection.execute(f"SELECT {', '.join(chosen)} FROM {_quoted(table)}")  # noqa: S608
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
        rows = self.connection.execute(f"SELECT * FROM {_quoted(table)}").fetchall()  # noqa: S608
        return [dict(zip(self.tables[table], row, strict=True)) for row in rows]

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

    def session_start_ns(self) -> int:
        """Return when the session began, in ns since 1970; 0 if the file does not say."""
        for row in self.records("TARGET_INFO_SESSION_START_TIME"):
            if isinstance(row.get("utcEpochNs"), int):
                return int(row["utcEpochNs"])
        return 0

    def _columns(self, table: str) -> list[str]:
        return [row[1] for row in self.connection.execute(f"PRAGMA table_info({_quoted(table)})")]

    def _chosen(self, table: str, field: str) -> str:
        null = MISSING if field in TIMES else UNKNOWN
        return f"IFNULL({_quoted(field)}, {null})" if field in self.tables[table] else str(null)


def _unpacked(path: Path, folder: Path, max_unpacked: int | None) -> Path:
    """Return a path to a plain SQLite file with the export in it."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            packed_file = file.read(2) == b"\x1f\x8b"
        if packed_file:
            target = folder / "export.sqlite"
            with gzip.open(path) as packed, target.open("wb") as plain:
                shutil.copyfileobj(Counted(packed, path, most_unpacked(path, max_unpacked)), plain, 1 << 20)
        else:
            target = path
        size = target.stat().st_size
        with target.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder; name one .sqlite file of it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{path}: the gzip data is cut off or damaged") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from None
    if header[: len(MAGIC)] != MAGIC:
        if ".nsys-rep" in path.name or ".qdrep" in path.name:
            raise TraceError(f"{path} is a report; export it first: `nsys export --type sqlite {path.name}`.")
        raise TraceError(f"{path} is not an SQLite database; `nsys export --type sqlite` writes one.")
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    if len(header) < 100 or size < pages * (65536 if page == 1 else page):
        raise TraceError(f"{path} is cut off: {size:,} bytes, but its header promises more; export it again.")
    return target


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
