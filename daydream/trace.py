"""Trace: what was measured, as columns, and its parquet file.

One row per event. A row is of one of these kinds:

| kind | what it is |
|---|---|
| `operator` | a framework operator on a CPU thread |
| `annotation` | a range that a person or a library named on a CPU thread |
| `runtime` | a call into the CUDA or HIP runtime or driver on a CPU thread |
| `module` | a layer's forward call on a CPU thread (`nn.Module` frames) |
| `kernel`, `memcpy`, `memset`, `collective` | work on a device stream |
| `sync` | the device's own record of a synchronization or a stream wait |

Times are integer nanoseconds. Unknown is null in the file and in `to_pandas()`;
in the arrays it is `UNKNOWN` (-1) for integers, `NO_ID` for pid and tid (real
thread ids can be negative), and code -1 for text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import TraceError
from daydream.shown import Shown
from daydream.writing import write_whole

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SCHEMA_VERSION = 1
METADATA_KEY = b"daydream"
UNKNOWN = -1
NO_ID = -(2**63)
ROW_GROUP = 2**18  # rows written at a time, so that a large trace is never held twice

HOST_KINDS = ("operator", "annotation", "runtime", "module")
DEVICE_KINDS = ("kernel", "memcpy", "memset", "collective")
PHASES = ("data", "forward", "loss", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Field:
    """One column: its type (`int64`, `int32` or `text`) and its meaning."""

    type: str
    meaning: str
    null: int = UNKNOWN


FIELDS: dict[str, Field] = {
    "rank": Field("int32", "rank of the process in the job, 0 when there is only one"),
    "kind": Field("text", "see the table at the head of this module"),
    "name": Field("text", "the event's name as recorded"),
    "device": Field("int32", "device index of device work"),
    "stream": Field("int64", "stream of device work, and of a sync row"),
    "pid": Field("int64", "process of host rows", NO_ID),
    "tid": Field("int64", "thread of host rows", NO_ID),
    "start_ns": Field("int64", "start, from the trace's own origin"),
    "duration_ns": Field("int64", "duration, never negative"),
    "correlation": Field("int64", "ties a runtime call to the device work it launched"),
    "external_id": Field("int64", "ties runtime calls and device work to an operator"),
    "sequence": Field("int64", "autograd sequence number of an operator"),
    "forward_thread": Field("int64", "autograd id of the thread that ran the forward operator"),
    "parent": Field("int32", "row of the enclosing host row; for device work, of the launching call"),
    "op": Field("text", "innermost operator the row belongs to"),
    "layer": Field("text", "qualified module path"),
    "phase": Field("text", "data, forward, loss, backward, optimizer or other"),
    "step": Field("int32", "index into the metadata's steps; device work has its launch's step"),
    "bytes": Field("int64", "bytes moved by a copy, a memset or a collective"),
    "dtype": Field("text", "element type of the work, as torch names it: float32, bfloat16, ..."),
    "shapes": Field("text", "input shapes as recorded (JSON text)"),
    "grid": Field("text", "launch grid, in blocks, as `x,y,z`"),
    "block": Field("text", "threads of a block as `x,y,z`"),
    "collective": Field("text", "collective operation: all_reduce, all_to_all, ..."),
    "elements": Field("int64", "elements of a collective"),
    "group": Field("text", "process group of a collective"),
    "graph_id": Field("int64", "CUDA graph a kernel belongs to"),
    "graph_node": Field("int64", "node of that graph"),
    "wait_stream": Field("int64", "sync rows: the stream whose event is waited for"),
    "wait_correlation": Field("int64", "sync rows: correlation of the event's record call"),
    "stack": Field("text", "source line or call stack of an operator"),
}


class Trace(Shown):
    """A recorded run: columns of equal length, the texts behind coded columns, and metadata.

    `columns` maps field names to integer arrays; text columns hold codes into
    `texts[name]`. A field that is absent is unknown in every row and takes no
    memory. `metadata` is one JSON-able document: `steps` is a list of `{"name",
    "rank", "start_ns", "end_ns", "covered", "why_not"}`; `step_source` says where
    they come from; `devices`, `world_size`, `vendor` ("cuda", "rocm", "cpu", "npu", ...),
    `source` and `notes` (sentences about what was odd) are there when known.
    """

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        texts: Mapping[str, list[str]],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        unknown = set(columns) - set(FIELDS)
        if unknown:
            raise TraceError(f"a trace has no column {min(unknown)!r}")
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise TraceError(f"columns of a trace differ in length: {sorted(lengths)}")
        self.columns = dict(columns)
        self.texts = {name: texts[name] for name in columns if FIELDS[name].type == "text"}
        self.metadata: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **(metadata or {})}
        self._rows = lengths.pop() if lengths else 0

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column: integers, or codes for text; unknown throughout if absent."""
        if name in self.columns:
            return self.columns[name]
        return np.broadcast_to(np.int64(FIELDS[name].null), self._rows)

    def __repr__(self) -> str:
        steps = self.metadata.get("steps", [])
        return f"<Trace {len(self):,} rows, {len(steps)} steps, {self.metadata.get('source', 'unnamed')}>"

    def text(self, name: str) -> list[str]:
        """Return the texts a coded column points into; empty if the column is absent."""
        return self.texts.get(name, [])

    def code(self, name: str, value: str) -> int:
        """Return the code of one text in a column, or -2 (which no row holds) if it never occurs."""
        try:
            return self.text(name).index(value)
        except ValueError:
            return -2

    def is_kind(self, *kinds: str) -> np.ndarray:
        """Return a mask of the rows of any of these kinds."""
        wanted = np.array([*(text in kinds for text in self.text("kind")), False])  # the last: unknown, -1
        mask: np.ndarray = wanted[self["kind"]]
        return mask

    def values(self, name: str, rows: Iterable[int] | slice | None = None) -> list[Any]:
        """Return a column as Python values with `None` for unknown, for some rows or all."""
        column = self[name] if rows is None else self[name][rows if isinstance(rows, slice) else list(rows)]
        if FIELDS[name].type == "text":
            texts = self.text(name)
            return [texts[code] if code >= 0 else None for code in column.tolist()]
        null = FIELDS[name].null
        return [None if value == null else value for value in column.tolist()]

    def to_pandas(self) -> pd.DataFrame:
        """Return the trace as a data frame, a column per known field, unknown as NA."""
        return self.to_arrow().to_pandas()

    def to_arrow(self, rows: slice = slice(None)) -> pa.RecordBatch:
        """Return the trace, or some of its rows, as an Arrow batch with nulls and dictionary-coded texts."""
        import pyarrow as pa

        arrays = {}
        for name, field in FIELDS.items():
            if name not in self.columns:
                continue
            text = field.type == "text"
            column = self.columns[name][rows].astype("int32" if text else field.type, copy=False)
            values = _to_arrow(column, UNKNOWN if text else field.null)
            arrays[name] = (
                pa.DictionaryArray.from_arrays(values, _to_strings(self.texts[name])) if text else values
            )
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        return batch.replace_schema_metadata({METADATA_KEY: json.dumps(self.metadata)})

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the trace as parquet; the file appears whole or not at all.

        Raises `OutputError` if the path cannot be written, exists and `force` is not given, or is no file.
        """
        from pyarrow.parquet import ParquetWriter

        coded = [name for name in self.columns if FIELDS[name].type == "text"]
        encodings = {name: "DELTA_BINARY_PACKED" for name in self.columns if name not in coded}

        def write(temporary: str) -> None:
            options: dict[str, Any] = {"use_dictionary": coded, "column_encoding": encodings}
            schema = self.to_arrow(slice(0, 0)).schema
            with ParquetWriter(temporary, schema, compression="zstd", compression_level=3, **options) as file:
                for first in range(0, max(len(self), 1), ROW_GROUP):
                    file.write_batch(self.to_arrow(slice(first, first + ROW_GROUP)))

        write_whole(path, write, force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a parquet trace. Needs neither pandas nor torch.

        Raises `TraceError` if the file is missing, is not parquet, was not written by daydream,
        has a newer schema, or breaks a promise of `daydream.valid` or `daydream.metadata`.
        """
        from daydream.trace_file import read_trace

        return read_trace(path)


def _to_arrow(values: np.ndarray, null: int) -> pa.Array:
    """Return integers as an Arrow array with nulls; built from buffers, as `pa.array` would import pandas."""
    import pyarrow as pa

    unknown = values == null
    bitmap = pa.py_buffer(np.packbits(~unknown, bitorder="little")) if unknown.any() else None
    buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def _to_strings(texts: list[str]) -> pa.Array:
    """Return texts as an Arrow array; built from buffers, as `pa.array` would import pandas."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)
