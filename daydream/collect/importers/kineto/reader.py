"""What a Kineto file says about machine, job and versions, by an allow-list of fields.

Element types and shapes of an Ascend's kernels, from `kernel_details.csv` beside `trace_view.json`.

torch_npu writes both into one folder (`ASCEND_PROFILER_OUTPUT`), with the same names and times. Columns are
`Name`, `Start Time(us)`, `Input Shapes` (`"2048,4096;4096,512"`) and `Input Data Types` (`DT_BF16;DT_BF16`,
or `FLOAT16` in older versions), the others differ between versions. Of formats other than `ND` and those of
images, shapes are a device's own layout and are left out.

Kineto JSON (what torch.profiler exports, since 2021) as a `Recording`.

This file and its neighbours `kineto_*` are the only ones that know Kineto's names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.derive.source_lines import LEAST_BLOCKED_NS
from daydream.collect.importers.formats import Options
from daydream.collect.importers.kineto.blocks import BLOCK_BYTES, EventReader
from daydream.collect.importers.kineto.events import (
    CALLED,
    DEVICE,
    HOST,
    KINDS,
    LEGACY_DEVICE,
    Header,
    is_kind,
    launch_with_neighbours,
)
from daydream.collect.importers.kineto.rows import MODULE, Rows
from daydream.collect.importers.kineto.values import (
    Codes,
    Names,
    NeedsDigitsError,
    compact_json,
    device_of,
    element_types,
    in_order,
    plain_text,
    small_ids,
    triple,
)
from daydream.errors import TraceError
from daydream.files.input_files import StrPath
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.schema import UNKNOWN, Columns, Document, Texts
from daydream.trace.valid import is_amount

VERSION_FIELDS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
)


def metadata_of(header: Header, path: Path) -> Document:
    """Return a trace's metadata: source (the file's name), devices, rank, world size, groups, versions."""
    metadata: Document = {"source": plain_text(path.name), "notes": []}
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
    if told:
        metadata["versions"] = told
    return metadata


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
NAME, START, SHAPES, TYPES, FORMATS = (
    "name", "start time(us)", "input shapes", "input data types", "input formats",
)  # fmt: skip
LONGEST = 1 << 28  # bytes of a table
PLAIN = ("ND", "NCHW", "NHWC", "NCL", "NCDHW", "NDHWC")
TORCH = {
    "FLOAT": "float32", "FLOAT16": "float16", "BF16": "bfloat16", "BFLOAT16": "bfloat16", "DOUBLE": "float64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool",
}  # fmt: skip
SIZES = regex(r"^\d{1,15}(,\d{1,15})*\Z")


def add_details(recording: Recording, path: Path) -> None:
    """Give kernels the types and shapes that the table beside their file has, and say of how many."""
    table = path.parent / BESIDE
    kernels = np.flatnonzero(recording.is_kind("kernel"))
    try:
        if not len(kernels) or table.stat().st_size > LONGEST:
            return
        text = table.read_text("utf-8-sig", "replace")
    except OSError:
        return
    told = details_of(text)
    if told is None:
        recording.note(f"{BESIDE} next to the trace is not a table of kernels, and was not used.")
        return
    start = recording["start_ns"][kernels].astype(np.int64) + int(recording.metadata["origin_ns"])
    names = recording.texts_of("name", kernels)
    found = [told.get((at, name)) for at, name in zip(start.tolist(), names, strict=True)]
    known = np.array([one is not None for one in found], bool)
    if not known.any():
        recording.note(f"{BESIDE} next to the trace is of another recording, and was not used.")
        return
    rows = kernels[known]
    for column, values in (
        ("dtype", [one[0] for one in found if one is not None]),
        ("shapes", [one[1] for one in found if one is not None]),
    ):
        recording.set_texts(column, rows, values)
    recording.note(
        f"Element types and shapes of {len(rows):,} of {len(kernels):,} kernels are those of {BESIDE} "
        "next to the trace."
    )


def details_of(text: str) -> dict[tuple[int, str | None], tuple[str | None, str | None]] | None:
    """Return type and shapes by start in ns and name; None if the text is not such a table."""
    import csv

    try:
        rows = csv.reader(text.replace("\0", "").splitlines())
        header = [name.strip().lower() for name in next(rows, [])]
        if not {NAME, START, SHAPES, TYPES} <= set(header):
            return None
        places = [header.index(one) for one in (NAME, START, SHAPES, TYPES)]
        formats = header.index(FORMATS) if FORMATS in header else None
        found: dict[tuple[int, str | None], tuple[str | None, str | None]] = {}
        for row in rows:
            if len(row) != len(header):
                continue
            name, start, shapes, types = (row[place].strip() for place in places)
            whole, _, part = start.partition(".")
            digits = whole + part.ljust(3, "0")[:3]
            if digits.isdigit() and digits.isascii() and len(digits) < 20:
                layouts = "" if formats is None else row[formats].strip()
                found[int(digits), name] = (_type(types), _shapes(shapes, layouts))
    except csv.Error:
        return None
    return found


def _type(types: str) -> str | None:
    """Return the type of the first input that is a number with a fraction, else of the first known one."""
    known = [TORCH.get(one.strip().removeprefix("DT_").upper()) for one in types.split(";")]
    first = next((one for one in known if one is not None), None)
    return next((one for one in known if one is not None and "float" in one), first)


def _shapes(shapes: str, formats: str) -> str | None:
    """Return the shapes of the inputs as JSON text; None where one is a layout of the device's own."""
    parts = [part.strip() for part in shapes.strip('"').split(";")]
    plain = all(
        one.strip().removeprefix("FORMAT_") in PLAIN for one in formats.split(";") if one.strip()
    )
    if not plain or not any(parts) or not all(SIZES.match(part) for part in parts if part):
        return None
    return "[" + ",".join(f"[{part}]" for part in parts) + "]"


