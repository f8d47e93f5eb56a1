"""A trace in the user's cache: what `daydream.load` gave, whole, so that it need not be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from daydream.errors import HandleError, TraceError
from daydream.files.cache import Contents, read_entry, write_entry
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMN, MEMORY = "trace.", "memory."  # begin the names of its arrays


class CacheEntry(Struct):
    """What is kept of a trace and of what was worked out from it, under a key that its content gives.

    `key_now` gives the key again: a file that changed while it was read is not kept under what it was before.
    """

    key: str
    key_now: Callable[[], str | None]
    found: Contents | None = None

    def read(self) -> Contents | None:
        """Return what is kept, None if nothing is. Each call maps it anew: who changes it changes its own."""
        found = self.found
        self.found = None
        return read_entry(self.key) if found is None else found

    def write(self, contents: Contents) -> bool:
        """Keep this; return whether that was done."""
        return self.key_now() == self.key and write_entry(self.key, contents)


def cached_trace(entry: CacheEntry) -> Trace | None:
    """Return the trace of an entry, checked as that of a file; None if none is kept, or it is not right."""
    found = entry.read()
    if found is None:
        return None
    try:
        document = found.document["trace"]
        columns, memory = (
            {
                name.removeprefix(of): array
                for name, array in found.arrays.items()
                if name.startswith(of)
            }
            for of in (COLUMN, MEMORY)
        )
        if any(column.dtype.kind != "i" for column in columns.values()):
            return None
        handles = None
        if document["handles"] is not None:
            from daydream.trace.handle_map import DebugHandleMap

            handles = DebugHandleMap.from_json(document["handles"])
        trace = Trace(
            columns,
            _texts(document["texts"]),
            dict(document["metadata"]),
            MemoryEvents(memory) if memory else None,
            handles,
        )
        trace.check(entry.key)
    except (TraceError, HandleError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None
    entry.found = found
    trace.cache = entry
    return trace


def trace_contents(trace: Trace) -> Contents:
    """Return what is kept of a trace."""
    arrays = {COLUMN + name: np.asarray(array) for name, array in trace.columns.items()}
    if trace.memory is not None:
        arrays |= {MEMORY + name: array for name, array in trace.memory.columns.items()}
    handles = None if trace.handles is None else trace.handles.to_json()
    return Contents(
        {"trace": {"texts": trace.texts, "metadata": trace.metadata, "handles": handles}}, arrays
    )


def _texts(given: dict[str, Any]) -> dict[str, list[str]]:
    for texts in given.values():
        if not isinstance(texts, list) or not set(map(type, texts)) <= {str}:
            raise TypeError("a text was needed")
    return given
