"""What callbacks are given: single events with their fields, or all events of a kind as columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from daydream.trace.memory_events import COLUMNS, MemoryEvents
from daydream.trace.schema import FIELDS, UNKNOWN

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

NO_MEMORY = {"time_ns": np.zeros(0, np.int64), "bytes": np.zeros(0, np.int64)}


class Table(dict[str, list[Any]]):
    """Columns as Python values, each made when it is first asked for."""

    def __init__(self, trace: Trace, column: Callable[[str], list[Any]]) -> None:
        super().__init__()
        self.trace = trace
        self._column = column

    def __missing__(self, name: str) -> list[Any]:
        values = self[name] = self._column(name)
        return values


class Row:
    """A row of a table: its fields are attributes, unknown is None."""

    __slots__ = ("row", "table")
    fields: ClassVar[Collection[str]] = ()

    def __init__(self, table: Table, row: int) -> None:
        self.table = table
        self.row = row

    def __getattr__(self, name: str) -> Any:
        if name not in self.fields:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        return self.table[name][self.row]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.row}>"


class Event(Row):
    """A row of the trace. Its fields are those of `daydream.trace.schema` (`name`, `duration_ns`, ...).

    `parent` is the event around it, for device work the call that launched it; None if there is none.
    """

    __slots__ = ()
    fields = FIELDS

    @property
    def end_ns(self) -> int:
        """When it ends, ns from the trace's origin."""
        return int(self.start_ns + self.duration_ns)

    @property
    def parent(self) -> Event | None:
        """The event around it, or for device work the call that launched it."""
        row = self.table["parent"][self.row]
        return None if row is None else Event(self.table, row)

    @property
    def around(self) -> Iterator[Event]:
        """All events around it, the innermost first."""
        event = self.parent
        while event is not None:
            yield event
            event = event.parent


class Allocation(Row):
    """Memory that is allocated, or freed where `bytes` is negative.

    Fields: `time_ns`, `rank`, `device` (-1 is the CPU), `address`, `bytes`, `allocated_bytes`,
    `reserved_bytes` (the device's totals after it), `pid`, `tid`.
    """

    __slots__ = ()
    fields = COLUMNS

    @property
    def parent(self) -> Event | None:
        """The innermost event around it on its thread."""
        row = self.table["parent"][self.row]
        return None if row < 0 else Event(Table(self.table.trace, self.table.trace.values), row)


class Step(Row):
    """A step of the recording: `name`, `rank`, `start_ns`, `end_ns`, `covered` (recorded as a whole)."""

    __slots__ = ()
    fields = ("name", "rank", "start_ns", "end_ns", "covered")


class Events:
    """All events of a kind that a range leaves, as columns: what `on_kernels` and its like are given.

    `events["duration_ns"]` is an integer array of shape (events,), unknown as -1; `events.values("name")`
    is a list of Python values, unknown as None; iterating gives one `Event` after the other.
    """

    def __init__(
        self,
        kind: type[Row],
        table: Table,
        rows: np.ndarray,
        columns: Callable[[str], np.ndarray],
        when: str = "start_ns",
    ) -> None:
        self.rows = rows
        self.when = when
        self._kind, self._table, self._columns = kind, table, columns
        self._at: list[int] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column: int64 or int32, shape (events,); of text its codes, which `texts` explains."""
        return np.asarray(self._columns(name)[self.rows])

    def __iter__(self) -> Iterator[Row]:
        return (self._kind(self._table, row) for row in self.rows.tolist())

    def row(self, place: int) -> Row:
        """Return the event at a place among these."""
        if self._at is None:
            self._at = self.rows.tolist()
        return self._kind(self._table, self._at[place])

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values, unknown as None."""
        column = self._table[name]
        return [column[at] for at in self.rows.tolist()]

    @property
    def trace(self) -> Trace:
        """The trace that they are of."""
        return self._table.trace

    def texts(self, name: str) -> list[str]:
        """Return the texts that the codes of a column stand for."""
        return self.trace.text(name)


def rows_of(trace: Trace, rows: np.ndarray) -> Events:
    """Return these rows of a trace."""
    return Events(Event, Table(trace, trace.values), rows, lambda name: trace[name])


def allocations_of(trace: Trace, rows: np.ndarray) -> Events:
    """Return these memory events of a trace; `parent` is the row around each, -1 if none."""
    memory = MemoryEvents(NO_MEMORY) if trace.memory is None else trace.memory

    def column(name: str) -> list[Any]:
        if name == "parent":
            from daydream.memory.enclosing import enclosing_rows

            return list(enclosing_rows(trace, memory).tolist())
        unknown = (
            None if name in {"bytes", "device"} else COLUMNS[name][2]
        )  # where -1 and 0 are values
        return [None if value == unknown else value for value in memory[name].tolist()]

    return Events(Allocation, Table(trace, column), rows, lambda name: memory[name], "time_ns")


def steps_of(trace: Trace, rows: np.ndarray) -> Events:
    """Return these steps of a trace; a column has -1 where a step has no whole number."""
    steps: list[Mapping[str, Any]] = trace.metadata.get("steps", [])

    def numbers(name: str) -> np.ndarray:
        values = (step.get(name) for step in steps)
        return np.array(
            [value if isinstance(value, int) else UNKNOWN for value in values], np.int64
        )

    return Events(
        Step, Table(trace, lambda name: [step.get(name) for step in steps]), rows, numbers
    )
