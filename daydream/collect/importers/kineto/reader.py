"""Kineto JSON (what torch.profiler exports, since 2021) as a `Recording`.

This file and its neighbours `kineto_*` are the only ones that know Kineto's names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.importers.kineto.blocks import BLOCK_BYTES, EventReader
from daydream.collect.importers.kineto.devices import launch_with_neighbours, small_ids
from daydream.collect.importers.kineto.kernel_details import add_details
from daydream.collect.importers.kineto.kinds import CALLED, DEVICE, HOST, KINDS, is_kind
from daydream.collect.importers.kineto.metadata import metadata_of
from daydream.collect.importers.kineto.parts import json_bytes
from daydream.collect.importers.kineto.rows import MODULE, Rows
from daydream.collect.importers.kineto.values import (
    Codes,
    Names,
    NeedsDigitsError,
    compact_json,
    element_types,
    outer_first,
    plain_text,
    triple,
)
from daydream.errors import TraceError
from daydream.parallel.ahead import ahead
from daydream.text import counted
from daydream.trace.schema import UNKNOWN

if TYPE_CHECKING:
    from daydream.collect.importers.kineto.readers import Readers

RANGES = "cuda_profiler_range"  # of CUPTI's range profiler, which `costs/kineto_counters.py` reads
WORTH_A_THREAD = 4 << 20  # bytes of JSON
DAY_NS = 86_400_000_000_000
LARGEST_BASE_NS = 2**62


def read_kineto(
    path: str | os.PathLike[str],
    *,
    progress: Callable[[float], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_unpacked: int | None = None,
    readers: Readers | None = None,
) -> Recording:
    """Return the recording in a Kineto JSON or JSON.gz file, of at most `max_unpacked` bytes of JSON.

    `readers` are processes that read parts of a large file side by side; the recording is the same.

    Raises `TraceError` if the file is no Kineto trace or holds no usable row.
    """
    how: dict[str, Any] = {"block_bytes": block_bytes, "max_unpacked": max_unpacked}
    try:
        return _gathered(EventReader(path, **how), readers, progress)
    except NeedsDigitsError:
        return _gathered(EventReader(path, **how, exact_times=True), readers, progress)


def _gathered(
    reader: EventReader, readers: Readers | None, progress: Callable[[float], None] | None
) -> Recording:
    rows = None if readers is None else readers.rows(reader, progress)
    if rows is None:
        rows = Rows(exact=reader.exact_times)
        blocks = iter(reader)
        if reader.scans and json_bytes(reader.path) >= WORTH_A_THREAD:
            blocks = ahead(blocks)
        for events in blocks:
            rows.add(events)
            del events  # before the next ones are decoded
            if progress is not None:
                progress(reader.share)
    return _Importer(reader, rows).recording()


class _Importer:
    """Makes a recording of the rows of a file that was read."""

    def __init__(self, reader: EventReader, rows: Rows) -> None:
        self.reader, self.rows = reader, rows
        self.left_out, self.codes = rows.left_out, rows.codes

    def recording(self) -> Recording:
        columns = self._columns()
        other = self.reader.header.otherData
        if isinstance(other, dict) and "replayed_ns" in other:
            raise TraceError(
                f"{self.reader.path} is a timeline that daydream wrote, to be looked at in Perfetto; "
                "give the trace that it was made from."
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

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the whole columns in order of start, outer rows first, without rows at absurd times."""
        growing = self.rows.growing
        start, duration = growing.take("start_ns"), growing.take("duration_ns")
        order = outer_first(start, duration)
        start = start[order]
        if len(start):
            odd = np.abs(start - start[len(start) // 2]) > DAY_NS
            odd |= duration[order] > DAY_NS
            if odd.any():
                self.left_out["began or lasted more than a day away from the others"] += int(odd.sum())
                order, start = order[~odd], start[~odd]
        columns = {"start_ns": start, "duration_ns": narrow(duration[order])}
        for name in sorted(growing.columns):
            columns[name] = growing.take(name)[order]
        if self.rows.of_npu and {"pid", "correlation"} <= columns.keys():
            host, call, work = (is_kind(columns, kinds) for kinds in (HOST, ("runtime",), DEVICE))
            columns["pid"][host] = 0  # each layer of software has a process number there; it is one process
            columns["correlation"] = launch_with_neighbours(columns["correlation"], call, work)
        if "correlation" in columns:
            columns["correlation"] = small_ids(columns["correlation"])
        if self.rows.lines.texts and "tid" in columns:  # else no row is on a thread
            called = is_kind(columns, CALLED)
            columns["stack"] = np.where(called, self.rows.lines.of(start, columns["tid"]), UNKNOWN)
        return columns

    def _texts(self, columns: dict[str, np.ndarray]) -> dict[str, list[str]]:
        """Return the texts of the coded columns, each once; the texts that say nothing become unknown."""
        element_types(columns, self.codes)
        read: dict[str, Callable[[Any], str]] = {"grid": triple, "block": triple, "shapes": compact_json}
        texts = {
            name: [read.get(name, plain_text)(value) for value in codes.values_in_order()]
            for name, codes in self.codes.items() if name in columns
        }  # fmt: skip
        texts["name"] = [plain_text(name).removeprefix(MODULE) for name in self.rows.names.values_in_order()]
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

        if self.reader.unreadable:
            tell(self.reader.unreadable, "could not be read")
        for reason, count in sorted((+self.left_out).items()):
            tell(count, reason)
        for category, count in sorted(self.rows.categories.items()):
            if category == RANGES:
                notes.append(
                    f"{counted(count, 'row is', 'rows are')} counters of kernels ({RANGES}): give the file "
                    "with --counters, too."
                )
                continue
            tell(count, f"had the category {category!r}")
