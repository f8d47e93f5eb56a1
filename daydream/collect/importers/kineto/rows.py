"""Rows of a Kineto file, gathered block by block as columns.

Texts are codes into values in their order of appearance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

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

ANNOTATIONS = (
    "ProfilerStep#",
    "Optimizer.",
    "enumerate(DataLoader)#",
)  # of category Operator in 2021
MODULE = "nn.Module: "
CODED = ("shapes", "types", "grid", "block", "layer", "collective", "word", "group")

NO_ARGS = Args()
CALLS = ("runtime", *DEVICE)
# Column: the field of the arguments, and the kinds of rows that have it.
TEXTS: dict[str, tuple[str, Collection[str]]] = {
    "shapes": ("dims", NAMED),
    "types": ("types", NAMED),
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
        self.annotated = 0  # nodes of CUDA graphs that torch has annotated
        self.vendor = ""
        self.ids = Numbers(UNKNOWN)
        self.threads = Numbers(NO_ID)
        self.memory = MemoryRows()
        self._annotations: list[int] = []
        self._modules: list[int] = []

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
            [str(event.name) for event in frames],
            start,
            duration,
            self.threads.of([e.tid for e in frames]),
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
        """Add the columns of arguments; device work without a place in them ran where pid and tid say."""
        args = [event.args or NO_ARGS for event in events]
        for name, (field, kinds) in TEXTS.items():
            if kind in kinds:
                chunk[name] = self.codes[name].of_json(_each(field, args))
        for name, (fields, kinds) in NUMBERS.items():
            if kind in kinds:
                chunk[name] = self._first_known(args, *fields)
        if "collective" in chunk and (chunk["collective"] >= 0).any():
            sent = self._first_known(args, "elements_in")
            chunk["elements"] = np.where(sent > 0, sent, self._first_known(args, "elements_out"))
            chunk["word"] = self.codes["word"].of_json(_each("dtype", args))
            chunk["group"] = self.codes["group"].of([group_of(each) for each in args])
        if kind in DEVICE:
            self.annotated += sum(each.annotation is not None for each in args)
            if (self._first_known(args, "sycl_queue") >= 0).any():  # Intel's XPUs have no streams
                self.vendor = "xpu"
            for name, place in (("device", "pid"), ("stream", "tid")):
                if (chunk[name] < 0).any():
                    chunk[name] = np.where(
                        chunk[name] < 0, self.ids.of(_each(place, events)), chunk[name]
                    )

    def _first_known(self, args: list[Args], *fields: str) -> np.ndarray:
        """Return a number a row, of the first of some fields that has one."""
        column = self.ids.of(_each(fields[0], args))
        for field in fields[1:]:
            if not (column < 0).any():
                break
            column = np.where(column < 0, self.ids.of(_each(field, args)), column)
        return column

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
                if (
                    name == "module"
                ):  # no Python frame but someone's own range: it names the whole path
                    names = self.names.values_in_order()
                    paths = [names[code].removeprefix(MODULE) for code in part["name"].tolist()]
                    part["layer"] = self.codes["layer"].of(paths)
                self._keep_as(name, part)

    def _keep_as(self, kind: str, chunk: Columns) -> None:
        self.growing.append(
            chunk | {"kind": np.full(len(chunk["name"]), KINDS.index(kind), np.int8)}
        )


def _each(field: str, rows: Sequence[Event | Args]) -> list[Any]:
    return list(map(attrgetter(field), rows))
