"""Rows of a Kineto file, gathered block by block as columns.

Texts are codes into values in their order of appearance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from daydream.collect.derive.recording import GrowingColumns
from daydream.collect.derive.source_lines import SourceLines, blocking_call, own_frame
from daydream.collect.importers.kineto.events import (
    CATEGORIES,
    DEVICE,
    HOST,
    KINDS,
    LEGACY_CPU,
    LEGACY_DEVICE,
    NAMED,
    NPU_FLOW,
    SILENT,
    Args,
    Event,
    call_of_flow,
    name_xpu_copies,
    other_row,
    vendor_of,
)
from daydream.collect.importers.kineto.scanned import PLACE, Table, TableColumns, numbers_of, value_of
from daydream.collect.importers.kineto.values import (
    MEMORY_ROW,
    Codes,
    MemoryRows,
    Names,
    Numbers,
    duration_ns,
    group_of,
    start_ns,
)
from daydream.trace.schema import NO_ID, UNKNOWN, Columns

ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#")  # of category Operator in 2021
MODULE = "nn.Module: "
CODED = ("shapes", "types", "grid", "block", "layer", "collective", "word", "group")

NO_ARGS = Args()


class Rows:
    """Columns of one file, gathered in chunks, one a block and kind; `exact` reads starts by their digits."""

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self.names = Names()
        self.codes = {name: Codes() for name in CODED}
        self.lines = SourceLines()
        self.growing = GrowingColumns(frozenset({"kind", "name", *CODED}))
        self.categories: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.of_npu = False
        self.vendor = ""
        self.ids = Numbers(UNKNOWN)
        self.threads = Numbers(NO_ID)
        self.memory = MemoryRows()
        self._tables = TableColumns(self.names, self.codes, self.ids, self.threads)
        self._annotations: list[int] = []
        self._modules: list[int] = []

    def add(self, events: list[Event] | Table) -> None:
        """Append the rows of some events, which are used up."""
        if isinstance(events, Table):
            self._add_table(events)
            return
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
        if memory:
            self.memory.add(memory, self.threads, exact=self._exact)
        if groups["module"]:
            frames = [event for event in groups["module"] if type(event.name) is str]
            groups["module"] = [event for event in frames if str(event.name).startswith(MODULE)]
            self._add_lines([event for event in frames if own_frame(str(event.name)) is not None])
            calls = [(event, blocking_call(str(event.name))) for event in frames]
            if waits := [replace(event, name=call) for event, call in calls if call]:
                self._add("blocked", waits)
        name_xpu_copies(groups["memcpy"])
        for kind in KINDS:
            if groups[kind]:
                self._add(kind, groups.pop(kind))

    def _add_table(self, table: Table) -> None:
        if table.memory:
            self.memory.add(table.memory, self.threads, exact=self._exact)
        self.categories.update(category[:40] for category in table.categories)
        table = self._without_frames(table)
        rows = table.columns.shape[1]
        if not rows:
            return
        name = np.empty(rows, np.int32)
        ranges = False
        for code, kind in enumerate(KINDS):
            chosen = table.rows(code)
            known = len(self.names)
            if chosen.start < chosen.stop:
                name[chosen] = self._tables.names_of(table, code)
                if len(self.names) > known:
                    self._look_at_names(known)
                ranges = ranges or (
                    self._holds_ranges(kind)
                    and bool(np.isin(name[chosen], [*self._modules, *self._annotations]).any())
                )
        chunk = self._tables.chunk(table)
        start = table.columns[PLACE["ts"]]
        duration = table.columns[PLACE["dur"]]
        chunk["start_ns"] = start
        chunk["duration_ns"] = duration
        sizes = np.diff(table.edges[: len(KINDS) + 1])
        chunk["name"] = name
        chunk["kind"] = np.repeat(np.arange(len(KINDS), dtype=np.int8), sizes)
        if self._tables.on_queues(table):
            self.vendor = "xpu"
        if int(start.min()) == NO_ID or int(duration.min()) < 0:
            chunk = self._timed(chunk, (start == NO_ID) | (duration == NO_ID))
        if not ranges:
            self.growing.append(chunk)
            return
        kinds = chunk.pop("kind")
        for code, kind in enumerate(KINDS):
            chosen = slice(*np.searchsorted(kinds, [code, code + 1]).tolist())
            if chosen.start < chosen.stop:
                self._add_chunk(kind, {column: values[chosen] for column, values in chunk.items()})

    def _without_frames(self, table: Table) -> Table:
        """Return a table without the Python frames that are no modules; lines of the program are kept."""
        frames = table.rows(KINDS.index("module"))
        numbers = table.columns[PLACE["name"], frames].tolist()
        if not numbers:
            return table
        names = {number: value_of(table.text(number)) for number in set(numbers)}
        texts = {number: name for number, name in names.items() if type(name) is str}
        left = np.zeros(table.columns.shape[1], bool)
        left[frames] = [not texts.get(number, "").startswith(MODULE) for number in numbers]
        own = {number for number, text in texts.items() if own_frame(text) is not None}
        lines = frames.start + np.flatnonzero([number in own for number in numbers])
        start, duration = (table.columns[PLACE[name], lines] for name in ("ts", "dur"))
        thread = {
            name: np.full(len(left), NO_ID) if ids is None else ids
            for name in ("pid", "tid")
            for ids in [numbers_of(table, name, (KINDS.index("module"),), self.threads, NO_ID)]
        }
        self.lines.add(
            [texts[number] for number in table.columns[PLACE["name"], lines].tolist()], start,
            np.where((start == NO_ID) | (duration == NO_ID), UNKNOWN, duration),
            thread["tid"][lines],
        )  # fmt: skip
        calls = {number: call for number, text in texts.items() if (call := blocking_call(text))}
        waits = frames.start + np.flatnonzero([number in calls for number in numbers])
        if len(waits):
            start, duration = (table.columns[PLACE[name], waits] for name in ("ts", "dur"))
            named = self.names.of([calls[number] for number in table.columns[PLACE["name"], waits].tolist()])
            chunk = {"start_ns": start, "duration_ns": duration, "name": named}
            chunk |= {name: ids[waits] for name, ids in thread.items()}
            self._keep_as("blocked", self._timed(chunk, (start == NO_ID) | (duration == NO_ID)))
        return table.without(left) if left.any() else table

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

    def _add_lines(self, frames: list[Event]) -> None:
        start, no_start = start_ns([event.ts for event in frames], exact=self._exact)
        duration, no_duration = duration_ns([event.dur for event in frames])
        duration = np.where(no_start | no_duration, UNKNOWN, duration)
        self.lines.add(
            [str(event.name) for event in frames], start, duration, self.threads.of([e.tid for e in frames])
        )

    def _add(self, kind: str, events: list[Event]) -> None:
        """Make a chunk of the events of one kind; of its columns keep those that hold anything."""
        chunk: Columns = {}
        chunk["start_ns"], no_start = start_ns([event.ts for event in events], exact=self._exact)
        chunk["duration_ns"], no_duration = duration_ns([event.dur for event in events])
        known = len(self.names)
        chunk["name"] = self.names.of([event.name for event in events])
        if len(self.names) > known:
            self._look_at_names(known)
        if kind in HOST:
            chunk["pid"] = self.threads.of([event.pid for event in events])
            chunk["tid"] = self.threads.of([event.tid for event in events])
        if kind not in ("module", "blocked"):
            self._add_args(kind, events, chunk)
        self._add_chunk(kind, self._timed(chunk, no_start | no_duration))

    def _timed(self, chunk: Columns, bad: np.ndarray) -> Columns:
        """Return a chunk without the rows that have no time, which are counted."""
        negative = ~bad & (chunk["duration_ns"] < 0)
        if not (bad | negative).any():
            return chunk
        self.left_out["had no readable time"] += int(bad.sum())
        self.left_out["had a negative duration"] += int(negative.sum())
        return {name: column[~(bad | negative)] for name, column in chunk.items()}

    def _holds_ranges(self, kind: str) -> bool:
        """Return whether a row of a kind may be an annotation or a module by its name."""
        return kind in NAMED and bool(self._modules or (self._annotations and kind == "operator"))

    def _add_chunk(self, kind: str, chunk: Columns) -> None:
        if self._holds_ranges(kind):
            self._split_ranges(kind, chunk)
        else:
            self._keep_as(kind, chunk)

    def _add_args(self, kind: str, events: list[Event], chunk: Columns) -> None:
        args = [event.args or NO_ARGS for event in events]
        codes = self.codes
        ids = self.ids.of
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

    def _add_place(self, kind: str, events: list[Event], args: list[Args], chunk: Columns) -> None:
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
                self._annotations.append(code)
            elif name.startswith(MODULE):
                self._modules.append(code)

    def _split_ranges(self, kind: str, chunk: Columns) -> None:
        """Tell annotations of category Operator and module ranges of any category by their names."""
        module = np.isin(chunk["name"], self._modules)
        annotation = np.isin(chunk["name"], self._annotations) & ~module
        rest = ~module & ~annotation
        for name, rows in ((kind, rest), ("annotation", annotation), ("module", module)):
            if rows.any():
                part = {column: values[rows] for column, values in chunk.items()}
                if name == "module":  # no Python frame but someone's own range: it names the whole path
                    names = self.names.values_in_order()
                    paths = [names[code].removeprefix(MODULE) for code in part["name"].tolist()]
                    part["layer"] = self.codes["layer"].of(paths)
                self._keep_as(name, part)

    def _keep_as(self, kind: str, chunk: Columns) -> None:
        self.growing.append(chunk | {"kind": np.full(len(chunk["name"]), KINDS.index(kind), np.int8)})
