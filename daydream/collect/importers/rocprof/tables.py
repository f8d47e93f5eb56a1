"""rocprofv3's CSV tables of one run as a `Recording`. This file is the only one that knows their columns.

A run writes a table for each sort of rows: `kernel_trace`, `hip_api_trace` (or `hip_runtime_trace`),
`hsa_api_trace`, `rccl_api_trace`, `marker_api_trace`, `memory_copy_trace`, and `agent_info` for its devices.
Which one a file is, its columns tell; capitals, and columns that were added or renamed, do not matter.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.formats import (
    AGENTS,
    CALLS,
    COPIES,
    COUNTERS,
    KERNELS,
    OTHER,
    columns_of,
    table_of,
)
from daydream.collect.importers.kineto.blocks import opened
from daydream.collect.importers.rocprof import rows as rocprof
from daydream.collect.importers.row_builder import RowBuilder, whole
from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.trace.schema import NO_ID, UNKNOWN

PORTION = 1 << 14  # rows
LONGEST_LINE = 1 << 20
BLOCK_BYTES = 1 << 16
AGENT = regex(r"(\d{1,18})$")  # `Agent 4`, or the number alone
TABLE_IN_NAME = regex(
    r"_?(kernel|hip_api|hip_runtime|hip_runtime_api|hip_compiler_api|hsa_api|rccl_api|marker_api|memory_copy|"
    r"memory_allocation|scratch_memory|agent_info)(_trace)?\.csv(\.gz)?$"
)
Columns = dict[str, list[str]]


def runs_of_tables(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each run: of one, or by what stands before the table in their names.

    Two tables of kernels, or two of the calls of one interface, are of two runs.
    """
    named: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        named.setdefault((path.parent, TABLE_IN_NAME.sub("", path.name)), []).append(path)
    sorts = [_sort_in_name(path) for path in paths]
    return [list(paths)] if len(set(sorts)) == len(sorts) else list(named.values())


def _sort_in_name(path: Path) -> str:
    found = TABLE_IN_NAME.search(path.name)
    return found.group(1) if found else path.name


def read_rocprof_tables(
    paths: Sequence[Path],
    *,
    progress: Callable[[float], None] | None,
    max_unpacked: int | None,
) -> Recording:
    """Return the recording of one run, of its CSV or CSV.gz tables.

    Raises `TraceError` if a table is damaged, is of counters, or none has a row.
    """
    reader = _Reader()
    for number, path in enumerate(paths):
        try:
            with opened(path, max_unpacked) as (file, _, _):
                reader.read(path, file)
        except csv.Error as error:
            raise TraceError(f"{path} is not a readable CSV table ({error}).") from None
        if progress is not None:
            progress((number + 1) / len(paths))
    return reader.recording(paths)


