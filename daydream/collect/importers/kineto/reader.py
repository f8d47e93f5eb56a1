"""Kineto JSON (what torch.profiler exports, since 2021) as a `Recording`.

This file and its neighbours are the only ones that know Kineto's names. Events are gathered block by block;
what a file says about machine, job and versions is kept by an allow-list of fields.

Of `[memory]` rows (`profile_memory=True`), instants of allocations and frees, `Device Type` counts as
PyTorch's `DeviceType`: 0 is the CPU, 1 CUDA, 6 HIP, 12 XPU, 20 what registers itself.

torch_npu writes `kernel_details.csv` beside `trace_view.json`: element types and shapes of an Ascend's
kernels, with the same names and times. Of formats other than `ND` and those of images, shapes are a device's
own layout and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from daydream.collect.derive.device_work import dtype_of_inputs, dtype_of_word
from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.derive.source_lines import (
    LEAST_BLOCKED_NS,
    SourceLines,
    blocking_call,
    own_frame,
)
from daydream.collect.importers.formats import Options
from daydream.collect.importers.kineto.blocks import BLOCK_BYTES, EventReader
from daydream.collect.importers.kineto.events import (
    CALLED,
    CATEGORIES,
    DEVICE,
    KINDS,
    LARGEST_US,
    LEGACY_CPU,
    LEGACY_DEVICE,
    NAMED,
    NPU_FLOW,
    SILENT,
    Args,
    Event,
    Header,
    Numbers,
    call_of_flow,
    compact_json,
    exact_ns,
    json_text,
    launch_with_neighbours,
    name_xpu_copies,
    other_row,
    parsed,
    start_ns,
    triple,
    vendor_of,
)
from daydream.collect.importers.row_builder import (
    NO_TIME,
    Codes,
    RowBuilder,
    device_of,
    note_left_out,
    plain_text,
    small_ids,
)
from daydream.errors import TraceError
from daydream.files.input_files import StrPath
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents, events_of
from daydream.trace.schema import NO_ID, UNKNOWN, Columns, Document, is_amount

ANNOTATIONS = (
    "ProfilerStep#",
    "Optimizer.",
    "enumerate(DataLoader)#",
)  # of category Operator in 2021
MODULE = "nn.Module: "
MEMORY_ROW = "[memory]"
NO_ARGS = Args()
CALLS = ("runtime", *DEVICE)
# Column: the field of the arguments, and the kinds of rows that have it.
TEXTS: dict[str, tuple[str, Collection[str]]] = {
    "shapes": ("dims", NAMED),
    "dtype": ("types", NAMED),
    "layer": ("hierarchy", NAMED),
    "collective": ("collective", ("operator", "kernel")),
    "grid": ("grid", ("runtime", "kernel")),
    "block": ("block", ("runtime", "kernel")),
}
NUMBERS: dict[str, tuple[tuple[str, ...], Collection[str]]] = {
    "external_id": (("external", "external_2021"), (*NAMED, *CALLS)),
    "sequence": (("sequence",), NAMED),
    "forward_thread": (("forward_thread",), NAMED),
    "correlation": (("correlation",), CALLS),
    "bytes": (("bytes", "size"), ("runtime", "memcpy", "memset")),
    "device": (("device",), DEVICE),
    "stream": (("stream", "sycl_queue"), DEVICE),
    "graph_id": (("graph_id",), DEVICE),
    "graph_node": (("graph_node",), DEVICE),
    "wait_stream": (("wait_stream",), ("sync",)),
    "wait_correlation": (("wait_correlation",), ("sync",)),
}
OF_MEMORY = {
    "kind": "device_type",
    "device": "device_id",
    "address": "address",
    "bytes": "memory_bytes",
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
}
LAST_TYPE = 20  # PrivateUse1
NONE = -(2**62)  # a number that no row has
RANGES = "cuda_profiler_range"  # of CUPTI's range profiler, which `costs/counters/formats.py` reads
RESUMES_NS = 100_000  # from the profiler's own time to the next row of its thread: 4 to 37 us
NEVER = LARGEST_BASE_NS = 2**62
NOTHING = (
    "holds no operator, runtime call or device work; record a training step with torch.profiler."
)


def read_kineto(
    path: StrPath,
    *,
    progress: Callable[[float], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_unpacked: int | None = None,
) -> Recording:
    """Return the recording in a Kineto JSON or JSON.gz file, of at most `max_unpacked` bytes of JSON.

    Raises `TraceError` if the file is no Kineto trace or holds no usable row.
    """
    reader = EventReader(path, block_bytes=block_bytes, max_unpacked=max_unpacked)
    rows = _Rows()
    for events in reader:
        rows.add(events)
        del events  # before the next ones are decoded
        if progress is not None:
            progress(reader.share)
    return rows.recording(reader)


def read_kineto_file(path: Path, options: Options) -> list[Recording]:
    """Return the recording in a Kineto file, as `read_kineto` does, as that of a format."""
    return [read_kineto(path, progress=options.progress, max_unpacked=options.max_unpacked)]


class _Rows:
    """The rows of one file, gathered in chunks, one a block and kind."""

    def __init__(self) -> None:
        self.builder = builder = RowBuilder()
        self.names = builder.codes("name", _name, empty=True)
        self.ranges = builder.codes("kind", _kind_of_range)
        self.paths = builder.codes("layer", _path_of_module)
        made: dict[str, Callable[[Any], str | None]] = {
            "shapes": compact_json,
            "dtype": lambda raw: dtype_of_inputs(parsed(raw)),
            "grid": triple,
            "block": triple,
        }
        self.codes = {name: builder.codes(name, made.get(name, json_text)) for name in TEXTS}
        self.groups = builder.codes("group", json_text)
        self.words = builder.codes("dtype", lambda raw: dtype_of_word(json_text(raw)))
        self.ids = Numbers(UNKNOWN)
        self.signed = Numbers(NONE)
        self.threads = Numbers(NO_ID)
        self.lines = SourceLines()
        self.categories: Counter[str] = Counter()
        self.of_npu = False
        self.annotated = 0  # nodes of CUDA graphs that torch has annotated
        self.vendor = ""
        self.memory: list[Columns] = []

    def add(self, events: list[Event]) -> None:
        """Append the rows of some events, which are used up."""
        groups: dict[str, list[Event]] = {kind: [] for kind in KINDS}
        append: dict[str | None, Callable[[Event], None]] = {
            category: groups[kind].append for category, kind in CATEGORIES.items()
        }
        memory: list[Event] = []
        for event in events:
            if event.ph == "X":
                try:
                    append[event.cat](event)
                except KeyError:
                    if event.cat is None or event.cat not in SILENT:
                        self._add_other(event, groups)
            elif event.name == MEMORY_ROW:
                memory.append(event)
            elif event.cat == NPU_FLOW and event.ph == "s":
                groups["runtime"].append(call_of_flow(event))
                self.of_npu = True
            elif event.ph == "C":  # samples of the GPU's counters
                self.categories[f"{event.cat or 'counter'}"[:40]] += 1
        if memory:
            self._add_memory(memory)
        if frames := [event for event in groups["module"] if type(event.name) is str]:
            groups["module"] = [event for event in frames if str(event.name).startswith(MODULE)]
            own = [event for event in frames if own_frame(str(event.name)) is not None]
            start, end = _times(own)
            tid = self.threads.of(_each("tid", own))
            length = np.where(end == NO_TIME, UNKNOWN, end - start)
            self.lines.add([str(event.name) for event in own], start, length, tid)
            calls = [(event, blocking_call(str(event.name))) for event in frames]
            groups["blocked"] += [replace(event, name=call) for event, call in calls if call]
        name_xpu_copies(groups["memcpy"])
        for kind, rows in groups.items():
            if rows:
                self._add(kind, rows)

    def _add_other(self, event: Event, groups: dict[str, list[Event]]) -> None:
        """Put a row of a category that not every device has to its kind, or count it as left out."""
        row = other_row(event)
        if row is not None and row[0]:
            groups[row[0]].append(row[1])
            if event.pid != LEGACY_CPU:
                self.vendor = vendor_of(event.cat)
        elif event.pid == LEGACY_DEVICE:
            self.categories[LEGACY_DEVICE] += 1
        elif row is None and event.cat not in SILENT:
            self.categories[str(event.cat)[:40]] += 1

    def _add(self, kind: str, events: list[Event]) -> None:
        """Add the events of one kind; annotations of category Operator and modules are told by their names."""
        start, end = _times(events)
        names = _each("name", events)
        kinds = np.repeat(self.builder.coded("kind", [kind]), len(events))
        chunk: Columns = {"name": self.names.of(names)}
        if kind not in DEVICE:
            chunk["pid"] = self.threads.of(_each("pid", events))
            chunk["tid"] = self.threads.of(_each("tid", events))
        if kind not in ("module", "blocked"):
            args = [event.args or NO_ARGS for event in events]
            for name, (field, of) in TEXTS.items():
                if kind in of:
                    chunk[name] = _coded(self.codes[name], field, args)
            for name, (fields, of) in NUMBERS.items():
                if kind in of:
                    chunk[name] = self._first_known(args, *fields)
            if "collective" in chunk and (chunk["collective"] >= 0).any():
                self._add_collectives(args, chunk)
            if kind in DEVICE:
                self._place(events, args, chunk)
        if kind in NAMED:
            ranges = self.ranges.of(names)
            if (ranges >= 0).any():
                kinds = np.where(ranges >= 0, ranges, kinds)
                paths = self.paths.of(names)  # of someone's own range, which names the whole path
                chunk["layer"] = np.where(paths >= 0, paths, chunk["layer"])
        self.builder.add(kinds, start, end, **chunk)

    def _add_collectives(self, args: list[Args], chunk: Columns) -> None:
        sent = self._first_known(args, "elements_in")
        chunk["elements"] = np.where(sent > 0, sent, self._first_known(args, "elements_out"))
        words = _coded(self.words, "dtype", args)
        chunk["dtype"] = np.where(words >= 0, words, chunk.get("dtype", UNKNOWN))
        named = _coded(self.groups, "group", args)
        ranks = _coded(self.groups, "group_ranks", args)
        chunk["group"] = np.where(named >= 0, named, ranks)

    def _place(self, events: list[Event], args: list[Args], chunk: Columns) -> None:
        """Say where device work without a place in its arguments ran: where pid and tid say."""
        self.annotated += sum(each.annotation is not None for each in args)
        if (self._first_known(args, "sycl_queue") >= 0).any():  # Intel's XPUs have no streams
            self.vendor = "xpu"
        for name, place in (("device", "pid"), ("stream", "tid")):
            if (chunk[name] < 0).any():
                there = self.ids.of(_each(place, events))
                chunk[name] = np.where(chunk[name] < 0, there, chunk[name])

    def _first_known(self, args: list[Args], *fields: str) -> np.ndarray:
        """Return a number a row, of the first of some fields that has one."""
        column = self.ids.of(_each(fields[0], args))
        for field in fields[1:]:
            if (column < 0).any():
                column = np.where(column < 0, self.ids.of(_each(field, args)), column)
        return column

    def _add_memory(self, rows: list[Event]) -> None:
        args = [row.args or NO_ARGS for row in rows]
        part = {"time_ns": start_ns(_each("ts", rows))}
        for name in ("pid", "tid"):
            part[name] = self.threads.of(_each(name, rows))
        for name, field in OF_MEMORY.items():
            part[name] = (self.signed if "bytes" in name else self.ids).of(_each(field, args))
        self.memory.append(part)

    def _memory_events(self, first_ns: int, recording: Recording) -> MemoryEvents | None:
        """Return the rows of memory in order of time, None if there are none; times count from `first_ns`.

        Rows without a time, a device or a number of bytes are left out, as are those of the kinds of device
        with fewer rows: devices of two kinds have the same numbers, and a process trains on one.
        """
        if not self.memory:
            return None
        columns = {
            name: np.concatenate([part[name] for part in self.memory]).astype(np.int64)
            for name in self.memory[0]
        }
        self.memory.clear()
        kind = columns.pop("kind")
        bad = (columns["time_ns"] == NO_TIME) | (kind < 0) | (kind > LAST_TYPE)
        bad |= (kind != 0) & (columns["device"] < 0)
        columns["time_ns"] = np.where(bad, 0, columns["time_ns"] - first_ns)
        columns["device"] = np.where(kind == 0, HOST, columns["device"])
        on_device = ~bad & (kind != 0)
        most = np.bincount(kind[on_device]).argmax() if on_device.any() else 0
        other = on_device & (kind != most)
        if found := int(other.sum()):
            note_left_out(recording, found, "of memory of a second kind of device")
        own = {name: column[~other] for name, column in columns.items()}
        return events_of(own, bad[~other], recording.metadata["notes"])

    def recording(self, reader: EventReader) -> Recording:
        """Return the recording of all rows, with what the file says besides."""
        path = reader.path
        header = reader.header
        if isinstance(header.otherData, dict) and "replayed_ns" in header.otherData:
            raise TraceError(
                f"{path} is a timeline that daydream wrote, to be looked at in Perfetto; "
                "give the trace that it was made from."
            )
        if LEGACY_DEVICE in self.categories:
            raise TraceError(
                f"{path} is the list of the old autograd profiler, which times operators on "
                "the device, but has no kernels; record with torch.profiler."
            )
        metadata = metadata_of(header)
        if self.vendor:
            metadata["vendor"] = self.vendor
        notes = metadata["notes"] = []
        if reader.mended:
            notes.append(
                f"Places that were no JSON (inf, quotes in texts, say) and were mended: {reader.mended}."
            )
        self.builder.left_out["could not be read"] += reader.unreadable
        recording = self.builder.recording(path, NOTHING, **metadata)
        first_ns = recording.metadata["origin_ns"]
        base_ns = header.baseTimeNanoseconds
        if isinstance(base_ns, int) and abs(base_ns) < LARGEST_BASE_NS:
            recording.metadata["origin_ns"] += base_ns
        columns = recording.columns
        if self.of_npu and {"pid", "correlation"} <= columns.keys():
            host = ~recording.is_kind(*DEVICE)
            columns["pid"][host] = 0  # each layer of software has a process number there; it is one
            columns["correlation"] = launch_with_neighbours(
                columns["correlation"], recording.is_kind("runtime"), ~host
            )
        if "correlation" in columns:
            columns["correlation"] = narrow(small_ids(columns["correlation"]))
        self._place_overhead(recording)
        if self.lines.texts:
            start = columns["start_ns"] + first_ns
            lines = self.lines.of(start, recording["tid"])
            columns["stack"] = np.where(recording.is_kind(*CALLED), lines, UNKNOWN)
            recording.texts["stack"] = self.lines.texts
        if self.annotated:
            nodes = counted(self.annotated, "node", "nodes")
            recording.note(f"Annotations of {nodes} of CUDA graphs (mark_kernels) were left out.")
        for category, count in sorted(self.categories.items()):
            if category == RANGES:
                recording.note(
                    f"{counted(count, 'row is', 'rows are')} counters of kernels ({RANGES}): give the file "
                    "with --counters, too."
                )
                continue
            note_left_out(recording, count, f"had the category {category!r} and")
        recording.memory = self._memory_events(first_ns, recording)
        if self.of_npu:
            add_details(recording, path)
        return recording

    def _place_overhead(self, recording: Recording) -> None:
        """Give the profiler's own time to the thread that goes on right behind it, as Kineto names none.

        What is no thread's has no length. That the command buffer was full was the device's doing.
        """
        columns = recording.columns
        overhead = np.flatnonzero(recording.is_kind("blocked") & (recording["pid"] == UNKNOWN))
        if not len(overhead):
            return
        called = np.flatnonzero(recording.is_kind(*CALLED))
        start = columns["start_ns"]
        end = start + columns["duration_ns"]
        edges = np.append(start[called], end[called])
        order = np.argsort(edges, kind="stable")
        edges = np.append(edges[order], NEVER)
        at = np.searchsorted(edges, end[overhead])
        near = edges[at] - end[overhead] <= RESUMES_NS
        near &= (end - start)[overhead] >= LEAST_BLOCKED_NS
        near &= np.searchsorted(edges, start[overhead], side="right") == at
        near &= ~recording.whose_name("Command Buffer Full".__eq__)[overhead]
        columns["duration_ns"][overhead[~near]] = 0
        if not near.all():
            self.categories["overhead"] += int((~near).sum())
        behind = np.append(called, called)[order[at[near]]]
        overhead = overhead[near]
        if not len(overhead):
            return
        for name in ("pid", "tid"):
            recording.set_numbers(name, overhead, columns[name][behind])
        texts = recording.texts_of("name", overhead)
        recording.set_texts("name", overhead, [f"profiler: {text}" for text in texts])


def _name(name: Any) -> str:
    return plain_text("" if name is None else str(name)).removeprefix(MODULE)


def _kind_of_range(name: Any) -> str:
    """Return the kind of a range that its name alone tells."""
    text = str(name)
    return (
        "module"
        if text.startswith(MODULE)
        else "annotation"
        if text.startswith(ANNOTATIONS)
        else ""
    )


def _path_of_module(name: Any) -> str:
    return _name(name) if str(name).startswith(MODULE) else ""


def _each(field: str, rows: Sequence[Event | Args]) -> list[Any]:
    return list(map(attrgetter(field), rows))


def _coded(codes: Codes, field: str, args: list[Args]) -> np.ndarray:
    """Return the codes of what undecoded JSON says; most columns say nothing of most rows."""
    raws = _each(field, args)
    if not b"".join(raws):
        return np.full(len(raws), UNKNOWN, np.int8)
    return codes.of(list(map(bytes, raws)))


def _times(events: list[Event]) -> tuple[np.ndarray, np.ndarray]:
    """Return when events start and end, in ns, both `NO_TIME` where that is unreadable."""
    start = start_ns(_each("ts", events))
    values = _each("dur", events)
    try:
        us = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        found = [exact_ns(str(value)) for value in values]
        us = np.where(np.array(found) == NO_TIME, np.nan, np.array(found) / 1000)
    bad = (start == NO_TIME) | ~(np.abs(us) <= LARGEST_US)
    duration = np.rint(np.where(bad, 0, us) * 1000).astype(np.int64)
    return np.where(bad, NO_TIME, start), np.where(bad, NO_TIME, start + duration)


# What is said of machine and job.

VERSION_FIELDS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
)


def metadata_of(header: Header) -> Document:
    """Return a trace's metadata: devices, rank, world size, groups, versions."""
    metadata: Document = {}
    if devices := [
        device_of(one, **({"id": one["id"]} if is_amount(one.get("id")) else {}))
        for one in _dicts(header.deviceProperties)
    ]:
        metadata["devices"] = devices
    world = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    for name in ("rank", "world_size"):
        if _is_count(world.get(name)) and (name == "rank" or world[name]):
            metadata[name] = world[name]
    if isinstance(world.get("backend"), str):
        metadata["backend"] = plain_text(world["backend"])
    if groups := [_group(one) for one in _dicts(world.get("pg_config"))]:
        metadata["groups"] = groups
    versions: Document = {name: getattr(header, name) for name in VERSION_FIELDS}
    versions["nccl_version"] = world.get("nccl_version")
    told = {
        name: plain_text(str(told))
        for name, told in versions.items()
        if isinstance(told, (str, int, float))
    }
    return {**metadata, "versions": told} if told else metadata


