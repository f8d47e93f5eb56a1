"""A trace's parquet file: written, and read into columns of the right types, texts and metadata.

The file is as little trusted as any other: what is no such column is refused in one line, and the rows are held
to the promises of `daydream.trace.schema` and `daydream.trace.metadata`. Of a range of steps only the rows are
read that it has. Behind the trace's own rows lie its memory events, rows of the kind `memory`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import HandleError, TraceError
from daydream.files.input_files import StrPath, check_regular, most_unpacked, too_large
from daydream.trace.memory_events import COLUMNS, IN_A_FILE, MemoryEvents
from daydream.trace.metadata import OF_EACH_RANK, mistake_in
from daydream.trace.recorded_steps import TYPICAL, Chosen, StepRange, chosen_steps, is_long
from daydream.trace.schema import (
    FIELDS,
    IMPORT_AGAIN,
    MEMORY,
    MEMORY_FIELDS,
    METADATA_KEY,
    ROW,
    SCHEMA_VERSION,
    UNKNOWN,
    Columns,
    Document,
    Field,
    Texts,
    to_arrow,
    to_numpy,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    from daydream.trace.handle_map import DebugHandleMap
    from daydream.trace.trace import Trace

    Parts = tuple[Columns, Texts, Document, MemoryEvents | None, DebugHandleMap | None]

HANDLES_KEY = b"daydream.handles"  # the map of debug handles, in the metadata of a file
ROW_GROUP = 2**17  # rows written at a time: no large trace is held twice
LIMITS = ("rank", "step", "start_ns")  # least and most in a row group: steps are found by them
IN_FILE = {**FIELDS, **MEMORY_FIELDS, ROW: Field("int64", "place of the row in the trace")}


def write_trace(trace: Trace, path: str) -> None:
    """Write a trace as parquet, over what is there. Raises `OSError` where that fails."""
    from pyarrow.parquet import ParquetWriter

    columns = {**trace.columns, ROW: np.arange(len(trace))}
    texts = dict(trace.texts)
    names = set(columns)
    memory: Columns = {}
    if trace.memory is not None:
        events = trace.memory.columns
        memory = {IN_A_FILE.get(name, name): column for name, column in events.items()}
        names |= {name for name, column in memory.items() if (column != IN_FILE[name].null).any()}
        texts["kind"] = [*trace.text("kind"), MEMORY]
        memory["kind"] = np.full(len(trace.memory), len(texts["kind"]) - 1)
        names.add("kind")
    coded = {name: to_strings(found) for name, found in texts.items()}
    about = {METADATA_KEY: json.dumps(trace.metadata)}
    if trace.handles is not None:
        about[HANDLES_KEY] = trace.handles.to_json()
    schema = to_batch(columns, coded, names, slice(0)).replace_schema_metadata(about).schema
    with ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=list(coded),
        column_encoding=dict.fromkeys(names - coded.keys(), "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in LIMITS if name in names],
    ) as file:
        for table, rows in ((columns, len(trace)), (memory, len(memory.get("kind", ())))):
            for first in range(0, rows, ROW_GROUP):
                part = slice(first, min(first + ROW_GROUP, rows))
                file.write_batch(to_batch(table, coded, names, part))


def to_batch(
    columns: Columns, texts: Mapping[str, pa.Array], names: Container[str], rows: slice
) -> pa.RecordBatch:
    """Return rows of some columns as Arrow has them, with nulls; columns that there are not are null."""
    import pyarrow as pa

    arrays = {}
    for name, field in IN_FILE.items():
        if name not in names:
            continue
        kind = "int32" if name in texts else field.type
        if name in columns:
            column = columns[name][rows].astype(kind, copy=False)
            values = to_arrow(column, UNKNOWN if name in texts else field.null)
        else:
            values = pa.nulls(len(range(rows.start or 0, rows.stop)), kind)
        arrays[name] = (
            pa.DictionaryArray.from_arrays(values, texts[name]) if name in texts else values
        )
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def to_strings(texts: list[str]) -> pa.Array:
    """Return texts as an Arrow array; built from buffers, as `pa.array` would import pandas."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def read_parts(path: StrPath, *, max_unpacked: int | None, steps: str | None) -> tuple[Parts, bool]:
    """Return what a trace is made of, and whether that is of the `steps` (`10:20`, `typical`) alone.

    `max_unpacked` bounds the bytes of its columns. Raises `TraceError` if the file is missing, no regular file,
    not parquet, not daydream's, of a newer schema, or has none of the steps.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if steps not in (None, TYPICAL):
        StepRange.parse(steps)
    check_regular(path)
    try:
        with _arrow_in_the_heap(), ParquetFile(path, pre_buffer=False) as file:
            metadata = _metadata(path, file.metadata.metadata)
            return _read(
                path,
                file,
                metadata,
                most_unpacked(path, max_unpacked),
                steps,
            )
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise TraceError(
            f"{path} is not a readable parquet file ({first}). {IMPORT_AGAIN}"
        ) from None


def _read(
    path: StrPath, file: ParquetFile, metadata: Document, most: int, steps: str | None
) -> tuple[Parts, bool]:
    from pyarrow.parquet import read_table

    given = file.schema_arrow.names
    about = file.metadata.metadata
    names = [name for name in given if name in IN_FILE and name != ROW]
    twice = next((name for name in names if given.count(name) > 1), None)
    if twice is not None:
        raise TraceError(
            f"{path}: it has the column {twice!r} twice; one was needed. {IMPORT_AGAIN}"
        )
    chosen: Chosen | None = None
    rows = file.metadata.num_rows
    can = {ROW, "step"} <= set(given) and (steps != TYPICAL or is_long(rows))
    if can and steps is not None:
        if mistake := mistake_in(metadata):
            raise TraceError(f"{path}: {mistake}. {IMPORT_AGAIN}")
        with _naming(path, ""):
            with_memory = not MEMORY_FIELDS.keys().isdisjoint(given)
            chosen = chosen_steps(metadata, steps, rows, with_memory=with_memory)
    if (size := rows * len(names) * 8) > most:
        raise TraceError(too_large(path, f"{size:,}", most))
    if chosen is None:
        table = file.read(names, use_threads=False)
    else:
        table = read_table(
            path, columns=[ROW, *names], filters=chosen.filters(given), use_threads=False
        )
    arrays = {name: table.column(name) for name in table.column_names}
    del table
    columns: Columns = {}
    texts: Texts = {}
    for name in list(arrays):  # what Arrow has of one is gone before the next
        columns[name], codes_of = _column(path, name, arrays.pop(name))
        texts |= codes_of
    with _naming(path):
        if metadata["schema_version"] == 1:
            memory = of_schema_1(columns, texts, metadata, about, most - size)
        else:
            memory = _memory(columns, texts)
        handles = None
        if HANDLES_KEY in about:
            from daydream.trace.handle_map import DebugHandleMap

            handles = DebugHandleMap.from_json(about[HANDLES_KEY])
    if chosen is not None:
        columns = chosen.taken(columns, columns.pop(ROW))
        return (columns, texts, chosen.metadata, None, handles), True
    return (columns, texts, metadata, memory, handles), False


def _memory(columns: Columns, texts: Texts) -> MemoryEvents | None:
    """Take the memory events out of the rows, behind which they lie. Raises `TraceError` if they do not."""
    kinds = texts.get("kind", [])
    first = rows = len(next(iter(columns.values()), ()))
    if MEMORY in kinds:
        events = columns["kind"] == kinds.index(MEMORY)
        first -= int(events.sum())
        if kinds.pop() != MEMORY or MEMORY in kinds or not events[first:].all():
            raise TraceError("its memory events are not its last rows")
    given = {name: columns.get(IN_A_FILE.get(name, name)) for name in COLUMNS}
    memory = {name: column[first:] for name, column in given.items() if column is not None}
    for name, column in list(columns.items()):
        columns[name] = column[:first]
        unknown = first < rows and (column[:first] == IN_FILE[name].null).all()
        if name in MEMORY_FIELDS or (unknown and name != "kind"):
            del columns[name]
    return MemoryEvents(memory) if first < rows else None


# As Kineto names what CUPTI records of them (CUpti_ActivitySynchronizationType). No kernel has such a name.
SYNC_NAMES = frozenset(("Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event"))
NOT_OF_SYNCS = ("parent", "op", "layer", "phase", "step", "dtype")


def of_schema_1(
    columns: Columns,
    texts: Texts,
    metadata: Document,
    about: Mapping[bytes, bytes],
    most_bytes: int,
) -> MemoryEvents | None:
    """Make columns and metadata of schema 1 those of today, in place, and return the memory events.

    Events were a parquet file in base64 within the metadata, of integers without a null. What ranks have each
    their own of was a mapping by rank for each name.

    Raises `TraceError` for what is none of that, or where events take more than `most_bytes`.
    """
    import base64
    import binascii

    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    _tell_syncs(columns, texts)
    try:
        ranks = {str(rank): {"rank": rank} for rank in metadata.get("ranks", [])}
        for name in OF_EACH_RANK:
            for rank, value in metadata.pop(f"{name}_by_rank", {}).items():
                ranks.setdefault(rank, {"rank": int(rank)})[name] = value
    except (AttributeError, TypeError, ValueError):
        raise TraceError("its daydream metadata cannot be read") from None
    if ranks:
        metadata["ranks"] = list(ranks.values())
    metadata["schema_version"] = SCHEMA_VERSION
    text = about.get(b"daydream.memory")
    if text is None:
        return None
    try:
        source = pa.BufferReader(base64.b64decode(text, validate=True))
        with ParquetFile(source, pre_buffer=False) as file:
            given = [name for name in file.schema_arrow.names if name in COLUMNS]
            if (size := file.metadata.num_rows * len(COLUMNS) * 8) > most_bytes:
                raise TraceError(
                    f"its memory events take {size:,} bytes, more than its size allows"
                )
            table = file.read(given, use_threads=False).combine_chunks()
    except (OSError, pa.ArrowException, binascii.Error, UnicodeDecodeError, OverflowError):
        raise TraceError("its memory events cannot be read") from None
    events = {}
    for name in given:
        if given.count(name) > 1 or table.field(name).type != pa.int64():
            raise TraceError("its memory events are not columns of integers, each once")
        column = table.column(name)
        if column.null_count:
            raise TraceError(f"the column {name!r} of its memory events has holes")
        empty = pa.nulls(0, pa.int64())
        events[name] = to_numpy(column.chunk(0) if column.num_chunks else empty, UNKNOWN)
    return MemoryEvents(events)


def _tell_syncs(columns: Columns, texts: Texts) -> None:
    """Make rows of kind `kernel` with such a name rows of kind `sync`, in place.

    `collect` wrote them as kernels up to November 2026, with a torch that does not say what its events are
    (2.11, for one): a wait of the CPU for the whole device then counted as work of the device.
    """
    kinds = texts.get("kind", [])
    names = [code for code, name in enumerate(texts.get("name", ())) if name in SYNC_NAMES]
    if not names or "kernel" not in kinds:
        return
    rows = np.isin(columns["name"], names) & (columns["kind"] == kinds.index("kernel"))
    if rows.any():
        if "sync" not in kinds:
            kinds.append("sync")
        changes = {**dict.fromkeys(NOT_OF_SYNCS, UNKNOWN), "kind": kinds.index("sync")}
        for name in changes.keys() & columns.keys():
            columns[name] = np.where(rows, changes[name], columns[name]).astype(columns[name].dtype)


@contextmanager
def _arrow_in_the_heap() -> Iterator[None]:
    """Let Arrow take its memory where NumPy does, which has it next: pools of its own keep some 35 MB."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextmanager
