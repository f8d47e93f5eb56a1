"""The columns of a trace, what they mean, and what is checked of them when a file is read.

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

What the rows promise is looked at once, when a file is read; nothing checks it again.

| promise | what relies on it |
|---|---|
| kind, name, start and duration are known, codes have a text | every table by kind or name |
| times are below 13 days, and all durations together fit 63 bits | every sum of times |
| rows of a rank are in order of start | tables by step, first and last rows |
| a row's parent is a host row of its rank; a host row's on its thread, around it, in no circle | climbing |
| a step is one of the metadata's, and of the row's rank | tables by step |
| ids and amounts are unknown (-1) or not negative, amounts below 2^48 | sums of bytes and elements |
| a handle is one of the map's | tables by layer, shares of fused kernels |
| shapes are lists of sizes, extents of a launch are three numbers | counting work |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from daydream.errors import TraceError
from daydream.lazy import regex

if TYPE_CHECKING:
    import pyarrow as pa

    from daydream.trace.trace import Trace

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


NEEDED = ("kind", "name", "start_ns", "duration_ns")
KINDS = (*HOST_KINDS, *DEVICE_KINDS, "sync", "blocked")
LONGEST_NS = (
    2**50
)  # 13 days: no recording lasts that long, and places in program order, 4,096 a ns, fit 63 bits
LARGEST_SUM = 2.0**61
LARGEST_AMOUNT = 2**48  # of bytes or elements, in one tensor or transfer: 281 TB
AMOUNTS = ("bytes", "elements")
SMALLEST = {"start_ns": 0, "duration_ns": 0, "pid": NO_ID, "tid": NO_ID, "waker": NO_ID}
LARGEST = {
    "start_ns": LONGEST_NS,
    "duration_ns": LONGEST_NS,
    **dict.fromkeys(AMOUNTS, LARGEST_AMOUNT),
}
EXTENTS = regex(r"\d{1,10},\d{1,10},\d{1,10}", re.ASCII)
DEEPEST = 4  # arguments, lists of tensors, shapes, sizes


def check(trace: Trace) -> None:
    """Raise `TraceError` with what was found and what was needed, if the rows break a promise."""
    for name in NEEDED:
        if name not in trace.columns:
            raise TraceError(f"it has no column {name!r}; it is not a daydream trace")
    for name in trace.columns:
        if FIELDS[name].type == "text":
            _check_codes(name, trace)
        else:
            _check_range(name, trace.columns[name])
    identifiers = 0 if trace.handles is None else len(trace.handles)
    if "handle" in trace.columns:
        _refuse(
            "handle",
            trace["handle"],
            UNKNOWN,
            identifiers - 1,
            f"one of {identifiers} debug handles",
        )
    if len(trace):
        _check_times(trace)
        _check_steps(trace, trace.metadata.get("steps", []))
        _check_parents(trace)


def clear_nonsense(columns: Columns, texts: Texts) -> None:
    """Make unknown what no profiler means: ids below -1, amounts no machine has, shapes that are none."""
    for name, column in columns.items():
        if name not in FIELDS or not len(column):
            continue
        if FIELDS[name].type == "text":
            right = OF_TEXT.get(name)
            kept = [text for text in texts[name] if right is None or right(text)]
            if len(kept) < len(texts[name]):
                code_of = {text: code for code, text in enumerate(kept)}
                table = [code_of.get(text, UNKNOWN) for text in texts[name]]
                columns[name] = np.array([*table, UNKNOWN], column.dtype)[column]
                texts[name] = kept
        elif name not in NEEDED:
            null = FIELDS[name].null
            least = SMALLEST.get(name, UNKNOWN)
            most = _most(name)
            if int(column.min()) < least or int(column.max()) > most:
                columns[name] = np.where((column < least) | (column > most), null, column)


def _check_codes(name: str, trace: Trace) -> None:
    codes = trace.columns[name]
    texts = trace.texts[name]
    _refuse(name, codes, 0 if name in NEEDED else UNKNOWN, len(texts) - 1, "a text of the column")
    if None in texts or len(set(texts)) < len(texts):
        raise TraceError(f"column {name!r} holds a text twice, or one that is unknown")
    right = {"kind": KINDS.__contains__, "phase": PHASES.__contains__, **OF_TEXT}.get(name)
    odd = next((text for text in texts if not right(text)), None) if right is not None else None
    if odd is not None:
        raise TraceError(f"column {name!r} holds {odd[:40]!r}, which is none of what it may hold")


@lru_cache(1 << 14)  # a trace that is imported is looked at twice
def is_shapes(text: str) -> bool:
    """Return whether a text holds shapes of inputs, `[[32, 64], [], [[4]]]`, of sizes that can be."""
    try:
        found = msgspec.json.decode(text)  # in a third of json's time
    except (msgspec.DecodeError, RecursionError):
        return False
    return type(found) is list and set(map(type, found)) <= {list} and _nested(found, 1)


def _nested(found: list[Any], depth: int) -> bool:
    kinds = set(map(type, found))
    if kinds <= {int}:
        return not found or (min(found) >= 0 and math.prod(found) <= LARGEST_AMOUNT)
    return kinds == {list} and depth < DEEPEST and all(_nested(each, depth + 1) for each in found)


def is_amount(value: Any) -> bool:
    """Return whether a value is a whole number that a machine can have of something."""
    return type(value) is int and 0 <= value <= LARGEST_AMOUNT


def is_launch(text: str) -> bool:
    """Return whether a text is the extents of a launch, as `x,y,z`."""
    if EXTENTS.fullmatch(text) is None:
        return False
    return math.prod(map(int, text.split(","))) <= LARGEST_AMOUNT


OF_TEXT: dict[str, Callable[[str], bool]] = {
    "shapes": is_shapes,
    "grid": is_launch,
    "block": is_launch,
}


def _check_range(name: str, column: np.ndarray) -> None:
    _refuse(name, column, SMALLEST.get(name, UNKNOWN), _most(name), "a number in its range")


def _most(name: str) -> int:
    return LARGEST.get(name, int(np.iinfo(FIELDS[name].type).max))


def _refuse(name: str, column: np.ndarray, least: int, most: int, needed: str) -> None:
    """Raise `TraceError` with the first value that is out of bounds."""
    if not len(column) or (int(column.min()) >= least and int(column.max()) <= most):
        return
    row = int(np.argmax((column < least) | (column > most)))
    value = int(column[row])
    found = "nothing" if value == FIELDS[name].null else value
    raise TraceError(f"row {row} of column {name!r} holds {found}; {needed} was needed")


def _check_times(trace: Trace) -> None:
    start = trace["start_ns"]
    for name in ("duration_ns", *AMOUNTS):
        if name in trace.columns and float(trace[name].sum(dtype=np.float64)) > LARGEST_SUM:
            raise TraceError(f"the values of column {name!r} add up to more than 63 bits hold")
    rank = trace["rank"]
    rows = np.arange(len(trace))
    if (rank[1:] < rank[:-1]).any():  # ranks may lie among each other
        rows = np.argsort(rank, kind="stable")
        start = start[rows]
        rank = rank[rows]
    earlier = (start[1:] < start[:-1]) & (rank[1:] == rank[:-1])
    if earlier.any():
        row = int(rows[int(np.argmax(earlier)) + 1])
        raise TraceError(
            f"row {row} begins before the row before it; rows in order of start were needed"
        )


def _check_steps(trace: Trace, steps: Sequence[Mapping[str, Any]]) -> None:
    if "step" not in trace.columns:
        return
    step = trace["step"]
    _refuse("step", step, UNKNOWN, len(steps) - 1, f"one of the {len(steps)} steps of the metadata")
    ranks = np.array([*(one.get("rank", 0) for one in steps), 0], np.int64)
    differs = (ranks[step] != np.maximum(trace["rank"], 0)) & (step >= 0)
    if differs.any():
        row = int(np.argmax(differs))
        raise TraceError(f"row {row} lies in step {int(step[row])}, which is another rank's")


def _check_parents(trace: Trace) -> None:
    if "parent" not in trace.columns:
        return
    parent = trace["parent"]
    _refuse("parent", parent, UNKNOWN, len(trace) - 1, "a row of the trace")
    host = trace.is_kind(*HOST_KINDS)
    rows = np.flatnonzero(parent >= 0)
    around = parent[rows]
    inner = host[rows]
    wrong = ~host[around]
    for name in ("rank", "pid", "tid"):
        if name in trace.columns:
            here = trace[name][rows]
            there = trace[name][around]
            if name == "rank":
                wrong |= np.maximum(here, 0) != np.maximum(there, 0)
            else:
                wrong |= (here != there) & inner
    start = trace["start_ns"]
    duration = trace["duration_ns"]
    earlier = start[around] - start[rows]
    later = earlier + duration[around] - duration[rows]
    wrong |= inner & ((earlier > 0) | (later < 0))
    together = rows[inner & ~wrong & (earlier == 0) & (later == 0)]
    wrong = rows[wrong]
    if (parent[together] >= together).any():
        wrong = np.append(wrong, _in_circles(together, parent[together], len(trace)))
    if len(wrong):
        row = int(wrong.min())
        raise TraceError(
            f"row {row} has the parent {int(parent[row])}; one around it, on its thread, was needed"
        )


def _in_circles(rows: np.ndarray, around: np.ndarray, size: int) -> np.ndarray:
    """Return the rows from which climbing never ends, by climbs of 1, 2, 4, ... rows at once."""
    up = np.full(size + 1, size)
    up[rows] = around
    for _ in range(size.bit_length()):
        up[rows] = up[up[rows]]
    return rows[up[rows] < size]