def _dicts(value: Any) -> list[Document]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_count(value: Any) -> bool:
    return is_amount(value) and value < 2**31


def _group(given: Document) -> Document:
    ranks = given.get("ranks")
    return {
        "name": plain_text(str(given.get("pg_name", ""))),
        "description": plain_text(str(given.get("pg_desc", ""))),
        "ranks": [rank for rank in ranks if _is_count(rank)] if isinstance(ranks, list) else [],
    }


BESIDE = "kernel_details.csv"
NEEDED = ("name", "start time(us)", "input shapes", "input data types")
FORMATS = "input formats"
LONGEST = 1 << 28  # bytes of a table
PLAIN = ("ND", "NCHW", "NHWC", "NCL", "NCDHW", "NDHWC")
SIZES = regex(r"^\d{1,15}(,\d{1,15})*\Z")
Details = dict[tuple[int, str | None], tuple[str | None, str | None]]


def add_details(recording: Recording, path: Path) -> None:
    """Give kernels the types and shapes that the table beside their file has, and say of how many."""
    table = path.parent / BESIDE
    kernels = np.flatnonzero(recording.is_kind("kernel"))
    try:
        if not len(kernels) or table.stat().st_size > LONGEST:
            return
        told = details_of(table.read_text("utf-8-sig", "replace"))
    except OSError:
        return
    if told is None:
        recording.note(f"{BESIDE} next to the trace is not a table of kernels, and was not used.")
        return
    start = recording["start_ns"][kernels] + int(recording.metadata["origin_ns"])
    names = recording.texts_of("name", kernels)
    found = [told.get((at, name)) for at, name in zip(start.tolist(), names, strict=True)]
    known = [one for one in found if one is not None]
    if not known:
        recording.note(f"{BESIDE} next to the trace is of another recording, and was not used.")
        return
    rows = kernels[[one is not None for one in found]]
    for column, values in zip(("dtype", "shapes"), zip(*known, strict=True), strict=True):
        recording.set_texts(column, rows, values)
    recording.note(
        f"Element types and shapes of {len(rows):,} of {len(kernels):,} kernels are those of {BESIDE} "
        "next to the trace."
    )


