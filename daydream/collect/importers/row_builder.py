"""Rows of a recording, gathered kind by kind: a reader gives columns, out comes a `Recording`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import GrowingColumns, Recording, narrow, null_of
from daydream.collect.importers.kineto.values import in_order, plain_text
from daydream.errors import TraceError
from daydream.text import counted
from daydream.trace.schema import UNKNOWN

LARGEST = 2**62
NO_TIME = -(2**63)
EARLIEST = -(2**61)  # with the latest, differences fit 63 bits
CODED = (
    "kind",
    "name",
    "grid",
    "block",
    "layer",
    "phase",
    "dtype",
    "shapes",
    "collective",
    "group",
    "op",
)


class RowBuilder:
    """Rows in any order, their texts as codes; rows without a readable time are left out and counted."""

    def __init__(self) -> None:
        self.codes: dict[str, dict[str, int]] = {name: {} for name in CODED}
        self.left_out: Counter[str] = Counter()
        self._growing = GrowingColumns(frozenset(CODED))

    def __len__(self) -> int:
        return self._growing.rows

    def code(self, column: str, text: str | None) -> int:
        """Return the code of a text in a coded column, -1 for None or an empty one."""
        if not text:
            return UNKNOWN
        codes = self.codes[column]
        return codes.setdefault(text, len(codes))

    def coded(self, column: str, texts: Sequence[str | None]) -> np.ndarray:
        """Return the codes of texts: int64, shape (rows,)."""
        return np.array([self.code(column, text) for text in texts], np.int64)

    def coded_bytes(
        self, column: str, texts: Sequence[bytes | None], made: Callable[[str], str] = str
    ) -> np.ndarray:
        """Return the codes of what is made of texts in UTF-8, as by `coded`."""
        codes = {
            text: UNKNOWN
            if text is None
            else self.code(column, made(text.decode("utf-8", "replace")))
            for text in dict.fromkeys(texts)
        }
        return np.array([codes[text] for text in texts], np.int64)

    def gathered(self, column: str) -> np.ndarray:
        """Return a column of the rows added so far: int64, shape (rows,)."""
        growing = self._growing
        if column not in growing.columns:
            return np.full(len(self), null_of(column), np.int64)
        return growing.columns[column][: len(self)].astype(np.int64)

    def add(
        self, kind: str | np.ndarray, start: np.ndarray, end: np.ndarray, **columns: np.ndarray
    ) -> None:
        """Add rows of a kind (or with codes of kinds) by when they start and end, in ns, and their columns.

        An unreadable time is `NO_TIME`. `columns` are integers or codes, shape (rows,).
        """
        bad = (np.minimum(start, end) < EARLIEST) | (np.maximum(start, end) > LARGEST)
        negative = ~bad & (end < start)
        self.left_out["had no readable time"] += int(bad.sum())
        self.left_out["ended before it began"] += int(negative.sum())
        good = ~(bad | negative)
        if not good.any():
            return
        kinds = np.full(len(start), self.code("kind", kind)) if isinstance(kind, str) else kind
        chunk = {"start_ns": start, "duration_ns": end - start, "kind": kinds, **columns}
        self._growing.append({name: column[good] for name, column in chunk.items()})

    def recording(self, path: Path, nothing: str, **metadata: Any) -> Recording:
        """Return the recording of all rows, in order of start, with times from the first one.

        Args:
            path: the file, for errors and as the source.
            nothing: what is said of a file without a row: what it lacks, and what to do.
            metadata: what else the recording knows of itself.

        Raises:
            TraceError: there is no usable row.

        """
        growing = self._growing
        if not growing.rows:
            raise TraceError(f"{path} {nothing}")
        order, start, duration = in_order(growing, self.left_out)
        if not len(start):
            raise TraceError(
                f"{path}: its rows last longer than a day; they are not ns of one clock."
            )
        origin = int(start[0])
        columns = {"start_ns": (start - origin).astype(np.int64), "duration_ns": duration}
        for name in sorted(growing.columns):
            columns[name] = narrow(
                growing.take(name)[order], np.int8 if name in CODED else np.int32
            )
        texts = {
            name: [plain_text(text) for text in codes]
            for name, codes in self.codes.items()
            if name in columns
        }
        notes = [
            f"{counted(count, 'row', 'rows')} {why} and {'was' if count == 1 else 'were'} left out."
            for why, count in sorted((+self.left_out).items())
        ]
        known = {"source": plain_text(path.name), "origin_ns": origin, "notes": notes, **metadata}
        return Recording(columns, texts, known)


def pop_column(recording: Recording, name: str) -> np.ndarray:
    """Take a column that is none of a trace out of a recording: int64, shape (rows,), -1 if it is not there."""
    column = recording.columns.pop(name, None)
    return np.full(len(recording), UNKNOWN) if column is None else column.astype(np.int64)


def whole(values: Sequence[Any]) -> np.ndarray:
    """Return whole numbers from numbers or their digits, -1 where a value is none or is out of range."""
    try:
        found = np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        found = np.array([_number(value) for value in values], np.int64)
    return np.where((found < 0) | (found > LARGEST), UNKNOWN, found)


def times(values: Sequence[Any]) -> np.ndarray:
    """Return times from numbers of ns or their digits, `NO_TIME` where a value is none or is out of range."""
    found = whole(values)
    return np.where(found < 0, NO_TIME, found)


def _number(value: Any) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str):
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else UNKNOWN
    return text if type(text) is int and 0 <= text <= LARGEST else UNKNOWN
