"""What callbacks are given: single events with their fields, or all events of a kind as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.trace.memory_events import COLUMNS, MemoryEvents
from daydream.trace.schema import FIELDS, UNKNOWN

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

STEP_FIELDS = ("name", "rank", "start_ns", "end_ns", "covered")


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

    def __init__(self, table: Table, row: int) -> None:
        self.table = table
        self.row = row

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.row}>"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _field(name: str, meaning: str) -> property:
    return property(lambda self: self.table[name][self.row], doc=meaning)


class Event(Row):
    """A row of the trace. Its fields are those of `daydream.trace.schema` (`name`, `duration_ns`, ...).

    `parent` is the event around it, for device work the call that launched it; None if there is none.
    """

    __slots__ = ()

    @property
    def end_ns(self) -> int:
        """When it ends, ns from the trace's origin."""
        return int(self.table["start_ns"][self.row] + self.table["duration_ns"][self.row])

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

    @property
    def parent(self) -> Event | None:
        """The innermost event around it on its thread."""
        row = self.table["parent"][self.row]
        return None if row < 0 else Event(trace_table(self.table.trace), row)


class Step(Row):
    """A step of the recording: `name`, `rank`, `start_ns`, `end_ns`, `covered` (recorded as a whole)."""

    __slots__ = ()


for _name, _meaning in {name: field.meaning for name, field in FIELDS.items()}.items():
    if _name != "parent":
        setattr(Event, _name, _field(_name, _meaning))
for _name in COLUMNS:
    setattr(Allocation, _name, _field(_name, ""))
for _name in STEP_FIELDS:
    setattr(Step, _name, _field(_name, ""))


def trace_table(trace: Trace) -> Table:
    """Return the rows of a trace."""
    return Table(trace, trace.values)


def allocation_table(trace: Trace, memory: MemoryEvents) -> Table:
    """Return the memory events of a trace; `parent` is the row around each, -1 if none."""

    def column(name: str) -> list[Any]:
        if name == "parent":
            from daydream.memory.enclosing import enclosing_rows

            return list(enclosing_rows(trace, memory).tolist())
        always = name in ("bytes", "device")  # where -1 and 0 are values
        return [
            None if value == COLUMNS[name][2] and not always else value for value in memory[name].tolist()
        ]

    return Table(trace, column)


def step_table(trace: Trace) -> Table:
    """Return the steps of a trace."""
    steps = trace.metadata.get("steps", [])
    return Table(trace, lambda name: [step.get(name) for step in steps])


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


def step_columns(trace: Trace) -> Callable[[str], np.ndarray]:
    """Return what gives a column of the steps as numbers, -1 where it has none."""
    steps: list[Mapping[str, Any]] = trace.metadata.get("steps", [])
    return lambda name: np.array([_number(step.get(name)) for step in steps], np.int64)


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int) else UNKNOWN
