"""Rows of a recording, gathered kind by kind: a reader gives columns, out comes a `Recording`.

What every reader needs for it: codes of texts, whole numbers and times, devices as a trace describes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import GrowingColumns, Recording, narrow, null_of
from daydream.errors import TraceError
from daydream.text import counted
from daydream.trace.schema import FIELDS, UNKNOWN, Document, is_amount

LARGEST = 2**62
NO_TIME = -(2**63)
EARLIEST = -(2**61)  # with the latest, differences fit 63 bits
DAY_NS = 86_400_000_000_000
LARGEST_ID = 2**40  # ids of flows may be times in ns
CODED = frozenset(name for name, field in FIELDS.items() if field.type == "text")


def plain_text(value: Any) -> str:
    """Return a text (of bytes in UTF-8, of other values their JSON) without what cannot be encoded."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value, separators=(",", ":"), default=str)
    return str(value).encode("utf-8", "replace").decode()


def parts_of(text: str, mark: str) -> list[str]:
    """Return the parts of a text between marks; those in brackets part nothing."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class Codes(dict[Any, int]):
    """Value to the code of the text that is made of it, in order of appearance; an empty one is unknown.

    `texts` are those of a column, which several of these may share; `empty` lets one of them be empty.
    """

    def __init__(
        self, texts: dict[str, int], made: Callable[[Any], str | None], *, empty: bool = False
    ) -> None:
        super().__init__()
        self._texts = texts
        self._made = made
        self._empty = empty

    def __missing__(self, value: Any) -> int:
        text = self._made(value) or ""
        known = text or self._empty
        self[value] = code = self._texts.setdefault(text, len(self._texts)) if known else UNKNOWN
        return code

    def of(self, values: Sequence[Any]) -> np.ndarray:
        """Return the codes of values: int32, shape (rows,)."""
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))


class RowBuilder:
    """Rows in any order, their texts as codes; rows without a readable time are left out and counted."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, int]] = {}
        self.left_out: Counter[str] = Counter()
        self._coders: dict[str, Codes] = {}
        self._growing = GrowingColumns(CODED)

    def __len__(self) -> int:
        return self._growing.rows

    def codes(
        self, column: str, made: Callable[[Any], str | None] = plain_text, *, empty: bool = False
    ) -> Codes:
        """Return what codes the values of a column, by the text that is made of each distinct one."""
        return Codes(self.texts.setdefault(column, {}), made, empty=empty)

    def coded(self, column: str, texts: Sequence[str | bytes | None]) -> np.ndarray:
        """Return the codes of texts: int32, shape (rows,); -1 for None or an empty one."""
        if column not in self._coders:
            self._coders[column] = self.codes(column)
        return self._coders[column].of(texts)

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
        kinds = np.repeat(self.coded("kind", [kind]), len(start)) if isinstance(kind, str) else kind
        chunk = {"start_ns": start, "duration_ns": end - start, "kind": kinds, **columns}
        if (bad | negative).any():
            chunk = {name: column[~(bad | negative)] for name, column in chunk.items()}
        self._growing.append(chunk)

    def recording(self, path: Path, nothing: str, **metadata: Any) -> Recording:
        """Return the recording of all rows, in order of start, with times from the first one.

        Outer rows come first; rows at absurd times are left out, and counted.

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
        start = growing.take("start_ns")
        duration = growing.take("duration_ns")
        order = outer_first(start, duration)
        odd = np.abs(start[order] - start[order[len(order) // 2]]) > DAY_NS
        odd |= duration[order] > DAY_NS
        if odd.all():
            raise TraceError(
                f"{path}: its rows last longer than a day; they are not ns of one clock."
            )
        self.left_out["began or lasted more than a day away from the others"] += int(odd.sum())
        if odd.any():
            order = order[~odd]
        start = start[order]
        origin = int(start[0])
        start -= origin
        columns = {"start_ns": start, "duration_ns": narrow(duration[order])}
        del start, duration
        for name in sorted(growing.columns):
            columns[name] = narrow(
                growing.take(name)[order], np.int8 if name in CODED else np.int32
            )
        texts = {name: list(codes) for name, codes in self.texts.items() if name in columns}
        known = {"source": plain_text(path.name), "origin_ns": origin, "notes": [], **metadata}
        recording = Recording(columns, texts, known)
        for why, count in sorted((+self.left_out).items()):
            note_left_out(recording, count, f"{why} and")
        return recording


def note_left_out(recording: Recording, count: int, why: str) -> None:
    """Say how many rows were left out, and why: `could not be read and`."""
    were = "was" if count == 1 else "were"
    recording.note(f"{counted(count, 'row', 'rows')} {why} {were} left out.")


def outer_first(start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Return the order by start; of rows that begin together the longer one first."""
    order = np.argsort(start, kind="stable")
    times = start[order]
    tied = np.zeros(len(order), bool)
    tied[1:] = times[1:] == times[:-1]
    tied[:-1] |= tied[1:]
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, -duration[rows].astype(np.int64), start[rows]))]
    return order


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


