"""Files that are read: regular ones only, and unpacked to no more than is expected of them."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from daydream.errors import FileError, TraceError

GZIP_MAGIC = b"\x1f\x8b"
MARK = 4  # bytes that tell the encoding of a text
StrPath = str | os.PathLike[str]
LARGEST_BYTES = 64 * 10**9  # unpacked; a trace of ten million events has a tenth of it
MOST_TIMES = 200  # ... and the packed size; JSON of a profiler packs to a tenth or twentieth
ALWAYS_BYTES = 64 * 10**6  # nothing so small does harm
SORTS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: StrPath) -> None:
    """Raise `FileError` at once if a path is a pipe, a socket or a device: none may ever end."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return  # opening it says why
    for is_sort, what in SORTS:
        if is_sort(mode):
            raise FileError(
                f"{path} is {what}; a regular file was needed. Save it to a file first."
            )


@contextmanager
def reading(path: StrPath) -> Iterator[None]:
    """Raise `TraceError`, with the file and the reason in one line, where what is inside cannot read it."""
    check_regular(path)
    try:
        yield
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise FileError(f"{path} is a folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path}: the gzip data is cut off or damaged ({error}). Copy it again."
        ) from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that the mark at the begin of a text says, None where none stands there."""
    marked = head.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    return json.detect_encoding(head) if marked else None


def read_text(path: StrPath, what: str = "a file") -> str:
    """Return the text of a file that an option names.

    Args:
        path: the file, in UTF-8.
        what: what it should be, for the error: `a table of times`.

    Raises:
        FileError: the file is missing, is no regular file, or is not text.

    """
    try:
        check_regular(path)
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as {what} ({error})") from None


def most_unpacked(path: StrPath, asked: int | None) -> int:
    """Return to how many bytes a file may unpack: `asked` if given, else by its size."""
    if asked is not None:
        return asked
    return min(LARGEST_BYTES, max(ALWAYS_BYTES, MOST_TIMES * Path(path).stat().st_size))


class Counted:
    """A file that is unpacked as it is read. Raises `TraceError` when it gives more than `most` bytes."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, path: StrPath, most: int) -> None:
        self._file = file
        self._path = path
        self._most = most
        self._given = 0

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that is left if it is negative."""
        left = self._most - self._given
        found = self._file.read(left + 1 if size < 0 else min(size, left + 1))
        self._given += len(found)
        if self._given > self._most:
            raise TraceError(too_large(self._path, f"more than {self._most:,}", self._most))
        return found


def too_large(path: StrPath, found: str, most: int) -> str:
    """Return what is said of a file that unpacks to more than it may."""
    packed = Path(path).stat().st_size
    return (
        f"{path}: its {packed:,} bytes unpack to {found}; at most {most:,} were expected. "
        "If that is right, raise the limit with --max-unpacked."
    )


@contextmanager
def opened(
    path: Path, max_unpacked: int | None
) -> Iterator[tuple[IO[bytes], Callable[[], int], int]]:
    """Open a file for reading, unpacked if it is gzip: (file, position in the packed file, packed size).

    Text that says its encoding is in UTF-8, and does not. Raises `TraceError` where it cannot be read.
    """
    with reading(path), path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
        encoding = marked_encoding(file.read(MARK))
        file.seek(0)
        if packed:
            file = cast("IO[bytes]", Counted(file, path, most_unpacked(path, max_unpacked)))
        if encoding is not None:
            file = cast("IO[bytes]", codecs.EncodedFile(file, "utf-8", encoding, "replace"))
        yield file, raw.tell, os.fstat(raw.fileno()).st_size