RANGES = "cuda_profiler_range"  # of CUPTI's range profiler, which `costs/counters/formats.py` reads
RESUMES_NS = 100_000  # from the profiler's own time to the next row of its thread: 4 to 37 us
LARGEST_BASE_NS = NEVER = 2**62


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
    how: Document = {"block_bytes": block_bytes, "max_unpacked": max_unpacked}
    try:
        return _gathered(EventReader(path, **how), progress)
    except NeedsDigitsError:
        return _gathered(EventReader(path, **how, exact_times=True), progress)


def read_kineto_file(path: Path, options: Options) -> list[Recording]:
    """Return the recording in a Kineto file, as `read_kineto` does, as that of a format."""
    return [read_kineto(path, progress=options.progress, max_unpacked=options.max_unpacked)]


def _gathered(reader: EventReader, progress: Callable[[float], None] | None) -> Recording:
    rows = Rows(exact=reader.exact_times)
    for events in reader:
        rows.add(events)
        del events  # before the next ones are decoded
        if progress is not None:
            progress(reader.share)
    return _Importer(reader, rows).recording()


class _Importer:
    """Makes a recording of the rows of a file that was read."""

    def __init__(self, reader: EventReader, rows: Rows) -> None:
        self.reader = reader
        self.rows = rows
        self.left_out = rows.left_out
        self.codes = rows.codes

    def recording(self) -> Recording:
        columns = self._columns()
        other = self.reader.header.otherData
        if isinstance(other, dict) and "replayed_ns" in other:
            raise TraceError(
                f"{self.reader.path} is a timeline that daydream wrote, to be looked at in Perfetto; "
                "give the trace that it was made from."
            )
        if LEGACY_DEVICE in self.rows.categories:
            raise TraceError(
                f"{self.reader.path} is the list of the old autograd profiler, which times operators on "
                "the device, but has no kernels; record with torch.profiler."
            )
        if not len(columns["start_ns"]):
            raise TraceError(
                f"{self.reader.path} holds no operator, runtime call or device work; record a training step "
                "with torch.profiler."
            )
        header = self.reader.header
        base_ns = header.baseTimeNanoseconds
        first_ns = int(columns["start_ns"][0])
        columns["start_ns"] -= first_ns
        metadata = metadata_of(header, self.reader.path)
        if self.rows.vendor:
            metadata["vendor"] = self.rows.vendor
        metadata["origin_ns"] = first_ns + (
            base_ns if isinstance(base_ns, int) and abs(base_ns) < LARGEST_BASE_NS else 0
        )
        memory = self.rows.memory.events(first_ns)
        self._note(metadata["notes"])
        metadata["notes"] += self.rows.memory.notes
        recording = Recording(columns, self._texts(columns), metadata, memory)
        if self.rows.of_npu:
            add_details(recording, Path(self.reader.path))
        return recording

    def _columns(self) -> Columns:
        """Return the whole columns in order of start, outer rows first, without rows at absurd times."""
        growing = self.rows.growing
        order, start, duration = in_order(growing, self.left_out)
        columns = {"start_ns": start, "duration_ns": duration}
        for name in sorted(growing.columns):
            columns[name] = growing.take(name)[order]
        if self.rows.of_npu and {"pid", "correlation"} <= columns.keys():
            host, call, work = (is_kind(columns, kinds) for kinds in (HOST, ("runtime",), DEVICE))
            columns["pid"][host] = (
                0  # each layer of software has a process number there; it is one process
            )
            columns["correlation"] = launch_with_neighbours(columns["correlation"], call, work)
        if "correlation" in columns:
            columns["correlation"] = small_ids(columns["correlation"])
        if "kind" in columns and is_kind(columns, ("blocked",)).any():
            self._place_overhead(columns)
        if self.rows.lines.texts and "tid" in columns:  # else no row is on a thread
            called = is_kind(columns, CALLED)
            columns["stack"] = np.where(called, self.rows.lines.of(start, columns["tid"]), UNKNOWN)
        return columns

    def _place_overhead(self, columns: Columns) -> None:
        """Give the profiler's own time to the thread that goes on right behind it, as Kineto names none.

        What is no thread's has no length. That the command buffer was full was the device's doing.
        """
        overhead = np.flatnonzero(is_kind(columns, ("blocked",)) & (columns["pid"] == UNKNOWN))
        called = np.flatnonzero(is_kind(columns, CALLED))
        start = columns["start_ns"]
        end = columns["start_ns"] + columns["duration_ns"]
        edges = np.append(start[called], end[called])
        order = np.argsort(edges, kind="stable")
        edges = np.append(edges[order], NEVER)
        at = np.searchsorted(edges, end[overhead])
        near = (edges[at] - end[overhead] <= RESUMES_NS) & (end - start >= LEAST_BLOCKED_NS)[
            overhead
        ]
        near &= np.searchsorted(edges, start[overhead], side="right") == at
        near &= columns["name"][overhead] != self.rows.names.get("Command Buffer Full", UNKNOWN)
        columns["duration_ns"][overhead[~near]] = 0
        if not near.all():
            self.rows.categories["overhead"] += int((~near).sum())
        behind = np.append(called, called)[order[at[near]]]
        overhead = overhead[near]
        for name in ("pid", "tid"):
            columns[name][overhead] = columns[name][behind]
        texts = self.rows.names.values_in_order()
        named = [f"profiler: {texts[code]}" for code in columns["name"][overhead].tolist()]
        columns["name"] = columns["name"].astype(np.int32)
        columns["name"][overhead] = self.rows.names.of(named)

    def _texts(self, columns: Columns) -> Texts:
        """Return the texts of the coded columns, each once; the texts that say nothing become unknown."""
        element_types(columns, self.codes)
        read: dict[str, Callable[[Any], str]] = {
            "grid": triple,
            "block": triple,
            "shapes": compact_json,
        }
        texts = {
            name: [read.get(name, plain_text)(value) for value in codes.values_in_order()]
            for name, codes in self.codes.items() if name in columns
        }  # fmt: skip
        texts["name"] = [
            plain_text(name).removeprefix(MODULE) for name in self.rows.names.values_in_order()
        ]
        for name, given in texts.items():
            codes = Names() if name == "name" else Codes()
            table = [codes[text] for text in given]
            if table != list(range(len(given))):
                columns[name] = np.array([*table, UNKNOWN], columns[name].dtype)[columns[name]]
            texts[name] = codes.values_in_order()
        texts["kind"] = list(KINDS)
        if "stack" in columns:
            texts["stack"] = self.rows.lines.texts
        return texts

    def _note(self, notes: list[str]) -> None:
        def tell(count: int, what: str) -> None:
            notes.append(
                f"{counted(count, 'row', 'rows')} {what} and {'was' if count == 1 else 'were'} left out."
            )

        if self.reader.mended:
            notes.append(
                f"Places that were no JSON (inf, quotes in texts, say) and were mended: {self.reader.mended}."
            )
        if self.reader.unreadable:
            tell(self.reader.unreadable, "could not be read")
        for reason, count in sorted((+self.left_out).items()):
            tell(count, reason)
        if self.rows.annotated:
            nodes = counted(self.rows.annotated, "node", "nodes")
            notes.append(f"Annotations of {nodes} of CUDA graphs (mark_kernels) were left out.")
        for category, count in sorted(self.rows.categories.items()):
            if category == RANGES:
                notes.append(
                    f"{counted(count, 'row is', 'rows are')} counters of kernels ({RANGES}): give the file "
                    "with --counters, too."
                )
                continue
            tell(count, f"had the category {category!r}")
