"""SQLite files of profilers, opened read-only; gzipped ones are unpacked for the time."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daydream.errors import TraceError
from daydream.files.input_files import Counted, StrPath, most_unpacked, reading
from daydream.files.own_folders import own_folder

MAGIC = b"SQLite format 3\x00"


@contextmanager
def open_database(path: StrPath, max_unpacked: int | None) -> Iterator[sqlite3.Connection]:
    """Open a database read-only.

    Args:
        path: the file, `.gz` too.
        max_unpacked: the most bytes that a packed one may have.

    Raises:
        TraceError: the file is missing, damaged or no database, at once or, where SQLite notices later,
            from within the block.

    """
    with own_folder("daydream") as folder:
        database = _unpacked(Path(path), folder, max_unpacked)
        connection = None
        try:
            # immutable: nothing else writes the file, and no lock or journal appears beside it
            connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            said = str(error)
            raise TraceError(f"{path} is damaged or cut off (SQLite: {said!r}); export it again.") from None
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
            packed_file = file.read(2) == b"\x1f\x8b"
        if packed_file:
            target = folder / "unpacked.sqlite"
            with gzip.open(path) as packed, target.open("wb") as plain:
                shutil.copyfileobj(Counted(packed, path, most_unpacked(path, max_unpacked)), plain, 1 << 20)
        else:
            target = path
        size = target.stat().st_size
        with target.open("rb") as file:
            header = file.read(100)
    if header[: len(MAGIC)] != MAGIC:
        if ".nsys-rep" in path.name or ".qdrep" in path.name:
            raise TraceError(f"{path} is a report; export it first: `nsys export --type sqlite {path.name}`.")
        raise TraceError(f"{path} is not an SQLite database; `nsys export --type sqlite` writes one.")
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    if len(header) < 100 or size < pages * (65536 if page == 1 else page):
        raise TraceError(f"{path} is cut off: {size:,} bytes, but its header promises more; export it again.")
    return target
