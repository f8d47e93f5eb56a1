"""What a graph is made of: columns, lanes, tables of constraints, what was learned building it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy import ndarray

from daydream.errors import GraphError
from daydream.trace.schema import FIELDS, PHASES

KINDS = ("cpu", "kernel", "memcpy", "memset", "collective")
CPU, KERNEL, MEMCPY, MEMSET, COLLECTIVE = range(len(KINDS))  # their codes in the column `kind`
DEVICE_KINDS = KINDS[1:]
UNTRACED_NODES = "untraced graph nodes"  # names of device work without a row
UNTRACED_HEAD = "untraced work from before the window"
ORDER_STEP = 4096  # program-order keys between two nanoseconds, room for inserted tasks

COLUMNS: dict[str, Any] = {
    "lane": np.int32,
    "kind": np.int8,
    "name": np.int32,
    "op": np.int32,
    "layer": np.int32,
    "phase": np.int8,
    "step": np.int32,
    "row": np.int32,  # row of the trace, -1 for what was not measured
    "duration_ns": np.int64,
    "gap_ns": np.int64,
    "release_ns": np.int64,  # earliest start, 0 for none
    "launch": np.int32,  # task that launched this one, -1 for none
    "latency_ns": np.int64,  # from the launch's start to the earliest start of the device work
    "order": np.int64,
    "measured_start_ns": np.int64,  # -1 for what was not measured
    "repeat": np.int16,  # 0 for what was there, n for its n-th repetition by an edit
    "doubt": np.float16,  # what part of the duration may be a wait: nothing recorded tells
    "gap_doubt": np.float16,  # likewise of the gap
    "alive": np.bool_,  # not removed
}
DEFAULTS = {name: field.null for name, field in FIELDS.items() if name not in COLUMNS} | {
    "row": -1,
    "launch": -1,
    "step": -1,
    "phase": -1,
    "op": -1,
    "layer": -1,
    "measured_start_ns": -1,
    "alive": True,
}
COSTS = {"duration_ns": "doubt", "gap_ns": "gap_doubt"}
# No edge of a plan depends on these columns, nor on those of the trace that edits changed.
NO_EDGE = {*FIELDS}.difference(COLUMNS) | {*COSTS, *COSTS.values()}
CODED = ("name", "op", "layer")
TABLES = ("columns", "syncs", "waits", "links", "doubtful")  # of a graph
LONGEST_NS = 2**52  # 52 days; sums over a trace stay exact


next_version = count(1).__next__  # a number for the next write, above those of all writes before it


class Lane(NamedTuple):
    """What runs one task at a time: a CPU thread, a stream, a link."""

    name: str
    rank: int = 0
    on_device: bool = False
    device: int = -1
    background: bool = False  # a thread that nothing waits for, such as a watchdog
    host: bool = False  # a pool of CPU threads that runs launched work (gloo), no device


def step_rank(step: Mapping[str, Any]) -> int:
    """Return the rank whose step it is."""
    return int(step.get("rank", 0))


def covered_steps(graph: Any) -> ndarray:
    """Return by its number whether each step of a graph is covered; at the end False for no step."""
    return np.array([*(bool(step.get("covered")) for step in graph.steps), False])


class Table:
    """Columns by name, arrays of one length that are read-only; writing replaces an array.

    Rows that were appended are joined to a column when it is read next, so that many insertions cost
    one copy of the columns that they look at. A table is a draft until it is frozen: its arrays can be
    written to in place. `version` is that of the last write, `structure` of the last one that edges of a plan
    depend on: numbers that no two writes share.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = types
        self._parts = {name: [np.empty(0, dtype)] for name, dtype in types.items()}
        self.frozen = False
        self.version = self.structure = next_version()

    @classmethod
    def of(cls, *names: str) -> Table:
        """Return an empty table with these columns, int64."""
        return cls(dict.fromkeys(names, np.int64))

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(map(len, next(iter(self._parts.values()))))

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __getitem__(self, name: str) -> ndarray:
        parts = self._parts[name]
        if len(parts) > 1:
            whole = np.concatenate(parts)
            whole.flags.writeable = not self.frozen
            self._parts[name] = parts = [whole]
        return parts[0]

    def add(self, **rows: Any) -> None:
        """Append rows: a value for all of them or one for each; what is not given takes its default."""
        count = np.broadcast(*rows.values()).size
        if not count:
            return
        for name, dtype in self.types.items():
            part = np.empty(count, dtype)
            part[:] = rows.get(name, DEFAULTS.get(name, 0))
            self._parts[name].append(part)
        self.version = self.structure = next_version()

    def put(self, name: str, values: ndarray) -> None:
        """Replace a column, by an array that is the table's from now on."""
        whole = np.asarray(values, self.types[name])
        whole.flags.writeable = not self.frozen
        self._parts[name] = [whole]
        self.version = next_version()
        if name not in NO_EDGE:
            self.structure = self.version

    def write(self, name: str, rows: Any, values: Any) -> None:
        """Give some rows of a column (places or a mask) new values: one for all, or one for each."""
        whole = self[name].copy()
        whole[rows] = values
        self.put(name, whole)

    def keep(self, mask: ndarray) -> None:
        """Drop the rows that the mask leaves out."""
        for name in self:
            self.put(name, self[name][mask])

    def freeze(self) -> None:
        """Make the arrays read-only from now on."""
        self.frozen = True
        for name in self:
            self[name].flags.writeable = False

    def copy(self) -> Table:
        """Return a table that is independent of this one, both frozen; arrays are held once."""
        self.freeze()
        twin = copy.copy(self)
        twin._parts = {name: [*parts] for name, parts in self._parts.items()}
        return twin


