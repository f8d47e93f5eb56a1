"""The file of one cache entry: a document and arrays, which are mapped into memory as they lie in it.

    mark, digest, sizes | header: JSON of the key, the document and where arrays lie | the arrays

It is no pickle: reading it runs nothing. What was damaged is found by the digest, that of the header and of
two sums over the arrays: seen as a table of words, by row and by column. They find any bit that changed and
any two words that changed places, at the speed of memory; they are no defence against people, for which the
folder is there (`daydream.files.cache`).

The user's cache: what was worked out once about a trace, until its place is needed.

It lies in `$DAYDREAM_CACHE`, else in `$XDG_CACHE_HOME/daydream`, else in `~/.cache/daydream`;
`DAYDREAM_CACHE=off` keeps nothing. Entries are files of a folder that only the user may enter. It is opened
once each time and not by its name again: nobody can put a link or a folder of theirs in its place meanwhile.

Nothing here is an error to the user. What cannot be read or written (a full disk, a home that is read-only, a
folder of somebody else, damage) means that the work is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MARK = b"daydream cache 1"
HEAD = struct.Struct("<16s32sQQ")  # mark, digest, bytes of the header, bytes of the file
WORDS = 1024  # in a row of the table that is summed
ROW = 8 * WORDS  # bytes; each array begins one
DTYPES = ("bool", "int8", "int16", "int32", "int64", "float16")
MOST_VALUES = 2**28  # of an array: more would not find place in the folder


class Contents(NamedTuple):
    """What an entry holds: anything that JSON can say, and arrays of one of `DTYPES`, shape (n,)."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]


class CacheError(ValueError):
    """The file is not what was written."""


def pack(key: str, contents: Contents) -> list[bytes | memoryview]:
    """Return what to write, part by part. Raises `ValueError` or `TypeError` if it would not come back so."""
    entries: list[list[object]] = []
    parts: list[bytes | memoryview] = []
    offset = 0
    for name, array in contents.arrays.items():
        if array.dtype.name not in DTYPES or array.ndim != 1 or len(array) > MOST_VALUES:
            raise TypeError(f"{name} is {array.dtype} of shape {array.shape}")
        value = array[0].item() if len(array) and (array == array[0]).all() else None
        entries.append([name, array.dtype.name, len(array), offset, value])
        if len(array) and value is None:
            data = memoryview(np.ascontiguousarray(array).view(np.uint8).data)
            whole = len(data) - len(data) % ROW
            last = bytes(data[whole:])
            parts += [data[:whole], last + bytes(-len(last) % ROW)]
            offset += whole + len(parts[-1])
    fields = {"key": key, "arrays": entries, "document": contents.document}
    text = json.dumps(fields, allow_nan=False)
    if json.loads(text)["document"] != contents.document:
        raise ValueError("the document holds what JSON cannot say")
    header = text.encode()
    header += b" " * (-(HEAD.size + len(header)) % ROW)
    size = HEAD.size + len(header) + offset
    return [HEAD.pack(MARK, _digest(header, size, parts), len(header), size), header, *parts]


def unpack(file: int, key: str) -> Contents:
    """Return the contents of an open file. Raises `ValueError` or `OSError` if it is not that of the key.

    Arrays can be written to: neither the file nor who reads it besides sees that.
    """
    size = os.fstat(file).st_size
    if size < HEAD.size:
        raise CacheError("it is too short")
    mapped = mmap.mmap(file, size, access=mmap.ACCESS_COPY)
    mark, digest, header_size, said = HEAD.unpack_from(mapped)
    begin = HEAD.size + header_size
    if mark != MARK or said != size or begin > size or begin % ROW or size % ROW:
        raise CacheError("its sizes differ")
    header = mapped[HEAD.size : begin]
    if _digest(header, size, [memoryview(mapped)[begin:]]) != digest:
        raise CacheError("it is damaged")
    try:
        fields = json.loads(header)
    except RecursionError:
        raise CacheError("its header cannot be read") from None
    if not isinstance(fields, dict) or fields.get("key") != key:
        raise CacheError("it is that of another trace")
    document = fields.get("document")
    entries = fields.get("arrays")
    if not isinstance(document, dict) or not isinstance(entries, list):
        raise CacheError("it lacks a part")
    return Contents(document, dict(_array(mapped, begin, entry) for entry in entries))


def _array(mapped: mmap.mmap, begin: int, entry: Any) -> tuple[str, np.ndarray]:
    try:
        name, dtype, length, offset, value = entry
    except (TypeError, ValueError):
        raise CacheError("an array is not described") from None
    if not isinstance(name, str) or dtype not in DTYPES:
        raise CacheError("an array has no name or type")
    if any(
        type(number) is not int or not 0 <= number <= MOST_VALUES for number in (length, offset)
    ):
        raise CacheError(f"the array {name!r} has no place")
    kind = np.dtype(dtype)
    if value is not None:
        if not isinstance(value, int | float):
            raise CacheError(f"the array {name!r} has no value")
        try:
            return name, np.full(length, value, kind) if value else np.zeros(length, kind)
        except (OverflowError, MemoryError):
            raise CacheError(f"the array {name!r} cannot be made") from None
    if offset % ROW or begin + offset + length * kind.itemsize > len(mapped):
        raise CacheError(f"the array {name!r} is cut off")
    return name, np.frombuffer(mapped, kind, length, begin + offset)


