"""What a profiler of ours recorded: its file, read as any other one, and the rows in it that are ours.

Layer ranges become rows of kind `module`; step markers are returned apart and leave no row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daydream.collect.derive.device_names import ITEM_BYTES, collective_of_name, elements_of_dims
from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.importers.kineto.reader import read_kineto
from daydream.collect.importers.kineto.values import outer_first
from daydream.collect.live.cpu_times import Look, add_cpu_times
from daydream.collect.live.layer_hooks import LAYER_RANGE
from daydream.trace.schema import UNKNOWN

OURS = "daydream::"
MARKER = re.compile(r"^daydream::marker (\d+)$")
MARKER_NAME = "daydream::marker {}"
UPDATE = re.compile(r"^daydream::update (\w+)$")
UPDATE_NAME = "daydream::update {}"  # where the step of an optimizer of this type begins
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
HOST_COLLECTIVE = re.compile(
    r"^(gloo:|c10d::)\w*(reduce|gather|scatter|broadcast|all_?to_?all|send|recv|barrier)"
)

Marker = tuple[int, int]


def read_profile(
    path: Path, layers: dict[int, str], looks: Sequence[Look] = ()
) -> tuple[Recording, list[Marker], int]:
    """Return a profiler's file as a recording, step markers as (number, time in ns), and how many layers ran.

    `layers` are the paths of the layer ranges by number; a range without one is left out. `looks` at the
    threads' CPU times become rows. Marker times count from the recording's origin.
    """
    recording = read_kineto(path)
    names = recording.text("name")
    start = recording["start_ns"]
    marks = {code: int(mark[1]) for code, name in enumerate(names) if (mark := MARKER.match(name))}
    rows = np.flatnonzero(np.isin(recording["name"], list(marks)))
    told = zip(recording["name"][rows].tolist(), start[rows].tolist(), strict=True)
    markers = [(marks[code], at) for code, at in told]
    _close_update(recording, markers)
    _cut_open_ranges(recording)
    paths = {
        code: layers.get(int(layer[1]))
        for code, name in enumerate(names)
        if (layer := LAYER_RANGE.match(name))
    }
    modules = [code for code, path in paths.items() if path is not None]
    known = np.isin(recording["name"], modules)
    # Torch's own rows of modules, which come with Python's frames, have no paths.
    keep = known | ~(recording.whose_name(lambda name: name.startswith(OURS)) | recording.is_kind("module"))
    recording.columns = {name: column[keep] for name, column in recording.columns.items()}
    rows = np.flatnonzero(known[keep])
    found = [paths[code] for code in recording["name"][rows].tolist()]
    for column, texts in (("name", found), ("layer", found), ("kind", ["module"] * len(rows))):
        recording.set_texts(column, rows, texts)
    kept, codes = np.unique(recording["name"], return_inverse=True)
    recording.columns["name"] = narrow(codes)
    recording.texts["name"] = [recording.text("name")[code] for code in kept.tolist()]

    origin = int(recording.metadata["origin_ns"])
    add_cpu_times(recording.columns, recording.texts, [(at - origin, used) for at, used in looks])
    order = outer_first(recording["start_ns"], recording["duration_ns"])
    recording.columns = {name: narrow(column[order], np.int8) for name, column in recording.columns.items()}
    first = min([at for _, at in markers[:1]] + recording["start_ns"][:1].tolist(), default=0)
    recording.columns["start_ns"] = recording["start_ns"] - first
    if recording.memory is not None:
        recording.memory = recording.memory.changed(time_ns=recording.memory["time_ns"] - first)
    recording.metadata = {"origin_ns": origin + first, "notes": recording.metadata["notes"]}
    _tell_collectives(recording)
    return recording, sorted((number, at - first) for number, at in markers), len(paths)


def _close_update(recording: Recording, markers: list[Marker]) -> None:
    """Give the optimizer's step in which the recording ended its range.

    torch writes a range when it ends (2.11; 2.13 writes an open one too), and recording ends with the marker
    behind the optimizer's work, inside its range.
    """
    begun = np.flatnonzero(recording.named(UPDATE))
    if not len(begun) or not markers:
        return
    start = recording["start_ns"]
    row = begun[start[begun].argmax()]
    steps = np.flatnonzero(recording.named(OPTIMIZER_STEP))
    inside = start[row] - start[steps]
    left = max(at for _, at in markers) - int(start[row])
    if ((inside >= 0) & (inside <= recording["duration_ns"][steps])).any() or left <= 0:
        return
    [name] = recording.texts_of("name", [row])
    recording.set_texts("name", np.array([row]), [UPDATE.sub(r"Optimizer.step#\1.step", name or "")])
    recording.set_texts("kind", np.array([row]), ["annotation"])
    recording.set_numbers("duration_ns", np.array([row]), np.array([left]))


def _cut_open_ranges(recording: Recording) -> None:
    """End ranges that were open at the end with the last row: torch has them last until it wrote them."""
    ranges = np.flatnonzero(recording.is_kind("annotation"))
    others = recording.is_kind("operator", "runtime")
    end = recording["start_ns"] + recording["duration_ns"]
    most = end[others].max(initial=0) - recording["start_ns"][ranges]
    recording.set_numbers(
        "duration_ns", ranges, np.minimum(recording["duration_ns"][ranges], np.maximum(most, 0))
    )


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