ALL_LANES = -1  # `syncs["lane"]`: every device lane of the call's rank


class Facts(Struct):
    """What the builder learned and what it could not resolve; part of every result."""

    launch_latency_ns: int = 0
    startup_ns: int = 0
    launch_cost_ns: int = 0
    event_waits: dict[str, int] = field(
        default_factory=lambda: {"recorded": 0, "inferred": 0, "unresolved": 0}
    )
    queue_depth: int | None = None
    queue_learned: bool = False
    orphans: int = 0
    unexplained: int = 0  # device tasks that started later than their known causes allow
    unexplained_ns: int = 0
    untraced_ns: int = (
        0  # device work that the profiler left out, inside graphs and before the window
    )
    unresolved_syncs: int = 0
    unlaunched_kernels: int = 0
    work: float = 1.0  # how many times the recorded samples a step covers, or tokens
    work_unit: str = "samples"
    rules: list[str] = field(default_factory=list)  # by what a change knew its kernels
    notes: list[str] = field(default_factory=list)

    def copy(self) -> Facts:
        """Return independent facts."""
        return copy.deepcopy(self)


def phase_code(phase: str | None) -> int:
    """Return the code of a phase, -1 for None."""
    return -1 if phase is None else code_of(phase, "phase", PHASES)


def kind_code(kind: str) -> int:
    """Return the code of a kind of task."""
    return code_of(kind, "kind", KINDS)


def code_of(text: str, what: str, known: Sequence[str]) -> int:
    """Return the place of a word among those known. Raises `GraphError` if it is none of them."""
    if text not in known:
        raise GraphError(f"unknown {what} {text!r}; the {what}s are {', '.join(known)}")
    return known.index(text)


def nanoseconds(values: Any, what: str = "a duration", *, negative: bool = False) -> ndarray:
    """Return times as whole nanoseconds, halves rounded up. Raises `GraphError` for what is no time."""
    try:
        given = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise GraphError(f"{what} must be a number of nanoseconds, not {values!r}") from None
    if not np.isfinite(given).all():
        raise GraphError(f"{what} must be a finite number of nanoseconds")
    if not negative and (given < 0).any():
        raise GraphError(f"{what} cannot be negative ({given.min():g} ns)")
    if (given >= LONGEST_NS).any():
        raise GraphError(f"{what} is longer than can be counted in nanoseconds")
    return np.floor(given + 0.5).astype(np.int64)  # exact: below 2**52 no half is lost