def _digest(header: bytes, size: int, parts: list[bytes | memoryview]) -> bytes:
    """Return the digest of the header and of the sums of the parts, each of whole rows."""
    columns = np.zeros(WORDS, np.uint64)
    rows = []
    for part in parts:
        table = np.frombuffer(part, np.uint64).reshape(-1, WORDS)
        columns += table.sum(axis=0)  # modulo 2^64
        rows.append(table.sum(axis=1))
    found = hashlib.blake2b(header, digest_size=32)
    for value in (np.array([size]), columns, *rows):
        found.update(value.tobytes())
    return found.digest()


def text_of(given: Any) -> str:
    """Return what a document holds if it is a text. Raises `TypeError` if not."""
    if type(given) is not str:
        raise TypeError("a text was needed")
    return given


VARIABLE = "DAYDREAM_CACHE"
OFF = ("off", "0")
FOLDER = "replays"  # in the user's folder: ours alone
MOST_BYTES = 2 * 10**9  # of all entries; a trace of 100,000 rows takes 40 MB
ENTRY = ".entry"
UNFINISHED = ".unfinished"
ABANDONED_S = 3600  # who writes for so long was killed
ERRORS = (OSError, ValueError, TypeError, OverflowError, MemoryError)


def cache_folder() -> Path | None:
    """Return where entries lie; None where nothing is to be kept."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) / FOLDER if named and named.lower() not in OFF else None
    beneath = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not beneath.is_absolute():  # as its specification says, another is not to be used
        try:
            beneath = Path.home() / ".cache"
        except RuntimeError:  # the user has no home
            return None
    return beneath / "daydream" / FOLDER


def read_entry(key: str) -> Contents | None:
    """Return what is kept under a key, None if nothing is; what is damaged is removed."""
    with contextlib.suppress(*ERRORS), _folder(make=False) as folder:
        name = key + ENTRY
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
        try:
            _need_own(os.fstat(file), stat.S_ISREG)
            found = unpack(file, key)
        except ValueError:
            os.unlink(name, dir_fd=folder)
        else:
            with contextlib.suppress(OSError):
                os.utime(file)  # what was used last goes last
            return found
        finally:
            os.close(file)
    return None


def write_entry(key: str, contents: Contents) -> bool:
    """Keep something under a key; what was used longest ago goes where all is more than `MOST_BYTES`.

    Of several that write the same at once the last one stays; who reads sees one of them, whole. Returns
    whether it is kept.
    """
    with contextlib.suppress(*ERRORS), _folder(make=True) as folder:
        parts = pack(key, contents)
        size = sum(map(len, parts))
        if size > MOST_BYTES:
            return False
        _make_room(folder, MOST_BYTES - size)
        unfinished = f"{key}.{os.getpid()}.{time.monotonic_ns()}{UNFINISHED}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(unfinished, flags, 0o600, dir_fd=folder)
        try:
            with open(file, "wb", buffering=0) as opened:
                for part in parts:
                    _write_all(opened.fileno(), part)
            os.rename(unfinished, key + ENTRY, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(unfinished, dir_fd=folder)
            raise
        return True
    return False


def entry_bytes(key: str) -> int | None:
    """Return how many bytes an entry takes, None if there is none."""
    with contextlib.suppress(*ERRORS), _folder(make=False) as folder:
        return os.stat(key + ENTRY, dir_fd=folder, follow_symlinks=False).st_size
    return None


def _write_all(file: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


@contextlib.contextmanager
def _folder(*, make: bool) -> Iterator[int]:
    """Open the folder. Raises `OSError` or `ValueError` if it is not there, or not the user's alone."""
    path = cache_folder()
    if path is None or os.open not in os.supports_dir_fd:
        raise OSError("nothing is kept here")
    if make:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _need_own(os.fstat(folder), stat.S_ISDIR)
        yield folder
    finally:
        os.close(folder)


def _need_own(found: os.stat_result, is_sort: object) -> None:
    """Raise `ValueError` for what is of another sort, of another user, or open to others."""
    if not callable(is_sort) or not is_sort(found.st_mode):
        raise ValueError("it is something else")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError("others may have written it")


def _make_room(folder: int, most_bytes: int) -> None:
    """Remove what was used longest ago until the rest takes no more than this, and what was not finished."""
    entries: list[tuple[int, int, str]] = []
    with os.scandir(folder) as found:
        for each in found:
            with contextlib.suppress(FileNotFoundError):  # another process removes, too
                about = each.stat(follow_symlinks=False)
                if each.name.endswith(ENTRY):
                    entries.append((about.st_mtime_ns, about.st_size, each.name))
                elif each.name.endswith(UNFINISHED) and time.time() - about.st_mtime > ABANDONED_S:
                    os.unlink(each.name, dir_fd=folder)
    held = sum(size for _, size, _ in entries)
    for _, size, name in sorted(entries):
        if held <= most_bytes:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        held -= size
