"""The SQLite file of an Nsight Systems export: tables and columns as they are there, read in blocks.

Processes of an Nsight Systems export: several may be in one file, each with correlation ids of its own.

Nsight packs machine, process and thread into one number, `globalTid`: the thread in the
low 24 bits, the process in the next 24; `globalPid` is the same with thread 0.

Allocations and frees of GPU memory in an export: what the program took from the driver.

`nsys profile --cuda-memory-usage=true` records them. With PyTorch's allocator they are its segments, not
tensors. Kinds of memory and operations are numbered as in the export's own tables of both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.formats import quoted
from daydream.errors import TraceError
from daydream.files.input_files import StrPath
from daydream.text import counted
from daydream.trace.memory_events import MemoryEvents, events_of
from daydream.trace.schema import NO_ID, UNKNOWN, Columns
from daydream.trace.valid import LARGEST_AMOUNT

MISSING = -(2**63)
"""Value of a time that is null."""
BLOCK = 50_000
TIMES = ("start", "end")


class Export:
    """Tables of one export. What a version does not have reads as absent or unknown.

    Raises `TraceError` if the database is no Nsight Systems export.
    """

    def __init__(self, connection: sqlite3.Connection, path: StrPath) -> None:
        self.connection = connection
        self.path = path
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables = {name: self._columns(name) for (name,) in names if isinstance(name, str)}
        if "StringIds" not in self.tables:
            raise TraceError(
                f"{path} is an SQLite database, but not an Nsight Systems export: it has no table StringIds."
            )
        self.strings: dict[int, str | None] = {}

    def __contains__(self, table: str) -> bool:
        return table in self.tables

    def blocks(
        self, table: str, fields: Sequence[str], *, text: str | None = None
    ) -> Iterator[Columns]:
        """Yield integer columns of a table in blocks of rows; one text column may follow, as objects.

        Null is `MISSING` in times and `UNKNOWN` in other columns, as is a column the table lacks.
        """
        chosen = [self._chosen(table, field) for field in fields]
        if text is not None:
            chosen.append(quoted(text) if text in self.tables[table] else "NULL")
        cursor = self.connection.execute(f"SELECT {', '.join(chosen)} FROM {quoted(table)}")  # noqa: S608
        while rows := cursor.fetchmany(BLOCK):
            try:
                numbers = np.array([row[: len(fields)] for row in rows], np.int64)
            except (TypeError, ValueError, OverflowError):
                raise TraceError(
                    f"{self.path}: table {table} holds more than whole numbers."
                ) from None
            block = dict(zip(fields, np.ascontiguousarray(numbers.T), strict=True))
            if text is not None:
                block[text] = np.array([row[-1] for row in rows], object)
            yield block

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries; none if it is not there."""
        if table not in self.tables:
            return []
        rows = self.connection.execute(f"SELECT * FROM {quoted(table)}").fetchall()  # noqa: S608
        return [dict(zip(self.tables[table], row, strict=True)) for row in rows]

    def define(self, view: str, query: str) -> None:
        """Add a view of the tables; it is read as they are."""
        self.connection.execute(f"CREATE TEMP VIEW {quoted(view)} AS {query}")
        self.tables[view] = self._columns(view)

    def enum(self, table: str, column: str) -> dict[int, str]:
        """Return id to word of an enum table; empty if it is not there."""
        return {
            row["id"]: row[column]
            for row in self.records(table)
            if isinstance(row.get("id"), int) and isinstance(row.get(column), str)
        }

    def string(self, code: int) -> str | None:
        """Return the text behind an id of `StringIds`, None if there is none."""
        if code not in self.strings:
            row = self.connection.execute(
                "SELECT value FROM StringIds WHERE id = ?", (code,)
            ).fetchone()
            self.strings[code] = row[0] if row and isinstance(row[0], str) else None
        return self.strings[code]

    def about(self, name: str) -> str:
        """Return one value of the export's own description, empty if it is not there."""
        for row in self.records("META_DATA_EXPORT"):
            if row.get("name") == name:
                return str(row.get("value"))
        return ""

    def diagnostics(self) -> list[str]:
        """Return what Nsight Systems itself says of the recording, but for what is no warning."""
        rows = self.records("DIAGNOSTIC_EVENT")
        said = dict.fromkeys(row.get("text") for row in rows if row.get("severity") not in (1, 4))
        return [text for text in said if isinstance(text, str)]

    def session_start_ns(self) -> int:
        """Return when the session began, in ns since 1970; 0 if the file does not say."""
        for row in self.records("TARGET_INFO_SESSION_START_TIME"):
            if isinstance(row.get("utcEpochNs"), int):
                return int(row["utcEpochNs"])
        return 0

    def _columns(self, table: str) -> list[str]:
        return [row[1] for row in self.connection.execute(f"PRAGMA table_info({quoted(table)})")]

    def _chosen(self, table: str, field: str) -> str:
        null = MISSING if field in TIMES else UNKNOWN
        return f"IFNULL({quoted(field)}, {null})" if field in self.tables[table] else str(null)


def process_of(packed: np.ndarray) -> np.ndarray:
    """Return machine and process in one number, unknown where the owner is."""
    return np.where(packed >= 0, packed >> 24, UNKNOWN)


