"""What a graph is made of: columns, lanes, tables of constraints, what was learned building it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from daydream.errors import GraphError
from daydream.trace.schema import PHASES

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
}
DEFAULTS = {"row": -1, "launch": -1, "step": -1, "phase": -1, "op": -1, "layer": -1, "measured_start_ns": -1}
CODED = ("name", "op", "layer")
UNSET = -(2**62)  # in `Graph.overrides`: the trace's own value stands
LONGEST_NS = 2**52  # 52 days; sums over a trace stay exact


class Lane(NamedTuple):
    """What runs one task at a time: a CPU thread, a stream, a link."""

    name: str
    rank: int = 0
    on_device: bool = False
    device: int = -1
    background: bool = False  # a thread that nothing waits for, such as a watchdog
    host: bool = False  # a pool of CPU threads that runs launched work (gloo), no device


@dataclass
class Table:
    """Rows of a constraint, a column each; `add` takes arrays of equal length."""

    columns: dict[str, np.ndarray]

    @classmethod
    def of(cls, *names: str) -> Table:
        """Return an empty table with these columns."""
        return cls({name: np.empty(0, np.int64) for name in names})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def add(self, **rows: Any) -> None:
        """Append rows; a single value stands for all of them."""
        width, held = max(np.size(value) for value in rows.values()), len(self)
        for name, column in self.columns.items():
            whole = self.columns[name] = np.empty(held + width, np.int64)
            whole[:held], whole[held:] = column, rows[name]

    def keep(self, mask: np.ndarray) -> None:
        """Drop the rows that the mask leaves out."""
        self.columns = {name: column[mask] for name, column in self.columns.items()}


ALL_LANES = -1  # `syncs["lane"]`: every device lane of the call's rank


@dataclass
class Facts:
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
    untraced_ns: int = 0  # device work that the profiler left out, inside graphs and before the window
    doubtful_waits: int = 0  # stretches of CPU time that may be waits for what ended just before
    doubtful_ns: int = 0
    unresolved_syncs: int = 0
    doubtful_matches: int = 0  # between ranks, left out as tasks would have waited for each other
    unlaunched_kernels: int = 0
    rules: list[str] = field(default_factory=list)  # by what a change knew its kernels
    notes: list[str] = field(default_factory=list)

    def copy(self) -> Facts:
        """Return independent facts."""
        return replace(self, event_waits=dict(self.event_waits), rules=[*self.rules], notes=[*self.notes])


def phase_code(phase: str | None) -> int:
    """Return the code of a phase, -1 for None."""
    if phase is None:
        return -1
    if phase not in PHASES:
        raise GraphError(f"unknown phase {phase!r}; the phases are {', '.join(PHASES)}")
    return PHASES.index(phase)


def kind_code(kind: str) -> int:
    """Return the code of a kind of task."""
    if kind not in KINDS:
        raise GraphError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return KINDS.index(kind)


def nanoseconds(values: Any, what: str = "a duration") -> np.ndarray:
    """Return times as whole nanoseconds, halves rounded up. Raises `GraphError` for what is no time."""
    try:
        given = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise GraphError(f"{what} must be a number of nanoseconds, not {values!r}") from None
    if not np.isfinite(given).all():
        raise GraphError(f"{what} must be a finite number of nanoseconds")
    if (given < 0).any():
        raise GraphError(f"{what} cannot be negative ({float(given.min()):g} ns)")
    if (given >= LONGEST_NS).any():
        raise GraphError(f"{what} is longer than can be counted in nanoseconds")
    whole = np.asarray(values)
    if whole.dtype.kind in "iu":
        return whole.astype(np.int64)
    return np.floor(given + 0.5).astype(np.int64)
