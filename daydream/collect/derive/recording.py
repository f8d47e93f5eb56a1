"""Recording: what a profiler wrote, as columns, before anything is derived from it.

An importer reads one file into a `Recording`; `derive` turns it into a `Trace`. The
columns are those of a trace without `parent`, `op`, `phase` and `step`. `layer` may be
there where the file itself names the layer; `dtype` where it names the element type; `phase` where it
tells the phase of a host row.

Columns that grow chunk by chunk, as narrow as their values allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from daydream import arrays
from daydream.trace.handle_map import DebugHandleMap
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import FIELDS, UNKNOWN, Columns, Texts

SAID = "diagnostics"  # metadata of a recording: what the profiler itself says went wrong
ROUNDING_NS = 1000  # some profilers write whole microseconds
FEW = 8
WIDTHS = tuple(
    (np.dtype(width), int(np.iinfo(width).max)) for width in (np.int8, np.int16, np.int32)
)
WIDEST = np.dtype(np.int64)


@dataclass
class Recording:
    """Raw columns of one process in order of start, the texts behind coded columns, and metadata.

    Times count from the recording's own origin; `metadata["origin_ns"]` is where that
    lies on the profiler's clock. `metadata["notes"]` lists what was odd. `memory`: allocations and frees.
    `handles`: the map that the column `handle` points into, where the file says what compiled code is of.
    """

    columns: Columns
    texts: Texts
    metadata: dict[str, Any] = field(default_factory=dict)
    memory: MemoryEvents | None = None
    handles: DebugHandleMap | None = None

    def __len__(self) -> int:
        return len(self.columns["start_ns"])

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column: integers, or codes for text; unknown throughout if absent."""
        if name in self.columns:
            return self.columns[name]
        return np.broadcast_to(np.int64(FIELDS[name].null), len(self))

    def text(self, name: str) -> list[str]:
        """Return the texts a coded column points into; empty if the column is absent."""
        return self.texts.get(name, [])

    def texts_of(self, name: str, rows: Sequence[int] | np.ndarray) -> list[str | None]:
        """Return the texts of some rows, None where unknown."""
        texts = self.text(name)
        return [texts[code] if code >= 0 else None for code in self[name][rows].tolist()]

    def set_texts(self, name: str, rows: np.ndarray, values: Sequence[str | None]) -> None:
        """Write texts into some rows of a coded column: one a row, or one for all."""
        texts = list(self.text(name))
        codes = {text: code for code, text in enumerate(texts)}
        for value in values:
            if value is not None and value not in codes:
                codes[value] = len(texts)
                texts.append(value)
        self.texts[name] = texts
        self.set_codes(
            name,
            rows,
            np.array([UNKNOWN if value is None else codes[value] for value in values], np.int64),
        )

    def set_codes(self, name: str, rows: np.ndarray, codes: np.ndarray) -> None:
        """Write codes into some rows of a coded column."""
        self._set(name, rows, codes, np.int8)

    def set_numbers(self, name: str, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Write numbers into some rows of a column."""
        self._set(name, rows, numbers, np.int32)

    def _set(
        self, name: str, rows: np.ndarray, values: np.ndarray, least: type[np.signedinteger[Any]]
    ) -> None:
        values = narrow(values, least)
        if name not in self.columns:
            self.columns[name] = np.full(len(self), UNKNOWN, values.dtype)
        column = self.columns[name]
        wide = np.result_type(column.dtype, values.dtype)
        self.columns[name] = column = column.astype(wide)
        column[rows] = values

    def is_kind(self, *kinds: str) -> np.ndarray:
        """Return a mask of the rows of any of these kinds."""
        return _take(np.array([text in kinds for text in self.text("kind")], bool), self["kind"])

    def named(self, pattern: re.Pattern[str], *kinds: str) -> np.ndarray:
        """Return a mask of the rows, all or those of some kinds, whose name a pattern finds.

        Each distinct name is tried once; with `kinds`, those only that such rows have: kernels' are long.
        """
        if not kinds:
            return self.whose_name(lambda text: pattern.search(text) is not None)
        rows = self.is_kind(*kinds)
        texts = self.text("name")
        used = np.zeros(len(texts) + 1, bool)
        used[self["name"][rows]] = True
        hits = [
            known and pattern.search(text) is not None
            for known, text in zip(used[:-1].tolist(), texts, strict=True)
        ]
        return _take(np.array(hits, bool), self["name"]) & rows

    def whose_name(self, tells: Callable[[str], bool]) -> np.ndarray:
        """Return a mask of the rows whose name tells something (each distinct name is asked once)."""
        return _take(np.array([tells(text) for text in self.text("name")], bool), self["name"])

    @cached_property
    def threads(self) -> np.ndarray:
        """A small number for each row's thread (pid and tid); device rows share one."""
        thread, _ = arrays.combinations([self["pid"], self["tid"]])
        return narrow(thread, np.int16)

    def keep(self, rows: np.ndarray) -> None:
        """Leave out all other rows: by a mask, shape (rows,), or by numbers in the order they are to have."""
        self.columns = {name: column[rows] for name, column in self.columns.items()}
        vars(self).pop("threads", None)

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes."""
        self.metadata.setdefault("notes", []).append(sentence)


def narrow(column: np.ndarray, least: type[np.signedinteger[Any]] = np.int32) -> np.ndarray:
    """Return the column in the fewest bits that hold its values, but no fewer than `least`."""
    fewest = np.dtype(least).itemsize
    if not len(column) or column.dtype.itemsize <= fewest:
        return column
    width = width_of(int(column.min()), int(column.max()), fewest)
    return column if width in (column.dtype, WIDEST) else column.astype(width)


def width_of(low: int, high: int, fewest: int) -> np.dtype:
    """Return the narrowest type, of at least so many bytes, that holds all numbers between two."""
    for width, most in WIDTHS:
        if width.itemsize >= fewest and -most <= low + 1 and high <= most:
            return width
    return WIDEST


def _take(flags: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the flag of each code; False for the unknown code -1."""
    flagged = np.flatnonzero(flags).tolist()
    if len(flagged) > FEW:
        return np.asarray(np.append(flags, False)[codes])
    mask = np.zeros(len(codes), bool)
    for code in flagged:  # comparing is ten times faster than looking up
        mask |= codes == code
    return mask


FIRST_ROWS = 1 << 14
ALWAYS = ("start_ns", "duration_ns", "kind", "name")


class GrowingColumns:
    """Rows appended in chunks; what a chunk lacks is unknown there, and a column that says nothing is none.

    `codes` are the columns that hold codes: they may be 8 or 16 bits wide.
    """

    def __init__(self, codes: frozenset[str]) -> None:
        self.columns: Columns = {}
        self.rows = 0
        self._codes = codes
        self._room = 0

    def append(self, chunk: Columns) -> None:
        """Add the rows of a chunk, whose columns are equally long."""
        size = len(next(iter(chunk.values()), ()))
        if not size:
            return
        begin = self.rows
        self.rows += size
        if self.rows > self._room:
            self._room = max(FIRST_ROWS, self.rows + self.rows // 8)
            for column in self.columns.values():
                column.resize(self._room, refcheck=False)  # moves pages, copies nothing
        lacking = set(self.columns)
        for name, values in chunk.items():
            low = int(values.min())
            high = int(values.max())
            if low == high == null_of(name) and name not in ALWAYS:
                continue
            fewest = min(values.dtype.itemsize, 1 if name in self._codes else 4)
            width = width_of(low, high, fewest)
            if name in self.columns:
                column = self.columns[name]
            else:
                column = np.zeros(self._room, np.result_type(width, _null_type(name)))
                column[:begin] = null_of(name)
            if width.itemsize > column.dtype.itemsize:
                column = column.astype(width)
            column[begin : self.rows] = values
            self.columns[name] = column
            lacking.discard(name)
        for name in lacking:
            self.columns[name][begin : self.rows] = null_of(name)

    def take(self, name: str) -> np.ndarray:
        """Return a column and forget it; unknown throughout if no chunk had it."""
        if name not in self.columns:
            return np.full(self.rows, null_of(name), _null_type(name))
        return self.columns.pop(name)[: self.rows]


def null_of(name: str) -> int:
    """Return how a column says unknown; a column that is no field of a trace says -1."""
    return FIELDS[name].null if name in FIELDS else UNKNOWN


def _null_type(name: str) -> np.dtype:
    return np.min_scalar_type(null_of(name))