def _naming(path: StrPath, advice: str = f". {IMPORT_AGAIN}") -> Iterator[None]:
    """Raise `TraceError` that begins with the path for what is wrong inside."""
    try:
        yield
    except (TraceError, HandleError) as error:
        raise TraceError(f"{path}: {error}{advice}") from None


def _metadata(path: StrPath, raw: Mapping[bytes, bytes] | None) -> Document:
    text = (raw or {}).get(METADATA_KEY)
    if text is None:
        raise TraceError(f"{path} is a parquet file, but daydream did not write it")
    try:
        metadata: Document = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
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


def _column(path: StrPath, name: str, column: pa.ChunkedArray) -> tuple[np.ndarray, Texts]:
    """Return a column as an array of the type that a trace has, and the texts of a coded one by its name."""
    import pyarrow as pa

    text = IN_FILE[name].type == "text"
    of_text = (
        text and pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)
    )
    if not (of_text if text else pa.types.is_signed_integer(column.type)):
        wanted = "text" if text else "integers"
        raise TraceError(
            f"{path}: column {name!r} holds {str(column.type)[:60]}; {wanted} were needed. {IMPORT_AGAIN}"
        )
    whole = (column.unify_dictionaries() if text else column).combine_chunks()
    array = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) and whole.num_chunks else whole
    if isinstance(array, pa.ChunkedArray):  # no row at all
        return np.empty(0, np.int64), {name: []} if text else {}
    if text:
        return to_numpy(array.indices, UNKNOWN), {name: array.dictionary.to_pylist()}
    return to_numpy(array, IN_FILE[name].null), {}
