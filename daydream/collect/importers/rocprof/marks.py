"""By what files of rocprofv3 are known, before anything that reads them is loaded."""

from __future__ import annotations

JSON_KEY = b'"rocprofiler-sdk-tool"'
KERNELS, CALLS, COPIES, AGENTS, COUNTERS, OTHER = "kernels", "calls", "copies", "agents", "counters", "other"
"""Sorts of tables; the last one has times of something that is no row of a trace (memory, scratch)."""
TIMES = frozenset({"start_timestamp", "end_timestamp"})


def is_rocprof_json(head: bytes) -> bool:
    """Return whether a file that begins so is rocprofv3's JSON."""
    return head.lstrip()[:1] == b"{" and JSON_KEY in head


def columns_of(line: str) -> list[str]:
    """Return the names of the columns in a header, in lower case and without quotes."""
    return [name.strip().strip('"').strip().lower() for name in line.split(",")]


def table_of(columns: list[str]) -> str | None:
    """Return what sort of rocprofv3's tables has such columns; None if none has."""
    names = set(columns)
    if {"counter_name", "counter_value"} <= names and "kernel_name" in names:
        return COUNTERS
    if {"node_id", "agent_type"} <= names:
        return AGENTS
    if not names >= TIMES:
        return None
    if {"kernel_name", "correlation_id"} <= names:
        return KERNELS
    if {"domain", "function"} <= names:
        return CALLS
    if "direction" in names:
        return COPIES
    return OTHER if "kind" in names else None


def is_rocprof_table(head: bytes) -> bool:
    """Return whether a file that begins so is one of rocprofv3's CSV tables."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return b"," in line and table_of(columns_of(line.decode("utf-8", "replace"))) is not None