def small_ids(ids: np.ndarray, most: int = LARGEST_ID) -> np.ndarray:
    """Return ids as they are where all are below `most`, else numbered from 0 in their order; -1 stays.

    By default they may be as large as correlation ids that can be told apart between ranks.
    """
    if not len(ids) or int(ids.max()) < most:
        return ids
    values, number = np.unique(ids, return_inverse=True)
    return np.asarray(number.reshape(-1) - int((values < 0).sum()), np.int64)


DEVICE_FIELDS = {  # theirs -> ours: of Kineto, Nsight Systems, rocprofv3
    "product_name": "name",
    "model_name": "name",
    "name": "name",
    "totalGlobalMem": "memory_bytes",
    "totalMemory": "memory_bytes",
    "computeMajor": "compute_major",
    "computeMinor": "compute_minor",
    "numSms": "multiprocessors",
    "smCount": "multiprocessors",
    "cu_count": "multiprocessors",
    "warpSize": "warp_size",
    "threadsPerWarp": "warp_size",
    "wave_front_size": "warp_size",
    "maxThreadsPerBlock": "threads_per_block",
    "workgroup_max_size": "threads_per_block",
    "maxThreadsPerMultiprocessor": "threads_per_multiprocessor",
    "regsPerBlock": "registers_per_block",
    "maxRegistersPerBlock": "registers_per_block",
    "regsPerMultiprocessor": "registers_per_multiprocessor",
    "maxRegistersPerSm": "registers_per_multiprocessor",
    "sharedMemPerBlock": "shared_bytes_per_block",
    "maxShmemPerBlock": "shared_bytes_per_block",
    "sharedMemPerBlockOptin": "shared_bytes_per_block_optin",
    "maxShmemPerBlockOptin": "shared_bytes_per_block_optin",
    "sharedMemPerMultiprocessor": "shared_bytes_per_multiprocessor",
    "maxSharedMemoryPerMultiProcessor": "shared_bytes_per_multiprocessor",
    "maxShmemPerSm": "shared_bytes_per_multiprocessor",
    "memoryBandwidth": "memory_bytes_per_second",
    "clockRate": "clock_hz",
    "l2CacheSize": "l2_bytes",
}


def device_of(given: Mapping[str, Any], **known: Any) -> Document:
    """Return a device as a trace describes it: what is `known`, and what its file says in `DEVICE_FIELDS`.

    The first name counts, and amounts that are none are left out.
    """
    device: Document = dict(known)
    for theirs, ours in DEVICE_FIELDS.items():
        value = given.get(theirs)
        if ours == "name" and isinstance(value, str):
            device.setdefault(ours, plain_text(value))
        elif ours != "name" and is_amount(value):
            device[ours] = value
    return device
