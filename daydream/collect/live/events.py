"""A profiler's results in memory as a `Recording`, without the way through JSON.

Reading the raw events costs a tenth of writing them out and parsing them again. Layer
ranges become rows of kind `module`; step markers are returned apart and leave no row.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

import msgspec
import numpy as np

from daydream.collect.derive.device_names import (
    ITEM_BYTES,
    collective_of_name,
    dtype_of_inputs,
    dtype_of_word,
    elements_of_dims,
)
from daydream.collect.derive.layers import AUTOGRAD_THREADS
from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.derive.source_lines import SourceLines, blocking_call, is_frame, own_frame
from daydream.collect.importers.kineto.events import HOST, KINDS, NOTHING, Args
from daydream.collect.importers.kineto.values import Codes, Numbers, group_of, plain_text, triple
from daydream.collect.live.cpu_times import Look, add_cpu_times
from daydream.collect.live.layer_hooks import LAYER_RANGE
from daydream.trace.schema import FIELDS, NO_ID, UNKNOWN, Columns, Texts
from daydream.trace.sync_rows import SYNC_NAMES

MEMORY_EVENT = "[memory]"
MARKER = re.compile(r"^daydream::marker (\d+)$")
MARKER_NAME = "daydream::marker {}"
UPDATE = re.compile(r"^daydream::update (\w+)$")
UPDATE_NAME = "daydream::update {}"  # where the step of an optimizer of this type begins
KIND_OF_ACTIVITY = {
    "cpu_op": "operator", "user_annotation": "annotation",
    "cuda_runtime": "runtime", "cuda_driver": "runtime", "hip_runtime": "runtime", "hip_driver": "runtime",
    "xpu_runtime": "runtime", "privateuse1_runtime": "runtime", "privateuse1_driver": "runtime",
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "cuda_sync": "sync",
}  # fmt: skip
RUNTIME_CALL = re.compile(r"^(cuda|hip|cu)[A-Z]|^INVALID$")  # INVALID: a call that Kineto has no name for
NO_KERNELS = (("Memcpy", "memcpy"), ("Memset", "memset"), *((name, "sync") for name in sorted(SYNC_NAMES)))
HOST_COLLECTIVE = re.compile(
    r"^(gloo:|c10d::)\w*(reduce|gather|scatter|broadcast|all_?to_?all|send|recv|barrier)"
)
PLAIN = '"Ev Idx"'  # all that an operator's arguments hold if it is no collective
NO_ARGS = Args()

Marker = tuple[int, int]


def read_events(
    events: list[Any], layers: dict[int, str], looks: Sequence[Look] = ()
) -> tuple[Recording, list[Marker]]:
    """Return the recording in a profiler's raw events, and the step markers as (number, time in ns).

    `layers` are the paths of the layer ranges by number; a range without one is left out. `looks` at the
    threads' CPU times become rows.
    Marker times count from the recording's origin.
    """
    names = [event.name() for event in events]
    waits = [blocking_call(name) for name in names]
    kinds = [
        "blocked" if wait else _kind(event, name)
        for event, name, wait in zip(events, names, waits, strict=True)
    ]
    marks = [MARKER.match(name) if name.startswith("daydream::") else None for name in names]
    markers = [
        (int(mark.group(1)), int(event.start_ns()))
        for event, mark in zip(events, marks, strict=True) if mark
    ]  # fmt: skip
    paths = [_path(name, layers) for name in names]
    ours = [name.startswith("daydream::") for name in names]
    left_open = _open_update(events, names, markers)
    if left_open is not None:
        row, update, _ = left_open
        kinds[row] = "annotation"
        names[row] = update
        ours[row] = False
    lines = _source_lines([each for each, name in zip(events, names, strict=True) if own_frame(name)])
    keep = [row for row, kind in enumerate(kinds) if kind is not None and (paths[row] or not ours[row])]
    events = [events[row] for row in keep]
    names = [waits[row] or names[row] for row in keep]
    paths = [paths[row] for row in keep]
    kind = np.array(
        [KINDS.index("module" if path else kinds[row] or "") for row, path in zip(keep, paths, strict=True)],
        np.int8,
    )
    columns: Columns = {"kind": kind}
    texts: Texts = {"kind": list(KINDS)}
    columns["start_ns"] = np.array([event.start_ns() for event in events], np.int64)
    columns["duration_ns"] = np.maximum(np.array([event.duration_ns() for event in events], np.int64), 0)
    if left_open is not None:
        columns["duration_ns"][keep.index(left_open[0])] = left_open[2]
    shown: list[str | None] = [path or plain_text(name) for path, name in zip(paths, names, strict=True)]
    _add_coded(columns, texts, "name", shown)
    _add_coded(columns, texts, "layer", paths)
    _add_host(columns, texts, events, kind)
    _add_arguments(columns, texts, events, kind)
    if lines.texts:
        called = kind <= KINDS.index("runtime")
        columns["stack"] = np.where(called, lines.of(columns["start_ns"], columns["tid"]), UNKNOWN)
        texts["stack"] = lines.texts
    add_cpu_times(columns, texts, looks)

    order = np.lexsort((-columns["duration_ns"], columns["start_ns"]))
    columns = {name: column[order] for name, column in columns.items()}
    origin = min([at for _, at in markers[:1]] + columns["start_ns"][:1].tolist(), default=0)
    columns["start_ns"] = columns["start_ns"] - origin
    columns = {
        name: column if name == "start_ns" else narrow(column, np.int8)
        for name, column in columns.items()
        if name in ("start_ns", "duration_ns", "kind", "name") or (column != FIELDS[name].null).any()
    }
    recording = Recording(columns, {name: texts[name] for name in columns if name in texts})
    recording.metadata.update(origin_ns=origin, notes=[])
    on_host = (kind <= KINDS.index("annotation")).tolist()
    recording.metadata[AUTOGRAD_THREADS] = {
        int(event.start_thread_id()): int(event.device_resource_id())
        for event, here in zip(events, on_host, strict=True) if here
    }  # fmt: skip
    _tell_collectives(recording)
    return recording, sorted((number, at - origin) for number, at in markers)


def _open_update(events: list[Any], names: list[str], markers: list[Marker]) -> tuple[int, str, int] | None:
    """Return row, name and duration in ns of the optimizer's step in which the recording ended.

    torch writes a range when it ends (2.11; 2.13 writes an open one too), and recording ends with the marker
    behind the optimizer's work, inside its range. None if the last step that began has its range.
    """
    begun = [(int(events[row].start_ns()), row) for row, name in enumerate(names) if UPDATE.match(name)]
    if not begun or not markers:
        return None
    begin, row = max(begun)
    for event, name in zip(events, names, strict=True):
        if name.startswith("Optimizer.step#") and 0 <= begin - int(event.start_ns()) <= int(
            event.duration_ns()
        ):
            return None
    kind = UPDATE.match(names[row])
    assert kind is not None  # noqa: S101 - it is one of those above
    end = max(at for _, at in markers)
    return (row, f"Optimizer.step#{kind.group(1)}.step", end - begin) if end > begin else None


def _source_lines(frames: list[Any]) -> SourceLines:
    """Return the frames of the program that the profiler recorded, with stacks."""
    lines = SourceLines()
    start, duration, thread = (
        np.array([int(each) for each in column], np.int64)
        for column in (
            [event.start_ns() for event in frames],
            [event.duration_ns() for event in frames],
            [event.device_resource_id() for event in frames],
        )
    )
    lines.add([event.name() for event in frames], start, duration, thread)
    return lines


def _kind(event: Any, name: str) -> str | None:
    """Return the kind of row an event becomes; None for the profiler's own spans and repeated annotations."""
    if hasattr(event, "activity_type"):
        return KIND_OF_ACTIVITY.get(event.activity_type())
    # An older torch (2.11, for one) tells the device and whether a person named the range.
    if is_frame(name) or name == MEMORY_EVENT:
        return None
    if str(event.device_type()).endswith("CPU"):
        if RUNTIME_CALL.match(name):
            return "runtime"
        return "annotation" if _is_annotation(event) else "operator"
    if _is_annotation(event):
        return None
    return next((kind for start, kind in NO_KERNELS if name.startswith(start)), "kernel")


