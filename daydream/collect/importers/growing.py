"""Columns that grow chunk by chunk, as narrow as their values allow."""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.recording import width_of
from daydream.trace.schema import FIELDS, UNKNOWN

FIRST_ROWS = 1 << 14
ALWAYS = ("start_ns", "duration_ns", "kind", "name")


class GrowingColumns:
    """Rows appended in chunks; what a chunk lacks is unknown there, and a column that says nothing is none.

    `codes` are the columns that hold codes: they may be 8 or 16 bits wide.
    """

    def __init__(self, codes: frozenset[str]) -> None:
        self.columns: dict[str, np.ndarray] = {}
        self.rows = 0
        self._codes = codes
        self._room = 0

    def append(self, chunk: dict[str, np.ndarray]) -> None:
        """Add the rows of a chunk, whose columns are equally long."""
        size = len(next(iter(chunk.values()), ()))
        if not size:
            return
        begin, self.rows = self.rows, self.rows + size
        if self.rows > self._room:
            self._room = max(FIRST_ROWS, self.rows + self.rows // 8)
            for column in self.columns.values():
                column.resize(self._room, refcheck=False)  # moves pages, copies nothing
        lacking = set(self.columns)
        for name, values in chunk.items():
            low, high = int(values.min()), int(values.max())
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