def details_of(text: str) -> Details | None:
    """Return type and shapes by start in ns and name; None if the text is not such a table."""
    import csv

    found: Details = {}
    try:
        rows = csv.reader(text.replace("\0", "").splitlines())
        header = [name.strip().lower() for name in next(rows, [])]
        if not set(NEEDED) <= set(header):
            return None
        for row in rows:
            given = {name: value.strip() for name, value in zip(header, row, strict=False)}
            if len(row) != len(header):
                continue
            name, start, shapes, types = (given[column] for column in NEEDED)
            if (at := exact_ns(start)) != NO_TIME:
                found[at, name] = (
                    dtype_of_inputs(types.replace("DT_", "").split(";")),
                    _shapes(shapes, given.get(FORMATS, "")),
                )
    except csv.Error:
        return None
    return found


def _shapes(shapes: str, formats: str) -> str | None:
    """Return the shapes of the inputs as JSON text; None where one is a layout of the device's own."""
    parts = [part.strip() for part in shapes.strip('"').split(";")]
    layouts = [one.strip().removeprefix("FORMAT_") for one in formats.split(";") if one.strip()]
    plain = all(one in PLAIN for one in layouts)
    if not plain or not any(parts) or not all(SIZES.match(part) for part in parts if part):
        return None
    return "[" + ",".join(f"[{part}]" for part in parts) + "]"