def _is_annotation(event: Any) -> bool:
    return hasattr(event, "is_user_annotation") and bool(event.is_user_annotation())


def _path(name: str, layers: dict[int, str]) -> str | None:
    match = LAYER_RANGE.match(name) if name.startswith("daydream::") else None
    return layers.get(int(match.group(1))) if match else None


def _add_coded(columns: Columns, texts: Texts, name: str, values: list[str | None]) -> None:
    codes = Codes()
    columns[name] = codes.of(values)
    texts[name] = codes.values_in_order()


def _add_host(columns: Columns, texts: Texts, events: list[Any], kind: np.ndarray) -> None:
    """Add what ties rows together, and operators' inputs."""
    host = kind < len(HOST)
    named = kind <= KINDS.index("annotation")
    place, device, own, linked, sequence, forward = (
        np.array([*map(methodcaller(asked), events)], np.int64)
        for asked in (
            "device_resource_id",
            "device_index",
            "correlation_id",
            "linked_correlation_id",
            "sequence_nr",
            "fwd_thread_id",
        )
    )
    columns["tid"] = np.where(host, place, NO_ID)
    columns["pid"] = np.where(host, np.int64(os.getpid()), NO_ID)
    columns["stream"] = np.where(host, UNKNOWN, place)
    columns["device"] = np.where(host, UNKNOWN, device)
    # An operator's own id is its correlation id; runtime calls and device work name it as the linked one.
    columns["correlation"] = np.where(host & (kind != KINDS.index("runtime")), UNKNOWN, own)
    columns["external_id"] = np.where(named, own, np.where(linked > 0, linked, UNKNOWN))
    columns["sequence"] = np.where(named & (sequence >= 0), sequence, UNKNOWN)
    columns["forward_thread"] = np.where(named, forward, UNKNOWN)
    shapes: list[str | None] = []
    types: list[str | None] = []
    inputs: dict[tuple[str, ...], str | None] = {}
    for event, has_inputs in zip(events, named.tolist(), strict=True):
        given = event.dtypes() if has_inputs else []
        if not given:
            shapes.append(None)
            types.append(None)
            continue
        structured = getattr(event, "structured_input_shapes", event.shapes)
        shapes.append(json.dumps(structured(), separators=(",", ":")))
        key = tuple(given)
        if key not in inputs:
            inputs[key] = dtype_of_inputs(given)
        types.append(inputs[key])
    _add_coded(columns, texts, "shapes", shapes)
    _add_coded(columns, texts, "dtype", types)


