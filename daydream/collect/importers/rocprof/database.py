"""rocprofv3's database (rocpd, `--output-format rocpd`) as recordings, one a process.

Every table is `rocpd_NAME` and a suffix that stands for one process; a merged file has several. Kernels,
copies and calls say by `event_id` which event they are of; an event's `stack_id` is the correlation of
a call and what it launched. Which of an event's two ids ties them is told by the file: the one under which
more of the device's work finds a call. The environment and the command, which the file holds, are not read.

Written from the schema (`rocpd_tables.sql`, versions 3.0.0 to 4.1.0): no public file was at hand.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.formats import quoted
from daydream.collect.importers.rocprof import rows as rocprof
from daydream.collect.importers.row_builder import RowBuilder, whole
from daydream.errors import TraceError
from daydream.trace.schema import UNKNOWN

Rows = list[dict[str, Any]]
PREFIX = "rocpd_"
STRINGS = "rocpd_string"
AXES = "xyz"


def is_rocpd(connection: sqlite3.Connection) -> bool:
    """Return whether an SQLite file is one of rocprofv3."""
    return bool(_suffixes(connection))


def read_rocpd(connection: sqlite3.Connection, path: Path) -> list[Recording]:
    """Return the recordings in a database of rocprofv3, one for each process that is in it.

    Raises `TraceError` if it was recorded while counters were read, or holds no row.
    """
    found = [_Process(connection, suffix, path) for suffix in _suffixes(connection)]
    recordings = [each.recording() for each in found if not each.is_empty()]
    if not recordings:
        raise TraceError(f"{path} {rocprof.NOTHING}")
    return recordings


def _suffixes(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    ).fetchall()
    return [
        name[len(STRINGS) :]
        for (name,) in names
        if isinstance(name, str) and name.startswith(STRINGS)
    ]


class _Process:
    """The tables of one process, into one builder."""

    def __init__(self, connection: sqlite3.Connection, suffix: str, path: Path) -> None:
        self.connection = connection
        self.suffix = suffix
        self.path = path
        self.builder = RowBuilder()
        self.texts = self._named("string", "string")
        self.pids = self._named("info_process", "pid")
        self.tids = self._named("info_thread", "tid")
        self.categories = self._named("event", "category_id")
        self.agents = {
            row["id"]: row for row in self._rows("info_agent", ("id", "type", *AGENT_NAMES))
        }
        gpus = [
            key for key, row in self.agents.items() if row["type"] == "GPU" and isinstance(key, int)
        ]
        self.numbers: dict[Any, int] = {key: number for number, key in enumerate(sorted(gpus))}

    def is_empty(self) -> bool:
        """Return whether the process has neither work on a device nor a call."""
        tables = ("kernel_dispatch", "memory_copy", "region")
        return not any(self._rows(table, ("id",), most=1) for table in tables)

    def recording(self) -> Recording:
        """Return the recording of the process."""
        if self._rows("pmc_event", ("id",), most=1):
            raise TraceError(
                f"{self.path} was recorded while counters were read, which makes kernels longer: its times "
                "are not used. Record without --pmc."
            )
        ids = self._correlations()
        notes: list[str] = []
        self._kernels(self._rows("kernel_dispatch", KERNELS), ids)
        self._copies(self._rows("memory_copy", COPIES), ids, notes)
        self._calls(self._rows("region", CALLS), ids)
        recording = rocprof.recording_of(self.builder, self.path)
        used = (
            set(np.unique(np.asarray(recording["device"])).tolist())
            if "device" in recording.columns
            else set()
        )
        recording.metadata["devices"] = [
            self._described(number, key) for key, number in self.numbers.items() if number in used
        ]
        return rocprof.finish(recording, notes)

    def _described(self, number: int, key: Any) -> dict[str, Any]:
        names = (self.agents.get(key, {}).get(name) for name in AGENT_NAMES)
        name = next((name for name in names if isinstance(name, str) and name), None)
        return {"id": number} if name is None else {"id": number, "name": name[:200]}

    def _kernels(self, rows: Rows, ids: dict[Any, int]) -> None:
        symbols = {
            row["id"]: row["display_name"] or row["kernel_name"]
            for row in self._rows("info_kernel_symbol", ("id", "display_name", "kernel_name"))
        }
        grids, threads = (
            [[row[f"{what}_size_{axis}"] for row in rows] for axis in AXES]
            for what in ("grid", "workgroup")
        )
        rocprof.add_kernels(
            self.builder, _times(rows), [str(symbols.get(row["kernel_id"]) or "") for row in rows],
            grids, threads, _streams(rows), correlation=_by_event(rows, ids),
            device=rocprof.numbers_of(self.numbers, [row["agent_id"] for row in rows]),
        )  # fmt: skip

    def _copies(self, rows: Rows, ids: dict[Any, int], notes: list[str]) -> None:
        rocprof.add_copies(
            self.builder, _times(rows), [self._direction(row) for row in rows], _streams(rows), notes,
            device=rocprof.ends_of(self.numbers, *([row[end] for row in rows] for end in ENDS)),
            bytes=whole([row["size"] for row in rows]), correlation=_by_event(rows, ids),
        )  # fmt: skip

    def _direction(self, row: dict[str, Any]) -> str:
        """Return the direction of a copy as its name says it, else as its ends do."""
        name = str(self.texts.get(row["name_id"]) or "")
        if rocprof.copy_name(name) != rocprof.copy_name(""):
            return name
        ends = [
            self.agents.get(row[side], {}).get("type") for side in ("src_agent_id", "dst_agent_id")
        ]
        words = ["DEVICE" if end == "GPU" else "HOST" if end == "CPU" else "" for end in ends]
        return "_TO_".join(words) if all(words) else ""

    def _calls(self, rows: Rows, ids: dict[Any, int]) -> None:
        domains = [str(self.texts.get(self.categories.get(row["event_id"])) or "") for row in rows]
        names = [str(self.texts.get(row["name_id"]) or "") for row in rows]
        columns = {
            "pid": whole([self.pids.get(row["pid"], UNKNOWN) for row in rows]),
            "tid": whole([self.tids.get(row["tid"], row["tid"]) for row in rows]),
            "correlation": _by_event(rows, ids),
        }
        rocprof.add_calls(self.builder, domains, names, *_times(rows), columns)

    def _correlations(self) -> dict[Any, int]:
        """Return the correlation of each event, by the id of the two that ties more work to calls."""
        events = self._rows("event", ("id", "stack_id", "correlation_id"))
        work = {row["event_id"] for table in ("kernel_dispatch", "memory_copy")
                for row in self._rows(table, ("event_id",))}  # fmt: skip
        calls = {row["event_id"] for row in self._rows("region", ("event_id",))}
        best: tuple[int, dict[Any, int]] = (-1, {})
        for column in ("stack_id", "correlation_id"):
            of = {
                row["id"]: row[column]
                for row in events
                if isinstance(row[column], int) and row[column] > 0
            }
            told = {of[event] for event in calls if event in of}
            tied = sum(of.get(event) in told for event in work if event in of)
            best = max(best, (tied, of), key=lambda each: each[0])
        return best[1]

    def _named(self, table: str, column: str) -> dict[Any, Any]:
        return {row["id"]: row[column] for row in self._rows(table, ("id", column))}

    def _rows(self, table: str, columns: tuple[str, ...], most: int = -1) -> Rows:
        """Return rows of a table; a column that it lacks is None, and so is all of one that is not there."""
        name = PREFIX + table + self.suffix
        there = {row[1] for row in self.connection.execute(f"PRAGMA table_info({quoted(name)})")}
        if not there:
            return []
        chosen = ", ".join(quoted(column) if column in there else "NULL" for column in columns)
        cursor = self.connection.execute(f"SELECT {chosen} FROM {quoted(name)} LIMIT {most}")  # noqa: S608
        return [dict(zip(columns, row, strict=True)) for row in cursor]


ENDS = ("dst_agent_id", "src_agent_id")
AGENT_NAMES = ("product_name", "model_name", "name")
TIMES = ("start", "end", "event_id")
KERNELS = (
    *TIMES, "agent_id", "kernel_id", "queue_id", "stream_id",
    *(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in AXES),
)  # fmt: skip
COPIES = (*TIMES, "name_id", *ENDS, "size", "queue_id", "stream_id")
CALLS = (*TIMES, "pid", "tid", "name_id")


def _times(rows: Rows) -> rocprof.Times:
    return whole([row["start"] for row in rows]), whole([row["end"] for row in rows])


def _streams(rows: Rows) -> np.ndarray:
    return rocprof.streams_or_queues(
        [row["stream_id"] for row in rows], [row["queue_id"] for row in rows]
    )


def _by_event(rows: Rows, ids: dict[Any, int]) -> np.ndarray:
    return whole([ids.get(row["event_id"], UNKNOWN) for row in rows])
