"""What a tool is: a class with callbacks and a result. And what callbacks are given: events, or their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from daydream.errors import DaydreamError
from daydream.text import meant
from daydream.trace.memory_events import COLUMNS, MAY_BE_UNKNOWN, MemoryEvents
from daydream.trace.schema import FIELDS, UNKNOWN

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

Class = TypeVar("Class", bound=type)
# callback for one event -> (callback for all of them as columns, kinds of rows)
CALLBACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "on_kernel": ("on_kernels", ("kernel", "collective")),
    "on_collective": ("on_collectives", ("collective",)),
    "on_copy": ("on_copies", ("memcpy", "memset")),
    "on_operator": ("on_operators", ("operator",)),
    "on_call": ("on_calls", ("runtime",)),
    "on_annotation": ("on_annotations", ("annotation",)),
    "on_allocation": ("on_allocations", ()),
    "on_step": ("on_steps", ()),
}
KNOWN = {name for one, (several, _) in CALLBACKS.items() for name in (one, several)}
MARK = "_daydream_tool"


STEP_FIELDS = ("name", "rank", "start_ns", "end_ns", "covered")


class ToolError(DaydreamError):
    """A tool is none, or it failed."""


class Table:
    """What events are rows of: columns as arrays, and as Python values, which are made once.

    Args:
        trace: the trace.
        noun: what a row is called.
        fields: the names of its fields.
        array: gives a column as an array, unknown as -1.
        values: gives a column as a list, unknown as None; `parent` holds rows of the trace.
        events: the table of the trace's own rows, where this is another one.
    """

    def __init__(
        self,
        trace: Trace,
        noun: str,
        fields: Collection[str],
        array: Callable[[str], np.ndarray],
        values: Callable[[str], list[Any]],
        events: Table | None = None,
    ) -> None:
        self.trace = trace
        self.noun = noun
        self.fields = fields
        self.array = array
        self.values = cache(values)
        self.events = events or self


class Event:
    """An event: its fields are attributes, unknown is None.

    A row of the trace has the fields of `daydream.trace.schema` (`name`, `duration_ns`, ...) and `end_ns`.
    Memory that is allocated, or freed where `bytes` is negative, has `time_ns`, `rank`, `device` (-1 is the
    CPU), `address`, `bytes`, `allocated_bytes`, `reserved_bytes` (the device's totals after it), `pid` and
    `tid`. A step has `name`, `rank`, `start_ns`, `end_ns` and `covered` (recorded as a whole).
    """

    __slots__ = ("row", "table")

    def __init__(self, table: Table, row: int) -> None:
        self.table = table
        self.row = row

    def __getattr__(self, name: str) -> Any:
        if name not in self.table.fields:
            raise AttributeError(f"{self.table.noun} has no field {name!r}")
        return self.table.values(name)[self.row]

    def __repr__(self) -> str:
        return f"<{self.table.noun} {self.row}>"

    @property
    def parent(self) -> Event | None:
        """The event around it, for device work the call that launched it; None if there is none."""
        row = self.table.values("parent")[self.row]
        return None if row is None else Event(self.table.events, row)

    @property
    def around(self) -> Iterator[Event]:
        """All events around it, the innermost first."""
        event = self.parent
        while event is not None:
            yield event
            event = event.parent


class Events:
    """All events of a kind that a range leaves, as columns: what `on_kernels` and its like are given.

    `events["duration_ns"]` is an integer array of shape (events,), unknown as -1; `events.values("name")`
    is a list of Python values, unknown as None; iterating gives one `Event` after the other.
    """

    def __init__(self, table: Table, rows: np.ndarray, when: str = "start_ns") -> None:
        self.table = table
        self.rows = rows
        self.when = when

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column: int64 or int32, shape (events,); of text its codes, which `texts` explains."""
        return np.asarray(self.table.array(name)[self.rows])

    def __iter__(self) -> Iterator[Event]:
        return map(self.row, range(len(self)))

    @cached_property
    def _at(self) -> list[int]:
        return list(self.rows.tolist())

    def row(self, place: int) -> Event:
        """Return the event at a place among these."""
        return Event(self.table, self._at[place])

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values, unknown as None."""
        column = self.table.values(name)
        return [column[at] for at in self._at]

    @property
    def trace(self) -> Trace:
        """The trace that they are of."""
        return self.table.trace

    def texts(self, name: str) -> list[str]:
        """Return the texts that the codes of a column stand for."""
        return self.trace.text(name)


def tables(trace: Trace) -> tuple[Table, Table, Table]:
    """Return the tables of a trace: of its rows, of memory allocated and freed, and of steps."""
    nothing = np.zeros(0, np.int64)
    memory = trace.memory or MemoryEvents({"time_ns": nothing, "bytes": nothing})
    steps = trace.metadata.get("steps", [])

    def of_rows(name: str) -> list[Any]:
        if name == "end_ns":
            return list((trace["start_ns"] + trace["duration_ns"]).tolist())
        return trace.values(name)

    def of_memory(name: str) -> list[Any]:
        if name == "parent":
            from daydream.memory.enclosing import enclosing_rows

            column = enclosing_rows(trace, memory)
            unknown = UNKNOWN
        else:
            column = memory[name]
            (_, _, unknown) = COLUMNS[name]
        may_be = name in {"parent", *MAY_BE_UNKNOWN}
        return [None if may_be and value == unknown else value for value in column.tolist()]

    def of_steps(name: str) -> list[Any]:
        return [step.get(name) for step in steps]

    def numbers(name: str) -> np.ndarray:
        whole = (value if isinstance(value, int) else UNKNOWN for value in of_steps(name))
        return np.fromiter(whole, np.int64, len(steps))

    rows = Table(trace, "Event", {*FIELDS, "end_ns"}, trace.__getitem__, of_rows)
    return (
        rows,
        Table(trace, "Allocation", COLUMNS, memory.__getitem__, of_memory, rows),
        Table(trace, "Step", STEP_FIELDS, numbers, of_steps, rows),
    )


def tool(cls: Class) -> Class:
    """Make a class a tool: `@daydream.tool` above a class with callbacks and `result`.

    A tool has at least one callback and `result(self)`, which returns a mapping: numbers and texts by
    themselves, or lists of mappings, which are shown as tables. Columns end in their unit (`total_ns`,
    `bytes`). It is made without arguments. Callbacks:

    | one event at a time, by start time | all at once, as columns | what |
    |---|---|---|
    | `on_kernel` | `on_kernels` | kernels of a device, collectives included |
    | `on_collective` | `on_collectives` | collectives |
    | `on_copy` | `on_copies` | copies and memsets of a device |
    | `on_operator` | `on_operators` | operators of a CPU thread |
    | `on_call` | `on_calls` | calls of the CUDA or HIP runtime |
    | `on_annotation` | `on_annotations` | ranges that a person or a library named |
    | `on_allocation` | `on_allocations` | memory allocated and freed |
    | `on_step` | `on_steps` | steps |

    Those with columns run first, each once. Concept: PASTA (CGO 2026), sections 3 and 4.

    Returns:
        The class itself.

    Raises:
        ToolError: the class has no callback, one of an unknown name, or no `result`.
    """
    name = getattr(cls, "__name__", str(cls))
    own = [each for each in dir(cls) if each.startswith("on_")]
    for each in own:
        if each not in KNOWN:
            hint = meant(each, KNOWN, f"Callbacks are {', '.join(sorted(KNOWN))}.")
            raise ToolError(f"{name} has {each}, which is no callback. {hint}")
    if not own:
        raise ToolError(f"{name} has no callback, such as on_kernel(self, kernel)")
    if not callable(getattr(cls, "result", None)):
        raise ToolError(f"{name} has no result(self), which returns what it found as a mapping")
    setattr(cls, MARK, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    return cls
