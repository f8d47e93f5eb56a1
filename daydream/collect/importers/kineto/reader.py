"""Kineto JSON (what torch.profiler exports, since 2021) as a `Recording`.

This file and its neighbours `kineto_*` are the only ones that know Kineto's names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.derive.source_lines import SourceLines, own_frame
from daydream.collect.importers.growing import GrowingColumns, null_of
from daydream.collect.importers.kineto.blocks import BLOCK_BYTES, EventReader
from daydream.collect.importers.kineto.devices import (
    call_of_flow,
    is_flow_of_npu,
    launch_with_neighbours,
    name_xpu_copies,
    other_row,
    small_ids,
    vendor_of,
)
from daydream.collect.importers.kineto.events import Args, Event
from daydream.collect.importers.kineto.kinds import (
    CALLED,
    CATEGORIES,
    DEVICE,
    HOST,
    KINDS,
    NAMED,
    SILENT,
    is_kind,
)
from daydream.collect.importers.kineto.memory_rows import MEMORY_ROW, MemoryRows
from daydream.collect.importers.kineto.metadata import metadata_of
from daydream.collect.importers.kineto.values import (
    Codes,
    Names,
    NeedsDigitsError,
    Numbers,
    compact_json,
    duration_ns,
    element_types,
    group_of,
    outer_first,
    plain_text,
    start_ns,
    triple,
)
from daydream.errors import TraceError
from daydream.text import counted
from daydream.trace.schema import NO_ID, UNKNOWN

ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#")  # of category Operator in 2021
MODULE = "nn.Module: "
DAY_NS = 86_400_000_000_000
LARGEST_BASE_NS = 2**62

NO_ARGS = Args()


def read_kineto(
    path: str | os.PathLike[str],
    *,
    progress: Callable[[float], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_unpacked: int | None = None,
) -> Recording:
    """Return the recording in a Kineto JSON or JSON.gz file, of at most `max_unpacked` bytes of JSON.

    Raises `TraceError` if the file is no Kineto trace or holds no usable row.
    """
    how: dict[str, Any] = {"progress": progress, "block_bytes": block_bytes, "max_unpacked": max_unpacked}
    try:
        return _Importer(EventReader(path, **how)).recording()
    except NeedsDigitsError:
        return _Importer(EventReader(path, **how, exact_times=True)).recording()


class _Importer:
    """Columns of one file, gathered in chunks: one a block and kind."""

    def __init__(self, reader: EventReader) -> None:
        self.reader = reader
        self.names = Names()
        self.annotations: list[int] = []
        self.modules: list[int] = []
        self.codes = {
            name: Codes()
            for name in ("shapes", "types", "grid", "block", "layer", "collective", "word", "group")
        }
        self.ids, self.threads = Numbers(UNKNOWN), Numbers(NO_ID)
        self.lines = SourceLines()
        self.growing = GrowingColumns(frozenset({"kind", "name", *self.codes}))
        self.categories: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.of_npu, self.vendor = False, ""
        self.memory = MemoryRows()

    def recording(self) -> Recording:
        for events in self.reader:
            self._sort_out(events)
            del events  # before the next ones are decoded
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
        if self.vendor:
            metadata["vendor"] = self.vendor
        metadata["origin_ns"] = first_ns + (
            base_ns if isinstance(base_ns, int) and abs(base_ns) < LARGEST_BASE_NS else 0
        )
        memory = self.memory.events(first_ns, self.threads, exact=self.reader.exact_times)
        self._note(metadata["notes"])
        metadata["notes"] += self.memory.notes
        return Recording(columns, self._texts(columns), metadata, memory)

    def _sort_out(self, events: list[Event]) -> None:
        groups: dict[str, list[Event]] = {kind: [] for kind in KINDS}
        append = {category: groups[kind].append for category, kind in CATEGORIES.items()}
        for event in events:
            if event.ph == "X":
                add = append.get(event.cat)  # type: ignore[arg-type]
                if add is not None:
                    add(event)
                elif event.cat is None or event.cat not in SILENT:
                    self._sort_out_other(event, groups)
            elif event.name == MEMORY_ROW:
                self.memory.append(event)
            elif is_flow_of_npu(event):
                groups["runtime"].append(call_of_flow(event))
                self.of_npu = True
        frames = [event for event in groups["module"] if type(event.name) is str]
        groups["module"] = [event for event in frames if str(event.name).startswith(MODULE)]
        self._add_lines([event for event in frames if own_frame(str(event.name)) is not None])
        name_xpu_copies(groups["memcpy"])
        for kind in KINDS:
            if groups[kind]:
                self._add(kind, groups.pop(kind))

    def _sort_out_other(self, event: Event, groups: dict[str, list[Event]]) -> None:
        """Put a row of a category that not every device has to its kind, or count it as left out."""
        row = other_row(event)
        if row is not None and row[0]:
            groups[row[0]].append(row[1])
            self.vendor = vendor_of(event.cat)
        elif row is None and event.cat not in SILENT:
            self.categories[str(event.cat)[:40]] += 1

    def _add_lines(self, frames: list[Event]) -> None:
        start, no_start = start_ns([event.ts for event in frames], exact=self.reader.exact_times)
        duration, no_duration = duration_ns([event.dur for event in frames])
        duration = np.where(no_start | no_duration, UNKNOWN, duration)
        self.lines.add(
            [str(event.name) for event in frames], start, duration, self.threads.of([e.tid for e in frames])
        )

    def _add(self, kind: str, events: list[Event]) -> None:
        """Make a chunk of the events of one kind; of its columns keep those that hold anything."""
        chunk: dict[str, np.ndarray] = {}
        chunk["start_ns"], no_start = start_ns([event.ts for event in events], exact=self.reader.exact_times)
        chunk["duration_ns"], no_duration = duration_ns([event.dur for event in events])
        known = len(self.names)
        chunk["name"] = self.names.of([event.name for event in events])
        if len(self.names) > known:
            self._look_at_names(known)
        if kind in HOST:
            chunk["pid"] = self.threads.of([event.pid for event in events])
            chunk["tid"] = self.threads.of([event.tid for event in events])
        if kind != "module":
            self._add_args(kind, events, chunk)
        bad = no_start | no_duration
        negative = ~bad & (chunk["duration_ns"] < 0)
        if (bad | negative).any():
            self.left_out["had no readable time"] += int(bad.sum())
            self.left_out["had a negative duration"] += int(negative.sum())
            chunk = {name: column[~(bad | negative)] for name, column in chunk.items()}
        if kind in NAMED and (self.modules or (self.annotations and kind == "operator")):
            self._split_ranges(kind, chunk)
        else:
            self._keep(kind, chunk)

    def _add_args(self, kind: str, events: list[Event], chunk: dict[str, np.ndarray]) -> None:
        args = [event.args or NO_ARGS for event in events]
        codes, ids = self.codes, self.ids.of
        chunk["external_id"] = ids([a.external for a in args])
        if (chunk["external_id"] < 0).any():
            older = ids([a.external_2021 for a in args])
            chunk["external_id"] = np.where(chunk["external_id"] < 0, older, chunk["external_id"])
        if kind in NAMED:
            chunk["sequence"] = ids([a.sequence for a in args])
            chunk["forward_thread"] = ids([a.forward_thread for a in args])
            chunk["shapes"] = codes["shapes"].of_json([a.dims for a in args])
            chunk["types"] = codes["types"].of_json([a.types for a in args])
            chunk["layer"] = codes["layer"].of_json([a.hierarchy for a in args])
        else:
            chunk["correlation"] = ids([a.correlation for a in args])
        if kind in ("kernel", "operator"):
            chunk["collective"] = codes["collective"].of_json([a.collective for a in args])
            if (chunk["collective"] >= 0).any():
                chunk["elements"] = ids([a.elements_in for a in args])
                out = ids([a.elements_out for a in args])
                chunk["elements"] = np.where(chunk["elements"] > 0, chunk["elements"], out)
                chunk["word"] = codes["word"].of_json([a.dtype for a in args])
                chunk["group"] = np.array([codes["group"][group_of(a)] for a in args], np.int32)
        if kind in ("kernel", "runtime"):
            chunk["grid"] = codes["grid"].of_json([a.grid for a in args])
            chunk["block"] = codes["block"].of_json([a.block for a in args])
        if kind in ("memcpy", "memset", "runtime"):
            chunk["bytes"] = ids([a.size if a.bytes == UNKNOWN else a.bytes for a in args])
        if kind in DEVICE:
            self._add_place(kind, events, args, chunk)

    def _add_place(
        self, kind: str, events: list[Event], args: list[Args], chunk: dict[str, np.ndarray]
    ) -> None:
        """Add where device work ran: by its arguments, else by pid and tid."""
        ids = self.ids.of
        chunk["device"] = ids([a.device for a in args])
        chunk["stream"] = ids([a.stream for a in args])
        queue = ids([a.sycl_queue for a in args])
        if (queue >= 0).any():  # Intel's XPUs have no streams
            chunk["stream"] = np.where(chunk["stream"] < 0, queue, chunk["stream"])
            self.vendor = "xpu"
        for name, value in (("device", "pid"), ("stream", "tid")):
            if (chunk[name] < 0).any():
                place = ids([getattr(event, value) for event in events])
                chunk[name] = np.where(chunk[name] < 0, place, chunk[name])
        chunk["graph_id"] = ids([a.graph_id for a in args])
        chunk["graph_node"] = ids([a.graph_node for a in args])
        if kind == "sync":
            chunk["wait_stream"] = ids([a.wait_stream for a in args])
            chunk["wait_correlation"] = ids([a.wait_correlation for a in args])

    def _look_at_names(self, known: int) -> None:
        for code, name in enumerate(self.names.values_in_order(known), known):
            if name.startswith(ANNOTATIONS):
                self.annotations.append(code)
            elif name.startswith(MODULE):
                self.modules.append(code)

    def _split_ranges(self, kind: str, chunk: dict[str, np.ndarray]) -> None:
        """Tell annotations of category Operator and module ranges of any category by their names."""
        module = np.isin(chunk["name"], self.modules)
        annotation = np.isin(chunk["name"], self.annotations) & ~module
        rest = ~module & ~annotation
        for name, rows in ((kind, rest), ("annotation", annotation), ("module", module)):
            if rows.any():
                part = {column: values[rows] for column, values in chunk.items()}
                if name == "module":  # no Python frame but someone's own range: it names the whole path
                    names = self.names.values_in_order()
                    paths = [names[code].removeprefix(MODULE) for code in part["name"].tolist()]
                    part["layer"] = self.codes["layer"].of(paths)
                self._keep(name, part)

    def _keep(self, kind: str, chunk: dict[str, np.ndarray]) -> None:
        always = ("start_ns", "duration_ns", "name")
        kept = {
            name: column for name, column in chunk.items()
            if name in always or (column != null_of(name)).any()
        }  # fmt: skip
        kept["kind"] = np.full(len(kept["name"]), KINDS.index(kind), np.int8)
        self.growing.append(kept)

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the whole columns in order of start, outer rows first, without rows at absurd times."""
        growing = self.growing
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
        if self.of_npu and {"pid", "correlation"} <= columns.keys():
            host, call, work = (is_kind(columns, kinds) for kinds in (HOST, ("runtime",), DEVICE))
            columns["pid"][host] = 0  # each layer of software has a process number there; it is one process
            columns["correlation"] = launch_with_neighbours(columns["correlation"], call, work)
        if "correlation" in columns:
            columns["correlation"] = small_ids(columns["correlation"])
        if self.lines.texts and "tid" in columns:  # else no row is on a thread
            called = is_kind(columns, CALLED)
            columns["stack"] = np.where(called, self.lines.of(start, columns["tid"]), UNKNOWN)
        return columns

    def _texts(self, columns: dict[str, np.ndarray]) -> dict[str, list[str]]:
        """Return the texts of the coded columns, each once; the texts that say nothing become unknown."""
        element_types(columns, self.codes)
        read: dict[str, Callable[[Any], str]] = {"grid": triple, "block": triple, "shapes": compact_json}
        texts = {
            name: [read.get(name, plain_text)(value) for value in codes.values_in_order()]
            for name, codes in self.codes.items() if name in columns
        }  # fmt: skip
        texts["name"] = [plain_text(name).removeprefix(MODULE) for name in self.names.values_in_order()]
        for name, given in texts.items():
            codes = Names() if name == "name" else Codes()
            table = [codes[text] for text in given]
            if table != list(range(len(given))):
                columns[name] = np.array([*table, UNKNOWN], columns[name].dtype)[columns[name]]
            texts[name] = codes.values_in_order()
        texts["kind"] = list(KINDS)
        if "stack" in columns:
            texts["stack"] = self.lines.texts
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
        for category, count in sorted(self.categories.items()):
            tell(count, f"had the category {category!r}")
