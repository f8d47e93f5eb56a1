"""Which rows of a trace lie around others or around an instant, and what their tensors take.

Rows whose text fits; the bytes of each tensor that an operator is given, by its recorded shapes and type; and in
which step and phase an instant of memory lies. Most instants lie inside a row of the trace, which tells both.
Python frees tensors between rows: then what its thread did before tells the phase, and the clock the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from daydream.arrays import distinct_rows, last_before, take
from daydream.costs.workload.formulas import Argument, elements, parse_shapes
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import ITEM_BYTES, PHASES, UNKNOWN
from daydream.trace.trace import Trace


def rows_that(trace: Trace, fits: Callable[[str], object], column: str = "name") -> np.ndarray:
    """Return which rows have a text that fits: bool, shape (rows of the trace,)."""
    hits = np.array([*(bool(fits(text)) for text in trace.text(column)), False])
    return hits[trace[column]]


def enclosing_rows(trace: Trace, events: MemoryEvents) -> np.ndarray:
    """Return the innermost host row around each event, -1 if none: int64, shape (events,)."""
    host = trace.is_kind("operator", "annotation", "runtime")
    found = rows_before(trace, events, host)
    late = np.flatnonzero(found >= 0)
    end = trace["start_ns"] + trace["duration_ns"]
    parent = trace["parent"]
    time = events["time_ns"]
    while (late := late[end[found[late]] < time[late]]).size:  # done by then: its parent may not be
        found[late] = parent[found[late]]
        late = late[found[late] >= 0]
    return found


def rows_before(trace: Trace, events: MemoryEvents, rows: np.ndarray) -> np.ndarray:
    """Return of these rows (bool) the last of each event's thread that has begun by then, -1 if none.

    Of rows that begin at once the innermost. The answer is int64, of shape (events,).
    """
    mine = np.flatnonzero(rows)
    columns = {"rank": np.maximum(trace["rank"], 0), "pid": trace["pid"], "tid": trace["tid"]}
    threads = [np.append(column[mine], events[name]) for name, column in columns.items()]
    _, thread = distinct_rows(threads)
    asked = thread[len(mine) :], events["time_ns"]
    return take(mine, last_before(thread[: len(mine)], trace["start_ns"][mine], *asked))


def arguments_of(trace: Trace, row: int) -> list[Argument]:
    """Return the shapes of a row's arguments, none where they are not recorded."""
    code = int(trace["shapes"][row])
    return (parse_shapes(trace.text("shapes")[code]) if code >= 0 else None) or []


def argument_bytes(trace: Trace, rows: np.ndarray) -> list[tuple[int, ...]]:
    """Return for each row the bytes of its tensors, none where its shapes or its type are not known.

    One type is known of an operator: tensors of another are told with its width. Views count as whole.
    """
    dtypes = [*trace.text("dtype"), None]
    texts = [*trace.text("shapes"), None]
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    codes = zip(trace["shapes"][rows].tolist(), trace["dtype"][rows].tolist(), strict=True)
    return [
        known.get(pair) or known.setdefault(pair, _sizes(texts[pair[0]], dtypes[pair[1]]))
        for pair in codes
    ]


def _sizes(shapes: str | None, dtype: str | None) -> tuple[int, ...]:
    width = ITEM_BYTES.get(dtype or "", 0)
    arguments = (parse_shapes(shapes) or []) if width else []
    given = [shape for each in arguments for shape in (each if isinstance(each, list) else [each])]
    return tuple(int(prod(shape)) * width for shape in given if shape)


@dataclass(frozen=True)
class Moments:
    """Of each memory event: arrays of shape (events,), int64, -1 for unknown.

    Attributes:
        row: the innermost host row around it.
        phase: index into `PHASES`.
        step: index into the trace's steps.
        passes: how many backward passes of its rank have begun by then, itself included.
    """

    row: np.ndarray
    phase: np.ndarray
    step: np.ndarray
    passes: np.ndarray


def moments(trace: Trace, events: MemoryEvents) -> Moments:
    """Return when each event happens."""
    row = enclosing_rows(trace, events)
    codes = [PHASES.index(text) if text in PHASES else UNKNOWN for text in trace.text("phase")]
    of_rows = np.array([*codes, UNKNOWN], np.int64)[trace["phase"]]  # the last: no phase
    phase = take(of_rows, row)
    bare = np.flatnonzero(phase < 0)
    before = rows_before(trace, events.take(bare), of_rows >= 0)
    phase[bare] = take(of_rows, before)
    return Moments(row, phase, _steps(trace, events, row), _passes(events, phase))


def _steps(trace: Trace, events: MemoryEvents, row: np.ndarray) -> np.ndarray:
    step = take(trace["step"], row)
    steps = trace.metadata.get("steps", [])
    bare = np.flatnonzero(step < 0)
    rank = np.array([each.get("rank", 0) for each in steps], np.int64)
    start = np.array([each["start_ns"] for each in steps], np.int64)
    step[bare] = last_before(rank, start, events["rank"][bare], events["time_ns"][bare])
    return step


def _passes(events: MemoryEvents, phase: np.ndarray) -> np.ndarray:
    """Count the backward passes: each begins where backward work follows forward work of its rank."""
    found = np.zeros(len(events), np.int64)
    forward = PHASES.index("forward")
    backward = PHASES.index("backward")
    loss = PHASES.index("loss")
    for rank in np.unique(events["rank"]).tolist():
        own = np.flatnonzero(events["rank"] == rank)
        tells = np.isin(phase[own], (forward, loss, backward))
        is_backward = phase[own[tells]] == backward
        begins = is_backward & ~np.append(False, is_backward[:-1])
        counted = np.zeros(len(own), np.int64)
        counted[tells] = begins
        found[own] = np.cumsum(counted)
    return found


def has_tensors(text: str) -> bool:
    """Tell whether there are elements in the shapes of a call's arguments."""
    return any(elements(part) for part in parse_shapes(text) or [])
