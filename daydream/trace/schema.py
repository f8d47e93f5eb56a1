"""The columns of a trace and what they mean.

One row per event. A row is of one of these kinds:

| kind | what it is |
|---|---|
| `operator` | a framework operator on a CPU thread |
| `annotation` | a range that a person or a library named on a CPU thread |
| `runtime` | a call into the CUDA or HIP runtime or driver on a CPU thread |
| `module` | a layer's forward call on a CPU thread (`nn.Module` frames) |
| `kernel`, `memcpy`, `memset`, `collective` | work on a device stream |
| `sync` | the device's own record of a synchronization or a stream wait |
| `blocked` | time in which a CPU thread was off the CPU or in a call that waits, by the call |
| `memory` | in a file alone, behind all others: an allocation or a free, `Trace.memory` once it is read |

Times are integer nanoseconds. Unknown is null in the file and in `to_pandas()`;
in the arrays it is `UNKNOWN` (-1) for integers, `NO_ID` for pid and tid (real
thread ids can be negative), and code -1 for text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Columns: TypeAlias = "dict[str, np.ndarray]"
Document: TypeAlias = dict[str, Any]  # metadata, or a part of it
Texts: TypeAlias = dict[str, list[str]]  # those that a coded column points into, by column
SCHEMA_VERSION = 2
IMPORT_AGAIN = "Import the profiler's file again."  # what to do about a file that is not right
METADATA_KEY = b"daydream"
UNKNOWN = -1
NO_ID = -(2**63)
OFF_CPU = "off the CPU"  # name of blocked rows that are a thread's switches
BY_CLOCK = "off the CPU by its clock"  # of those that tell its CPU time

HOST_KINDS = ("operator", "annotation", "runtime", "module")
DEVICE_KINDS = ("kernel", "memcpy", "memset", "collective")
PHASES = ("data", "forward", "loss", "backward", "optimizer", "other")


class Field(NamedTuple):
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
    "start_ns": Field("int64", "start, from the trace's own origin", NO_ID),
    "duration_ns": Field("int64", "duration, never negative"),
    "correlation": Field("int64", "ties a runtime call to the device work it launched"),
    "external_id": Field("int64", "ties runtime calls and device work to an operator"),
    "sequence": Field("int64", "autograd sequence number of an operator"),
    "forward_thread": Field("int64", "autograd id of the thread that ran the forward operator"),
    "parent": Field(
        "int32", "row of the enclosing host row; for device work, of the launching call"
    ),
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
    "peer": Field("int32", "of a message the other rank, of a collective with a root the root"),
    "asynchronous": Field("int32", "1 where the program goes on while a collective runs, else 0"),
    "graph_id": Field("int64", "CUDA graph a kernel belongs to"),
    "graph_node": Field("int64", "node of that graph"),
    "handle": Field(
        "int32", "compiled code: place of its identifier in the trace's map of debug handles"
    ),
    "wait_stream": Field("int64", "sync rows: the stream whose event is waited for"),
    "wait_correlation": Field("int64", "sync rows: correlation of the event's record call"),
    "waker": Field(
        "int64", "blocked rows: the thread that ended the wait, where that is known", NO_ID
    ),
    "cpu_ns": Field("int64", "blocked rows: how long the thread ran meanwhile, or was ready to"),
    "stack": Field("text", "source line or call stack of an operator"),
}
ROW = "row"  # a file's column of the places of rows in the trace: those of some steps find their parents
MEMORY = "memory"  # rows of this kind also have `start_ns`, `rank`, `pid`, `tid`, `device` (null: the CPU)
MEMORY_FIELDS: dict[str, Field] = {
    "memory_bytes": Field("int64", "what the allocator gave, below 0 for a free", NO_ID),
    "address": Field("int64", "where, if it was recorded"),
    "allocated_bytes": Field("int64", "the device's total after it"),
    "reserved_bytes": Field("int64", "what the allocator has from the driver after it"),
}


def to_arrow(values: np.ndarray, null: int | None) -> pa.Array:
    """Return integers as an Arrow array with nulls; built from buffers, as `pa.array` would import pandas."""
    import numpy as np
    import pyarrow as pa

    bitmap = None
    if null is not None and (unknown := values == null).any():
        bitmap = pa.py_buffer(np.packbits(~unknown, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def to_numpy(array: pa.Array, null: int) -> np.ndarray:
    """Return an Arrow integer array as numpy with nulls filled, without importing pandas."""
    import numpy as np

    dtype = np.dtype(
        str(array.type)
    )  # to_pandas_dtype() imports pandas in some versions of pyarrow
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


ITEM_BYTES = {  # bytes of an element of each type
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
