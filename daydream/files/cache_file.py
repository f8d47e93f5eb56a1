"""The file of one cache entry: a document and arrays, which are mapped into memory as they lie in it.

    mark, digest, sizes | header: JSON of the key, the document and where arrays lie | the arrays

It is no pickle: reading it runs nothing. What was damaged is found by the digest, that of the header and of
two sums over the arrays: seen as a table of words, by row and by column. They find any bit that changed and
any two words that changed places, at the speed of memory; they are no defence against people, for which the
folder is there (`daydream.files.cache_folder`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np

MARK = b"daydream cache 1"
HEAD = struct.Struct("<16s32sQQ")  # mark, digest, bytes of the header, bytes of the file
WORDS = 1024  # in a row of the table that is summed
ROW = 8 * WORDS  # bytes; each array begins one
DTYPES = ("bool", "int8", "int16", "int32", "int64")
MOST_VALUES = 2**28  # of an array: more would not find place in the folder


class Contents(NamedTuple):
    """What an entry holds: anything that JSON can say, and arrays of integers or booleans, shape (n,)."""

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
        value = int(array[0]) if len(array) and (array == array[0]).all() else None
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
    document, entries = fields.get("document"), fields.get("arrays")
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
    if any(type(number) is not int or not 0 <= number <= MOST_VALUES for number in (length, offset)):
        raise CacheError(f"the array {name!r} has no place")
    kind = np.dtype(dtype)
    if value is not None:
        if type(value) is not int:
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
    columns, rows = np.zeros(WORDS, np.uint64), []
    for part in parts:
        table = np.frombuffer(part, np.uint64).reshape(-1, WORDS)
        columns += table.sum(axis=0)  # modulo 2^64
        rows.append(table.sum(axis=1))
    found = hashlib.blake2b(header, digest_size=32)
    for value in (np.array([size]), columns, *rows):
        found.update(value.tobytes())
    return found.digest()


def whole_of(given: Any) -> int:
    """Return what a document holds if it is a whole number. Raises `TypeError` if not."""
    if type(given) is not int:
        raise TypeError("a number was needed")
    return given


def text_of(given: Any) -> str:
    """Return what a document holds if it is a text. Raises `TypeError` if not."""
    if type(given) is not str:
        raise TypeError("a text was needed")
    return given
