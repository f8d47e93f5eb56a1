"""SQLite files of profilers: opened read-only, gzipped ones unpacked for the time, their tables as columns."""

from __future__ import annotations

import gzip
import re
import shutil
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daydream.collect.importers.formats import SQLITE_MAGIC
from daydream.collect.importers.row_builder import NO_TIME
from daydream.errors import TraceError
from daydream.files.atomic import own_folder
from daydream.files.input_files import GZIP_MAGIC, Counted, most_unpacked, reading
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN

BLOCK = 50_000  # rows
TIMES = ("start", "end", "time_ns")
LACKS = regex(r"no such (column|table): (?:\w+\.)?(.+)", re.DOTALL)


class Named(NamedTuple):
    """A column of texts by their ids in a table (columns `id`, `value`): read once each, they are long."""

    table: str
    ids: str
    unnamed: str


class Database:
    """Tables of an SQLite file. A table that is not there has no rows, a column that is not there is NULL."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
        self.tables = [name for (name,) in names if isinstance(name, str)]

    def blocks(
        self,
        table: str,
        columns: Mapping[str, str | Named],
        *,
        texts: Collection[str] = (),
        where: str = "1",
        query: str = "",
    ) -> Iterator[dict[str, Any]]:
        """Yield columns of a table, each an expression of SQL, some rows at a time.

        `texts` are columns of bytes, None for NULL; the others are int64, NULL is `NO_TIME` in times and -1
        in others. `query` stands in for the table, which is then a name for errors.

        Raises `TraceError` where a number is none.
        """
        if not query and table not in self.tables:
            return
        chosen = ", ".join(
            f"CAST({what} AS BLOB)"
            if name in texts and isinstance(what, str)
            else f"IFNULL({what if isinstance(what, str) else what.ids}, "
            f"{NO_TIME if name in TIMES else UNKNOWN})"
            for name, what in columns.items()
        )
        cursor = self._selected(chosen, query or quoted(table), where)
        while rows := cursor.fetchmany(BLOCK):
            try:
                yield {
                    name: self._named(what, values)
                    if isinstance(what, Named)
                    else list(values)
                    if name in texts
                    else np.array(values, np.int64)
                    for (name, what), values in zip(
                        columns.items(), zip(*rows, strict=True), strict=True
                    )
                }
            except (TypeError, ValueError, OverflowError):
                raise TraceError(
                    f"{self.path}: table {table} holds more than whole numbers."
                ) from None

    def _named(self, what: Named, ids: Sequence[int]) -> list[bytes]:
        query = f"SELECT CAST(value AS BLOB) FROM {quoted(what.table)} WHERE id = ?"  # noqa: S608
        found = {}
        for key in set(ids):
            row = self.connection.execute(query, (key,)).fetchone()
            found[key] = (row and row[0]) or what.unnamed.encode()
        return [found[key] for key in ids]

    def _selected(self, chosen: str, source: str, where: str) -> sqlite3.Cursor:
        lacking: list[str] = []
        while True:
            given = ", ".join(["*", *(f"NULL AS {quoted(name)}" for name in lacking)])
            try:
                return self.connection.execute(
                    f"SELECT {chosen} FROM (SELECT {given} FROM {source}) AS row WHERE {where}"  # noqa: S608
                )
            except sqlite3.OperationalError as error:
                found = LACKS.fullmatch(str(error))
                if found is None or found[2] in lacking:
                    raise
                if found[1] == "table":
                    self.connection.execute(f"CREATE TEMP TABLE {quoted(found[2])} (id)")
                else:
                    lacking.append(found[2])

    def count(self, table: str, where: str = "1") -> int:
        """Return how many rows of a table there are."""
        return sum(len(block["one"]) for block in self.blocks(table, {"one": "1"}, where=where))

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries; none if it is not there."""
        if table not in self.tables:
            return []
        cursor = self.connection.execute(f"SELECT * FROM {quoted(table)}")  # noqa: S608
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


@contextmanager
def open_database(path: Path, max_unpacked: int | None) -> Iterator[Database]:
    """Open a database read-only.

    Args:
        path: the file, `.gz` too.
        max_unpacked: the most bytes that a packed one may have.

    Raises:
        TraceError: the file is missing, damaged or no database, at once or, where SQLite notices later,
            from within the block.

    """
    with own_folder("daydream") as folder:
        database = _unpacked(path, folder, max_unpacked)
        connection = None
        try:
            # immutable: nothing else writes the file, and no lock or journal appears beside it
            connection = sqlite3.connect(
                f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True
            )
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield Database(connection, path)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            said = str(error)
            raise TraceError(
                f"{path} is damaged or cut off (SQLite: {said!r}); export it again."
            ) from None
        finally:
            if connection is not None:
                connection.close()


def quoted(name: str) -> str:
    """Return the name of a table or a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _unpacked(path: Path, folder: Path, max_unpacked: int | None) -> Path:
    """Return a path to a plain SQLite file with the database in it."""
    with reading(path):
        with path.open("rb") as file:
            packed_file = file.read(2) == GZIP_MAGIC
        if packed_file:
            target = folder / "unpacked.sqlite"
            with gzip.open(path) as packed, target.open("wb") as plain:
                shutil.copyfileobj(
                    Counted(packed, path, most_unpacked(path, max_unpacked)), plain, 1 << 20
                )
        else:
            target = path
        size = target.stat().st_size
        with target.open("rb") as file:
            header = file.read(100)
    if header[:16] != SQLITE_MAGIC:
        raise TraceError(
            f"{path} is not an SQLite database; `nsys export --type sqlite` writes one."
        )
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    if len(header) < 100 or size < pages * (65536 if page == 1 else page):
        raise TraceError(
            f"{path} is cut off: {size:,} bytes, but its header promises more; export it again."
        )
    return target