class _Reader:
    """The tables of a run, one after the other, into one builder."""

    def __init__(self) -> None:
        self.builder = RowBuilder()
        self.notes: list[str] = []
        self.others: list[str] = []
        self.agents: dict[int, dict[str, Any]] = {}  # GPUs of agent_info, by number of the node
        self.cut = 0

    def read(self, path: Path, file: IO[bytes]) -> None:
        lines = _lines(path, file)
        header = next(lines, "")
        names = columns_of(header)
        sort = table_of(names)
        if sort == COUNTERS:
            raise TraceError(
                f"{path} is a table of counters, whose run they made longer: give it with --counters, next "
                "to a trace that was recorded without."
            )
        if sort is None:
            raise TraceError(
                f"{path} is none of rocprofv3's tables: its columns are {header[:100]!r}."
            )
        if sort == OTHER:
            self.others.append(path.name)
            return
        add = {
            KERNELS: self._kernels,
            CALLS: self._calls,
            COPIES: self._copies,
            AGENTS: self._agents,
        }[sort]
        for rows, cut in _portions(lines, names):
            self.cut += cut
            if rows:
                add(
                    {
                        name: list(column)
                        for name, column in zip(names, zip(*rows, strict=True), strict=True)
                    }
                )

    def recording(self, paths: Sequence[Path]) -> Recording:
        self.builder.left_out["had more or fewer fields than the header"] += self.cut
        recording = rocprof.recording_of(self.builder, paths[0])
        if len(paths) > 1:
            recording.metadata["source"] += f" and {len(paths) - 1} more"
        if self.others:
            self.notes.append(
                f"Left out, as it holds no rows of a trace: {', '.join(sorted(self.others))}."
            )
        recording.metadata["devices"] = self._number_devices(recording)
        return rocprof.finish(recording, self.notes)

    def _kernels(self, columns: Columns) -> None:
        items, threads = (
            [_column(columns, f"{what}_size_{axis}", "1") for axis in "xyz"]
            for what in ("grid", "workgroup")
        )
        for triple, what in ((items, "grid_size"), (threads, "workgroup_size")):
            if f"{what}_x" not in columns:  # some tables give the product alone
                triple[0] = _column(columns, what, "")
        rocprof.add_kernels(
            self.builder,
            _times(columns),
            columns["kernel_name"],
            items,
            threads,
            _streams(columns, "queue_id"),
            correlation=_correlation(columns),
            device=_agent(columns, "agent_id"),
        )

    def _copies(self, columns: Columns) -> None:
        source = _agent(columns, "source_agent_id")
        target = _agent(columns, "destination_agent_id")
        to_host = np.array(
            ["DEVICE_TO_HOST" in text.upper() for text in columns["direction"]], bool
        )
        rocprof.add_copies(
            self.builder,
            _times(columns),
            columns["direction"],
            _streams(columns, ""),
            self.notes,
            correlation=_correlation(columns),
            device=np.where(to_host, source, target),
            bytes=_numbers(columns, "bytes"),
        )

    def _calls(self, columns: Columns) -> None:
        pid = _numbers(columns, "process_id")
        tid = _numbers(columns, "thread_id")
        given = {
            "pid": np.where(pid < 0, NO_ID, pid),
            "tid": np.where(tid < 0, NO_ID, tid),
            "correlation": _correlation(columns),
        }
        rocprof.add_calls(
            self.builder, columns["domain"], columns["function"], *_times(columns), given
        )

    def _agents(self, columns: Columns) -> None:
        nodes = _numbers(columns, "node_id").tolist()
        names = _column(columns, "product_name", "")
        units = _numbers(columns, "cu_count").tolist()
        for node, sort, name, count in zip(nodes, columns["agent_type"], names, units, strict=True):
            if sort.strip().upper() == "GPU" and node >= 0:
                described = {"name": name.strip()} if name.strip() else {}
                self.agents[node] = described | ({"multiprocessors": count} if count > 0 else {})

    def _number_devices(self, recording: Recording) -> list[dict[str, Any]]:
        """Number the devices from 0, by their agents' numbers, and return what is known of those used."""
        if "device" not in recording.columns:
            return []
        column = np.asarray(recording.columns["device"], np.int64)
        used = np.unique(column[column >= 0]).tolist()
        agents = sorted({*used, *self.agents})
        number = {agent: place for place, agent in enumerate(agents)}
        recording.columns["device"] = np.array(
            [number.get(agent, UNKNOWN) for agent in column.tolist()], np.int64
        )
        return [{"id": number[agent], **self.agents.get(agent, {})} for agent in used]


def _lines(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a table as text; one without an end would be no table."""
    block = b" "
    rest = b""
    while block:
        block = file.read(BLOCK_BYTES)  # of text in another encoding it may be more
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise TraceError(
                f"{path} is not a table: it has a line of more than {LONGEST_LINE:,} bytes."
            )
        for line in lines if block else [rest]:
            if line.strip():
                yield line.decode("utf-8", "replace").replace("\0", "\ufffd") + "\n"


def _portions(lines: Iterator[str], names: list[str]) -> Iterator[tuple[list[list[str]], int]]:
    """Yield rows that have as many fields as the header, some at a time, and how many others there were."""
    rows: list[list[str]] = []
    others = 0
    for row in csv.reader(lines):
        if len(row) == len(names):
            rows.append(row)
        else:
            others += 1
        if len(rows) == PORTION:
            yield rows, others
            rows = []
            others = 0
    yield rows, others


def _column(columns: Columns, name: str, otherwise: str) -> list[str]:
    return columns.get(name) or [otherwise] * len(next(iter(columns.values())))


def _numbers(columns: Columns, name: str) -> np.ndarray:
    return whole(_column(columns, name, ""))


def _streams(columns: Columns, queues: str) -> np.ndarray:
    return rocprof.streams_or_queues(
        _column(columns, "stream_id", ""), _column(columns, queues, "")
    )


def _times(columns: Columns) -> rocprof.Times:
    return whole(columns["start_timestamp"]), whole(columns["end_timestamp"])


def _correlation(columns: Columns) -> np.ndarray:
    return rocprof.correlations(_column(columns, "correlation_id", ""))


def _agent(columns: Columns, name: str) -> np.ndarray:
    found = [AGENT.search(text.strip()) for text in _column(columns, name, "")]
    return whole([match.group(1) if match else "" for match in found])
