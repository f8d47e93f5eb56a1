"""A trace's parquet file, read: columns of the right types, texts and metadata.

The file is as little trusted as any other: what is no such column is refused in one line, and `Trace.load`
holds the rows to the promises of `daydream.trace.valid` and `daydream.trace.metadata`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import HandleError, TraceError
from daydream.files.input_files import check_regular, most_unpacked, too_large
from daydream.trace.handle_map import HANDLES_KEY, DebugHandleMap
from daydream.trace.memory_events import MEMORY_KEY, MemoryEvents
from daydream.trace.schema import FIELDS, METADATA_KEY, SCHEMA_VERSION, UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa

IMPORT_AGAIN = "Import the profiler's file again."


def read_columns(
    path: str | os.PathLike[str], *, max_unpacked: int | None = None
) -> tuple[
    dict[str, np.ndarray], dict[str, list[str]], dict[str, Any], MemoryEvents | None, DebugHandleMap | None
]:
    """Return columns, texts, metadata, memory events and debug handles; `max_unpacked` bounds their bytes.

    Raises `TraceError` if it is missing, no regular file, not parquet, not daydream's, of a newer
    schema, or holds what no trace can hold.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    check_regular(path)
    try:
        with ParquetFile(path) as file:
            metadata = _metadata(path, file.schema_arrow.metadata)
            given = file.schema_arrow.names
            names = [name for name in given if name in FIELDS]
            twice = next((name for name in names if given.count(name) > 1), None)
            if twice is not None:
                raise TraceError(f"{path}: it has the column {twice!r} twice; one was needed. {IMPORT_AGAIN}")
            size, most = file.metadata.num_rows * len(names) * 8, most_unpacked(path, max_unpacked)
            if size > most:
                raise TraceError(too_large(path, f"{size:,}", most))
            columns: dict[str, np.ndarray] = {}
            texts: dict[str, list[str]] = {}
            for name in names:  # one after the other: what Arrow makes of one is gone before the next
                column = file.read([name], use_threads=False).column(0)
                columns[name], codes_of = _column(path, name, column)
                texts |= codes_of
            extra = file.metadata.metadata or {}
            memory = _memory(path, extra.get(MEMORY_KEY), most - size)
            handles = _handles(path, extra.get(HANDLES_KEY))
        pa.default_memory_pool().release_unused()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise TraceError(
            f"{path} is not a readable parquet file ({_first_line(error)}). {IMPORT_AGAIN}"
        ) from None
    return columns, texts, metadata, memory, handles


def _handles(path: str | os.PathLike[str], text: bytes | None) -> DebugHandleMap | None:
    try:
        return None if text is None else DebugHandleMap.from_json(text)
    except HandleError as error:
        raise TraceError(f"{path}: {error}. {IMPORT_AGAIN}") from None


def _memory(path: str | os.PathLike[str], text: bytes | None, most_bytes: int) -> MemoryEvents | None:
    if text is None:
        return None
    try:
        return MemoryEvents.decode(text, most_bytes)
    except TraceError as error:
        raise TraceError(f"{path}: {error}. {IMPORT_AGAIN}") from None


def _metadata(path: str | os.PathLike[str], raw: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    text = (raw or {}).get(METADATA_KEY)
    if text is None:
        raise TraceError(f"{path} is a parquet file, but daydream did not write it")
    try:
        metadata: dict[str, Any] = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
        if b"\\ud" in text.lower():  # half a surrogate pair cannot be written again
            json.dumps(metadata, ensure_ascii=False).encode()
        version = metadata["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TraceError(f"{path}: its daydream metadata cannot be read. {IMPORT_AGAIN}") from None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise TraceError(
            f"{path} has schema {version!r:.40}; this version reads up to {SCHEMA_VERSION}. Upgrade daydream."
        )
    return dict(metadata)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _column(
    path: str | os.PathLike[str], name: str, column: pa.ChunkedArray
) -> tuple[np.ndarray, dict[str, list[str]]]:
    """Return a column as an array of the type that a trace has, and the texts of a coded one by its name."""
    import pyarrow as pa

    text = FIELDS[name].type == "text"
    of_text = text and pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)
    if not (of_text if text else pa.types.is_signed_integer(column.type)):
        wanted = "text" if text else "integers"
        raise TraceError(
            f"{path}: column {name!r} holds {str(column.type)[:60]}; {wanted} were needed. {IMPORT_AGAIN}"
        )
    whole = (column.unify_dictionaries() if text else column).combine_chunks()
    array = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) and whole.num_chunks else whole
    if isinstance(array, pa.ChunkedArray):  # no row at all
        return np.empty(0, np.int64), {name: []}
    if text:
        return _to_numpy(array.indices, UNKNOWN), {name: array.dictionary.to_pylist()}
    return _to_numpy(array, FIELDS[name].null), {}


def _to_numpy(array: pa.Array, null: int) -> np.ndarray:
    """Return an Arrow integer array as numpy with nulls filled, without importing pandas."""
    dtype = np.dtype(str(array.type))  # to_pandas_dtype() imports pandas in some versions of pyarrow
    if len(array) == 0:
        return np.empty(0, dtype)
    bitmap, data = array.buffers()
    values = np.frombuffer(data, dtype, count=len(array) + array.offset)[array.offset :].copy()
    if array.null_count:
        if not np.iinfo(dtype).min <= null:
            values = values.astype(np.int64)
        valid = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
        values[valid[array.offset : array.offset + len(array)] == 0] = null
    return values


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
