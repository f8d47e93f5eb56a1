"""When an instant of memory happens: in which step, and in which phase of it.

Most instants lie inside a row of the trace, which tells both. Python frees tensors between rows: then what
its thread did before tells the phase, and the clock the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.memory.enclosing import enclosing_rows, rows_before
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace


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
    phase = np.append(of_rows, UNKNOWN)[row]
    bare = np.flatnonzero(phase < 0)
    before = rows_before(trace, events.take(bare), of_rows >= 0)
    phase[bare] = np.append(of_rows, UNKNOWN)[before]
    return Moments(row, phase, _steps(trace, events, row), _passes(events, phase))


def _steps(trace: Trace, events: MemoryEvents, row: np.ndarray) -> np.ndarray:
    step = np.append(np.asarray(trace["step"], np.int64), UNKNOWN)[row]
    steps = trace.metadata.get("steps", [])
    bare = step < 0
    for rank in np.unique(events["rank"][bare]).tolist():
        own = [number for number, each in enumerate(steps) if each.get("rank", 0) == rank]
        if own:
            starts = [steps[number]["start_ns"] for number in own]
            mine = np.flatnonzero(bare & (events["rank"] == rank))
            place = np.searchsorted(starts, events["time_ns"][mine], side="right") - 1
            step[mine] = np.where(place >= 0, np.array(own)[np.maximum(place, 0)], UNKNOWN)
    return step


def _passes(events: MemoryEvents, phase: np.ndarray) -> np.ndarray:
    """Count the backward passes: each begins where backward work follows forward work of its rank."""
    found = np.zeros(len(events), np.int64)
    forward, backward = (PHASES.index(name) for name in ("forward", "backward"))
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
