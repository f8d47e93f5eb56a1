"""Trace: what was measured, as columns, and its parquet file.

`daydream.trace.schema` tells its columns and what unknown is in them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import HandleError, TraceError
from daydream.lazy import NotebookTables
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import (
    FIELDS,
    IMPORT_AGAIN,
    METADATA_KEY,
    SCHEMA_VERSION,
    Document,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from daydream.trace.cached_trace import CacheEntry
    from daydream.trace.handle_map import DebugHandleMap


class Trace(NotebookTables):
    """A recorded run: columns of equal length, the texts behind coded columns, and metadata.

    `columns` maps field names to integer arrays; text columns hold codes into
    `texts[name]`. A field that is absent is unknown in every row and takes no
    memory. `metadata` is one JSON-able document: `steps` is a list of `{"name",
    "rank", "start_ns", "end_ns", "covered", "why_not"}`; `step_source` says where
    they come from; `devices`, `world_size`, `vendor` ("cuda", "rocm", "cpu", "npu", ...),
    `source` and `notes` (sentences about what was odd) are there when known. `memory` is the table of
    allocations and frees, None if the recording has none. `handles` says what compiled code came from,
    and the column `handle` which row has which of its identifiers; None if nothing is known of that.

    Example::

        trace = daydream.load("examples/mlp_cpu.json.gz")
        print(len(trace), trace.metadata["step_source"])
        operators = trace.is_kind("operator")
        print(trace["duration_ns"][operators].sum())

    """

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        texts: Mapping[str, list[str]],
        metadata: Mapping[str, Any] | None = None,
        memory: MemoryEvents | None = None,
        handles: DebugHandleMap | None = None,
    ) -> None:
        unknown = set(columns) - set(FIELDS)
        if unknown:
            raise TraceError(f"a trace has no column {min(unknown)!r}")
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise TraceError(f"columns of a trace differ in length: {sorted(lengths)}")
        self.columns = dict(columns)
        self.texts = {name: texts[name] for name in columns if FIELDS[name].type == "text"}
        self.metadata: Document = {"schema_version": SCHEMA_VERSION, **(metadata or {})}
        self.memory = memory if memory is not None and len(memory) else None
        self.handles = handles
        self.cache: CacheEntry | None = (
            None  # where what is worked out from it is kept; copies have none
        )
        self.file: str | None = None  # the name of the parquet file that it was read from
        self._rows = lengths.pop() if lengths else 0

    def __getstate__(self) -> Document:
        return {**self.__dict__, "cache": None}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column: integers, or codes for text; unknown throughout if absent."""
        if name in self.columns:
            return self.columns[name]
        return np.broadcast_to(np.int64(FIELDS[name].null), self._rows)

    def __repr__(self) -> str:
        steps = self.metadata.get("steps", [])
        return f"<Trace {len(self):,} rows, {len(steps)} steps, {self.metadata.get('source', 'unnamed')}>"

    @property
    def origin(self) -> str:
        """The file that people know it by, and what it was recorded as where that has another name."""
        source = str(self.metadata.get("source") or "unknown")
        return source if self.file in {None, source} else f"{self.file}, recorded as {source}"

    def text(self, name: str) -> list[str]:
        """Return the texts a coded column points into; empty if the column is absent."""
        return self.texts.get(name, [])

    def code(self, name: str, value: str) -> int:
        """Return the code of one text in a column, or -2 (which no row holds) if it never occurs."""
        try:
            return self.text(name).index(value)
        except ValueError:
            return -2

    def is_kind(self, *kinds: str) -> np.ndarray:
        """Return a mask of the rows of any of these kinds: bool, shape (rows,)."""
        column = self["kind"]
        mask = np.zeros(len(column), bool)
        for code, text in enumerate(self.text("kind")):
            if text in kinds:
                mask |= column == code
        return mask

    def values(self, name: str, rows: Iterable[int] | slice | None = None) -> list[Any]:
        """Return a column as Python values with `None` for unknown, for some rows or all."""
        column = (
            self[name]
            if rows is None
            else self[name][rows if isinstance(rows, slice) else list(rows)]
        )
        if FIELDS[name].type == "text":
            texts = self.text(name)
            return [texts[code] if code >= 0 else None for code in column.tolist()]
        null = FIELDS[name].null
        return [None if value == null else value for value in column.tolist()]

    def attach_handles(
        self, handles: DebugHandleMap, by: str = "name", *, rows: Any = None
    ) -> Trace:
        """Join a map of debug handles to the rows, and return the trace itself; a note says what matched.

        A row's operator, layer and phase become those of its handle with the largest share, where the handle
        says them; the kernel's name stays. Attach before a graph is built.

        Args:
            handles: the map.
            by: "name" (the kernel's name, and the order of its calls), "order" (of the calls) or
                "graph node id"; `daydream.trace.attach` tells of each.
            rows: the rows that may have handles, in order: int64 numbers, or a bool mask of all rows.

        Raises:
            HandleError: nothing matches, the way is unknown, or the trace has handles already.

        """
        from daydream.trace.attach import join

        return self.set_handles(handles, join(handles, self, by, rows), by=by)

    def set_handles(
        self, handles: DebugHandleMap, places: np.ndarray, *, by: str = "caller"
    ) -> Trace:
        """Say which identifier each row has, where that is known already; as `attach_handles` otherwise.

        `places` is each row's place in `handles.identifiers`, -1 for none: integers, shape (rows,).
        """
        from daydream.trace.attach import matched, take_over

        if self.handles is not None:
            raise HandleError(
                "this trace has debug handles already; join one map to a fresh import"
            )
        if np.shape(places) != (len(self),) or np.asarray(places).dtype.kind not in "iu":
            raise HandleError(
                f"{np.size(places):,} places were given for {len(self):,} rows; give one each"
            )
        if len(self) and not -1 <= int(np.min(places)) <= int(np.max(places)) < len(handles):
            raise HandleError(f"a place is out of range; the map has {len(handles):,} identifiers")
        take_over(self, handles, places)
        self.handles = handles
        self.cache = None
        notes = [*self.metadata.get("notes", []), f"{matched(self, handles, by)}."]
        if any(len(handles[one]) > 1 for one in handles):
            shared = {"flop": "by their FLOP", "bytes": "by their bytes"}.get(
                handles.rule, "equally"
            )
            notes.append(
                f"The time of a fused kernel is shared over the operators it came from {shared}."
            )
        self.metadata = {**self.metadata, "notes": notes}
        return self

    def to_pandas(self) -> pd.DataFrame:
        """Return the trace as a data frame, a column per known field, unknown as NA."""
        return self.to_arrow().to_pandas()

    def to_arrow(self) -> pa.RecordBatch:
        """Return the trace as an Arrow batch with nulls and dictionary-coded texts."""
        from daydream.trace.trace_file import to_batch, to_strings

        texts = {name: to_strings(texts) for name, texts in self.texts.items()}
        batch = to_batch(self.columns, texts, self.columns, slice(0, len(self)))
        return batch.replace_schema_metadata({METADATA_KEY: json.dumps(self.metadata)})

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the trace as parquet; the file appears whole or not at all.

        Raises `OutputError` if the path cannot be written, exists and `force` is not given, or is no file.
        """
        from daydream.files.atomic import write_whole
        from daydream.trace.trace_file import write_trace

        write_whole(path, lambda temporary: write_trace(self, temporary), force=force)

    def of_rank(self, name: str, rank: int) -> Any:
        """Return what the metadata has under a name: a rank's own where ranks differ; None if nothing."""
        own = {each["rank"]: each[name] for each in self.metadata.get("ranks", []) if name in each}
        return own.get(rank) if own else self.metadata.get(name)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        max_unpacked: int | None = None,
        steps: str | None = None,
    ) -> Trace:
        """Read a parquet trace; `max_unpacked` is how many bytes its columns may take.

        Of some `steps`, such as `"10:20"` or `"typical"`, little more than these is read; see `of_steps`.

        Raises `TraceError` if the file is missing, is not parquet, was not written by daydream,
        has a newer schema, or breaks a promise of `daydream.trace.schema` or `daydream.trace.metadata`;
        or if it has none of the steps.
        """
        from daydream.trace.trace_file import read_parts

        parts, cut = read_parts(path, max_unpacked=max_unpacked, steps=steps)
        trace = cls(*parts)
        trace.check(path)
        if steps is not None and not cut:
            try:
                trace = trace.of_steps(steps)
            except TraceError as error:
                raise TraceError(f"{path}: {error}") from None
        trace.file = os.path.basename(os.fspath(path))  # noqa: PTH119 - of any path
        return trace

    def of_steps(self, steps: str) -> Trace:
        """Return the trace of some steps, as if only they had been recorded; memory events are left out.

        `"10:20"` are the steps 10 to 19 of each rank, counted from 0; the step before them is kept for what
        they begin with, but is not covered. All steps are the trace itself. `"typical"` are those that stand
        for a long recording; all steps of a shorter one, or of one that holds memory events.

        Raises `TraceError` if it has none of them.
        """
        from daydream.trace.recorded_steps import chosen_steps

        chosen = chosen_steps(self.metadata, steps, len(self), with_memory=self.memory is not None)
        if chosen is None:
            return self
        rows = np.flatnonzero(chosen.rows(self["step"], self["rank"], self["start_ns"]))
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Trace(
            chosen.taken(columns, rows),
            self.texts,
            chosen.metadata,
            handles=self.handles,
        )

    def check(self, path: str | os.PathLike[str]) -> None:
        """Raise `TraceError`, which begins with the path, if the trace breaks a promise."""
        from daydream.trace.metadata import fill_in, mistake_in
        from daydream.trace.schema import check

        mistake = mistake_in(self.metadata)
        if mistake is not None:
            raise TraceError(f"{path}: {mistake}. {IMPORT_AGAIN}")
        fill_in(self.metadata)
        try:
            check(self)
        except TraceError as error:
            raise TraceError(f"{path}: {error}. {IMPORT_AGAIN}") from None