def _add_arguments(columns: Columns, texts: Texts, events: list[Any], kind: np.ndarray) -> None:
    """Add the arguments of device work and of collectives, which the profiler keeps as JSON text."""
    args = [_arguments(event) for event in events]
    if all(one is NO_ARGS for one in args):
        return
    device = kind >= KINDS.index("kernel")
    ids = Numbers(UNKNOWN)
    for name in ("bytes", "graph_id", "graph_node", "wait_stream", "wait_correlation"):
        columns[name] = ids.of([getattr(one, name) for one in args])
    columns["elements"] = ids.of(
        [one.elements_out if one.elements_in in (-1, 0) else one.elements_in for one in args]
    )
    for name in ("device", "stream"):
        said = ids.of([getattr(one, name) for one in args])
        columns[name] = np.where(device & (said >= 0), said, columns[name])
    coded = {
        "grid": [triple(bytes(one.grid)) if one.grid != NOTHING else None for one in args],
        "block": [triple(bytes(one.block)) if one.block != NOTHING else None for one in args],
        "collective": [
            plain_text(bytes(one.collective)) if one.collective != NOTHING else None for one in args
        ],
        "group": [
            plain_text(group_of(one)) if one.group != NOTHING or one.group_ranks != NOTHING else None
            for one in args
        ],
    }
    for name, given in coded.items():
        _add_coded(columns, texts, name, given)
    words = [dtype_of_word(plain_text(bytes(one.dtype))) if one.dtype != NOTHING else None for one in args]
    inputs = [texts["dtype"][code] if code >= 0 else None for code in columns["dtype"].tolist()]
    _add_coded(columns, texts, "dtype", [first or word for first, word in zip(inputs, words, strict=True)])


def _tell_collectives(recording: Recording) -> None:
    """Give collectives that run on the host (gloo) their operation, elements and bytes, from their inputs."""
    rows = np.flatnonzero(recording.is_kind("operator", "annotation") & recording.named(HOST_COLLECTIVE))
    if not len(rows):
        return
    names = recording.texts_of("name", rows)
    shapes = recording.texts_of("shapes", rows)
    counts = [elements_of_dims(json.loads(shape)) if shape else None for shape in shapes]
    operations = [collective_of_name(name or "") for name in names]
    dtypes = recording.texts_of("dtype", rows)
    # The operator is given a list of tensors, and the profiler names no type for one; gloo's own row does.
    told: dict[tuple[str | None, int | None], set[str]] = {}
    for operation, number, dtype in zip(operations, counts, dtypes, strict=True):
        if dtype is not None:
            told.setdefault((operation, number), set()).add(dtype)
    for at, work in enumerate(zip(operations, counts, strict=True)):
        if dtypes[at] is None and len(found := told.get(work, set())) == 1:
            dtypes[at] = next(iter(found))
    recording.set_texts("dtype", rows, dtypes)
    sizes = [ITEM_BYTES.get(dtype or "") for dtype in dtypes]
    moved = [
        UNKNOWN if count is None or size is None else count * size
        for count, size in zip(counts, sizes, strict=True)
    ]
    recording.set_texts("collective", rows, operations)
    elements = [UNKNOWN if count is None else count for count in counts]
    recording.set_numbers("elements", rows, np.array(elements, np.int64))
    recording.set_numbers("bytes", rows, np.array(moved, np.int64))


def _arguments(event: Any) -> Args:
    text = event.metadata_json() if hasattr(event, "metadata_json") else ""
    if not text or (text.startswith(PLAIN) and "," not in text):
        return NO_ARGS
    try:
        return msgspec.json.decode(b"{" + text.encode() + b"}", type=Args)
    except (msgspec.MsgspecError, ValueError):
        return NO_ARGS