def pid_and_tid(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return process and thread ids as the operating system numbers them."""
    known = packed >= 0
    return np.where(known, packed >> 24 & 0xFFFFFF, NO_ID), np.where(
        known, packed & 0xFFFFFF, NO_ID
    )


class Processes:
    """The processes of one export in the order of their ranks, those without device work last."""

    def __init__(self, processes: np.ndarray, on_device: np.ndarray, device: np.ndarray) -> None:
        lowest: dict[int, int] = {}
        at_work = on_device & (processes >= 0)
        pairs = np.unique(np.stack([processes[at_work], device[at_work]]), axis=1)
        for process, number in pairs.T.tolist():
            lowest.setdefault(process, number)
        ranked = sorted(lowest, key=lambda process: (lowest[process], process))
        others = np.setdiff1d(processes, [UNKNOWN, *ranked]).tolist()
        self.ranks = max(len(ranked), 1)
        self.order = np.array([*ranked, *others] or [UNKNOWN], np.int64)

    def index(self, processes: np.ndarray) -> np.ndarray:
        """Return each process's position; rows of old tables that name no process belong to the first."""
        by_id = np.argsort(self.order, kind="stable")
        at = by_id[np.minimum(np.searchsorted(self.order[by_id], processes), len(by_id) - 1)]
        return np.where(self.order[at] == processes, at, 0)

    def rank(self, processes: np.ndarray) -> np.ndarray:
        """Return each row's rank, unknown for processes without device work."""
        index = self.index(processes)
        return np.where(index < self.ranks, index, UNKNOWN)

    def correlation(self, correlation: np.ndarray, processes: np.ndarray) -> np.ndarray:
        """Return correlation ids (32 bits, counted per process) with the process's position above them."""
        return np.where(correlation >= 0, correlation | self.index(processes) << 32, UNKNOWN)


def split_ranks(recording: Recording) -> list[Recording]:
    """Return a recording per rank; notes on the file go with the first.

    Rows of processes without device work are left out and counted.
    """
    ranks = np.asarray(recording["rank"])
    present = np.unique(ranks[ranks >= 0]).tolist()
    if len(present) <= 1:
        return [recording]
    parts: list[Recording] = []
    for rank in present:
        columns = {name: column[ranks == rank] for name, column in recording.columns.items()}
        del columns["rank"]
        texts = {name: list(words) for name, words in recording.texts.items()}
        notes = [] if parts else list(recording.metadata["notes"])
        metadata = {**recording.metadata, "rank": rank, "notes": notes}
        memory = recording.memory
        if memory is not None:
            memory = memory.take(memory["rank"] == rank)
        parts.append(Recording(columns, texts, metadata, memory))
    outside = int((ranks < 0).sum())
    if outside:
        parts[0].note(
            f"{counted(outside, 'row', 'rows')} of processes without device work left out."
        )
    return parts


TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
FIELDS = (
    "start",
    "globalPid",
    "deviceId",
    "address",
    "bytes",
    "memKind",
    "memoryOperationType",
    "correlationId",
)
DEVICE, DEVICE_STATIC = 2, 5  # kinds of memory that lie on a GPU (ENUM_CUDA_MEM_KIND)
ALLOCATION, FREE = 0, 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER
LATEST = 2**62


def read_memory(
    export: Export, recording: Recording, processes: Processes, first_ns: int
) -> MemoryEvents | None:
    """Return the table's events in order of time, None if there are none; times count from `first_ns`.

    Memory of the host (pinned, managed) is left out, as are rows without a time, a device or a size; notes
    of the recording count them.
    """
    blocks = list(export.blocks(TABLE, FIELDS)) if TABLE in export else []
    if not blocks:
        return None
    rows = {name: np.concatenate([block[name] for block in blocks]) for name in FIELDS}
    on_gpu = np.isin(rows["memKind"], (DEVICE, DEVICE_STATIC))
    rank = processes.rank(process_of(rows["globalPid"]))
    if elsewhere := int((~on_gpu | (rank < 0)).sum()):
        recording.note(
            f"{counted(elsewhere, 'row', 'rows')} of memory of the host or of processes without device work "
            f"{'was' if elsewhere == 1 else 'were'} left out."
        )
    kept = np.flatnonzero(on_gpu & (rank >= 0))
    rows = {name: column[kept] for name, column in rows.items()}
    rank = rank[kept]
    operation = rows["memoryOperationType"]
    nbytes = rows["bytes"]
    bad = (np.abs(rows["start"] // 2) > LATEST // 2) | ~np.isin(operation, (ALLOCATION, FREE))
    bad |= (nbytes < 0) | (nbytes > LARGEST_AMOUNT) | (rows["deviceId"] < 0)
    pid, tid = _threads(
        recording, processes.correlation(rows["correlationId"], process_of(rows["globalPid"]))
    )
    events = events_of(
        {
            "rank": rank,
            "time_ns": np.where(bad, 0, rows["start"]) - np.where(bad, 0, first_ns),
            "pid": pid,
            "tid": tid,
            "device": rows["deviceId"],
            "address": rows["address"],
            "bytes": np.where(bad, 0, np.where(operation == FREE, -nbytes, nbytes)),
        },
        bad,
        recording.metadata["notes"],
    )
    if events is not None:
        recording.metadata["memory_from"] = "driver"
    return events


def _threads(recording: Recording, correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return process and thread of the calls with these correlation ids, `NO_ID` where there is none."""
    calls = np.flatnonzero(recording.is_kind("runtime") & (recording["correlation"] >= 0))
    calls = calls[np.argsort(recording["correlation"][calls], kind="stable")]
    if not len(calls):
        none = np.full(len(correlation), NO_ID, np.int64)
        return none, none
    ids = np.asarray(recording["correlation"], np.int64)[calls]
    at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    found = (correlation != UNKNOWN) & (ids[at] == correlation)
    pid, tid = (
        np.where(found, np.asarray(recording[name], np.int64)[calls[at]], NO_ID)
        for name in ("pid", "tid")
    )
    return pid, tid
