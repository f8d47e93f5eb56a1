"""A trace's parquet file, read: columns of the right types, texts and metadata.

The file is as little trusted as any other: what is no such column is refused in one line, and `Trace.load`
holds the rows to the promises of `daydream.trace.valid` and `daydream.trace.metadata`. Of a range of steps
only the row groups are read that may hold some of it.

The device's own records of synchronizations, told from kernels by their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import HandleError, TraceError
from daydream.files.input_files import StrPath, check_regular, most_unpacked, too_large
from daydream.trace.handle_map import HANDLES_KEY, DebugHandleMap
from daydream.trace.memory_events import MEMORY_KEY, MemoryEvents
from daydream.trace.schema import (
    FIELDS,
    IMPORT_AGAIN,
    METADATA_KEY,
    SCHEMA_VERSION,
    UNKNOWN,
    Columns,
    Document,
    Texts,
    to_numpy,
)
from daydream.trace.step_range import TYPICAL, Chosen, StepRange, chosen_steps, is_long

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData, ParquetFile

# As Kineto names what CUPTI records of them (CUpti_ActivitySynchronizationType). No kernel has such a name.
SYNC_NAMES = frozenset(("Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event"))
NOT_OF_SYNCS = ("parent", "op", "layer", "phase", "step", "dtype")


def tell_syncs(columns: Columns, texts: Texts) -> None:
    """Make rows of kind `kernel` with such a name rows of kind `sync`, in place.

    `collect` wrote them as kernels up to November 2026, with a torch that does not say what its events are
    (2.11, for one): a wait of the CPU for the whole device then counted as work of the device.
    """
    names = [code for code, name in enumerate(texts.get("name", ())) if name in SYNC_NAMES]
    kinds = texts.get("kind", [])
    if not names or "kernel" not in kinds:
        return
    rows = np.isin(columns["name"], names) & (columns["kind"] == kinds.index("kernel"))
    if not rows.any():
        return
    if "sync" not in kinds:
        kinds.append("sync")
    columns["kind"] = np.where(rows, kinds.index("sync"), columns["kind"]).astype(
        columns["kind"].dtype
    )
    for name in NOT_OF_SYNCS:
        if name in columns:
            column = columns[name]
            columns[name] = np.where(rows, FIELDS[name].null, column).astype(column.dtype)


def read_columns(
    path: StrPath, *, max_unpacked: int | None, steps: str | None
) -> tuple[Columns, Texts, Document, MemoryEvents | None, DebugHandleMap | None]:
    """Return columns, texts, metadata, memory events and debug handles; `max_unpacked` bounds their bytes.

    Of some `steps`, `10:20` or `typical`, it is what the trace of these alone would hold.

    Raises `TraceError` if it is missing, no regular file, not parquet, not daydream's, of a newer
    schema, holds what no trace can hold, or has none of the steps.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if steps not in (None, TYPICAL):
        StepRange.parse(steps)
    check_regular(path)
    try:
        with _arrow_in_the_heap(), ParquetFile(path, pre_buffer=False) as file:
            metadata = _metadata(path, file.schema_arrow.metadata)
            given = file.schema_arrow.names
            names = [name for name in given if name in FIELDS]
            twice = next((name for name in names if given.count(name) > 1), None)
            if twice is not None:
                raise TraceError(
                    f"{path}: it has the column {twice!r} twice; one was needed. {IMPORT_AGAIN}"
                )
            extra = file.metadata.metadata or {}
            chosen = _chosen(
                path, metadata, steps, file.metadata.num_rows, with_memory=MEMORY_KEY in extra
            )
            groups = _groups(file.metadata, chosen)
            rows = sum(file.metadata.row_group(group).num_rows for group in groups)
            size = rows * len(names) * 8
            most = most_unpacked(path, max_unpacked)
            if size > most:
                raise TraceError(too_large(path, f"{size:,}", most))
            kept = None if chosen is None else _kept(path, file, groups, chosen, names)
            columns: Columns = {}
            texts: Texts = {}
            for (
                name
            ) in names:  # one after the other: what Arrow makes of one is gone before the next
                columns[name], codes_of = _read(path, file, groups, name)
                if kept is not None:
                    columns[name] = columns[name][kept]
                texts |= codes_of
            if chosen is not None and kept is not None:
                metadata = chosen.metadata
                columns = chosen.taken(columns, _numbers(file.metadata, groups)[kept])
            tell_syncs(columns, texts)
            with _naming(path):
                text = extra.get(HANDLES_KEY)
                handles = None if text is None else DebugHandleMap.from_json(text)
                text = extra.get(MEMORY_KEY) if kept is None else None
                memory = None if text is None else MemoryEvents.decode(text, most - size)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise TraceError(
            f"{path} is not a readable parquet file ({_first_line(error)}). {IMPORT_AGAIN}"
        ) from None
    return columns, texts, metadata, memory, handles


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


def _read(
    path: StrPath, file: ParquetFile, groups: list[int], name: str
) -> tuple[np.ndarray, Texts]:
    return _column(path, name, file.read_row_groups(groups, [name], use_threads=False).column(0))


def _chosen(
    path: StrPath, metadata: Document, steps: str | None, rows: int, *, with_memory: bool
) -> Chosen | None:
    """Return what is kept of a trace of so many rows; None if that is all of it."""
    from daydream.trace.metadata import mistake_in

    if steps is None or (steps == TYPICAL and not is_long(rows)):
        return None
    mistake = mistake_in(metadata)
    if mistake is not None:
        raise TraceError(f"{path}: {mistake}. {IMPORT_AGAIN}")
    with _naming(path, ""):
        return chosen_steps(metadata, steps, rows, with_memory=with_memory)


def _groups(about: FileMetaData, chosen: Chosen | None) -> list[int]:
    """Return the row groups that may hold rows that are kept, by what the file says of their columns."""
    return [
        group
        for group in range(about.num_row_groups)
        if chosen is None
        or chosen.may_hold(*(_limits(about, group, name) for name in ("step", "start_ns")))
    ]


def _limits(about: FileMetaData, group: int, name: str) -> tuple[int, int]:
    """Return the least and the largest value of a column in a row group; all there can be if not told."""
    values = about.row_group(group)
    for number in range(values.num_columns):
        column = values.column(number)
        if column.path_in_schema == name:
            found = column.statistics
            if found is not None and found.has_min_max:
                return int(found.min), int(found.max)
    return int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def _kept(
    path: StrPath, file: ParquetFile, groups: list[int], chosen: Chosen, names: list[str]
) -> np.ndarray:
    """Return which rows of the row groups are kept: bool, shape (rows,)."""
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    step, rank, start_ns = (
        _read(path, file, groups, name)[0] if name in names else np.full(rows, FIELDS[name].null)
        for name in ("step", "rank", "start_ns")
    )
    return chosen.rows(step, rank, start_ns)


def _numbers(about: FileMetaData, groups: list[int]) -> np.ndarray:
    """Return the numbers that the rows of these row groups have in the whole file: int64, shape (rows,)."""
    sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    begins = np.cumsum([0, *sizes])
    return np.concatenate([np.arange(begins[group], begins[group + 1]) for group in groups])


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

    text = FIELDS[name].type == "text"
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
        return np.empty(0, np.int64), {name: []}
    if text:
        return to_numpy(array.indices, UNKNOWN), {name: array.dictionary.to_pylist()}
    return to_numpy(array, FIELDS[name].null), {}


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
