"""By what files of rocprofv3 are known, before anything that reads them is loaded."""

from __future__ import annotations

JSON_KEY = b'"rocprofiler-sdk-tool"'
KERNELS, CALLS, COPIES, AGENTS, COUNTERS, OTHER = "kernels", "calls", "copies", "agents", "counters", "other"
"""Sorts of tables; the last one has times of something that is no row of a trace (memory, scratch)."""
TIMES = frozenset({"start_timestamp", "end_timestamp"})
NEEDED = {  # in this order: the first of which a table has all columns
    COUNTERS: frozenset({"counter_name", "counter_value", "kernel_name"}),
    AGENTS: frozenset({"node_id", "agent_type"}),
    KERNELS: TIMES | {"kernel_name", "correlation_id"},
    CALLS: TIMES | {"domain", "function"},
    COPIES: TIMES | {"direction"},
    OTHER: TIMES | {"kind"},
}


def is_rocprof_json(head: bytes) -> bool:
    """Return whether a file that begins so is rocprofv3's JSON."""
    return head.lstrip()[:1] == b"{" and JSON_KEY in head


def columns_of(line: str) -> list[str]:
    """Return the names of the columns in a header, in lower case and without quotes."""
    return [name.strip().strip('"').strip().lower() for name in line.split(",")]


def table_of(columns: list[str]) -> str | None:
    """Return what sort of rocprofv3's tables has such columns; None if none has."""
    names = set(columns)
    return next((sort for sort, needed in NEEDED.items() if needed <= names), None)


def is_rocprof_table(head: bytes) -> bool:
    """Return whether a file that begins so is one of rocprofv3's CSV tables."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return b"," in line and table_of(columns_of(line.decode("utf-8", "replace"))) is not None
