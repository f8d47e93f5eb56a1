"""What the first recorded step holds from the one before it, which was not recorded.

PyTorch's allocator for the CPU does not report when memory goes that it did not see come: that is taken to be
what the second step holds from the first one.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from daydream.memory.allocations import BEFORE, Allocations, freed, is_kind, on_device
from daydream.memory.enclosing import rows_that
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace


def add_from_the_step_before(held: Allocations, events: MemoryEvents, rank: int) -> None:
    """Add what the first recorded step holds from the one before it, as the second does from the first."""
    on = on_device(held, rank, HOST)
    steps = np.unique(held["step"][on & (held["step"] >= 0)])
    if not len(steps) or _is_the_first(held.trace, int(steps[0])):
        return
    first = int(steps[0])
    mine = on_device(events, rank, HOST) & (events["bytes"] > 0)
    asked = np.flatnonzero(mine)
    if len(steps) > 1:
        second = int(steps[1])
        rows = np.flatnonzero(on & (held["step"] == first) & (held["end_step"] == second))
        first_asked = np.sort(
            held["begin"][on & (held["step"] == first) & (held["begin"] > BEFORE)]
        )
        second_asked = np.sort(held["begin"][on & (held["step"] == second)])
        nth = np.searchsorted(
            second_asked, held["end"][rows]
        )  # it goes before the nth request of its step
        nth = np.minimum(nth, len(first_asked) - 1)
        places = first_asked[nth] - 0.5
    else:
        rows = np.flatnonzero(on & is_kind(held, "gradient") & ~freed(held))
        cleared = _clears_gradients(held, events, rank, asked)
        if cleared is None:
            return
        places = np.full(len(rows), cleared)
    new = _not_recorded(held, rows, on & (held["begin"] == BEFORE) & (held["end_step"] == first))
    rows, places = rows[new], places[new]
    added = {name: column[rows] for name, column in held.columns.items()}
    added |= {"begin": np.full(len(rows), BEFORE), "end": places.astype(np.float64)}
    for name in ("begin_row", "end_row", "step", "phase"):
        added[name] = np.full(len(rows), UNKNOWN)
    added["end_step"] = np.full(len(rows), first)
    held.append(added)


def _not_recorded(held: Allocations, rows: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Return which of the rows no recorded one stands for: an earlier recording of the run saw it come."""
    there = Counter(held["bytes"][recorded].tolist())
    new = np.ones(len(rows), bool)
    for place, nbytes in enumerate(held["bytes"][rows].tolist()):
        if there[nbytes]:
            there[nbytes] -= 1
            new[place] = False
    return new


def _is_the_first(trace: Trace, step: int) -> bool:
    return str(trace.metadata["steps"][step].get("name", "")).endswith("#0")


def _clears_gradients(
    held: Allocations, events: MemoryEvents, rank: int, asked: np.ndarray
) -> float | None:
    """Return the place where `zero_grad` runs before the first backward pass, None if it does not."""
    trace = held.trace
    named = rows_that(trace, lambda text: text.startswith("Optimizer.zero_grad"))
    rows = np.flatnonzero(named & (np.maximum(trace["rank"], 0) == rank))
    on = on_device(held, rank, HOST)
    backward = held["begin"][on & (held["phase"] == PHASES.index("backward"))]
    if not len(rows) or not len(backward) or not len(asked):
        return None
    time = int(trace["start_ns"][rows[0]])
    after = int(np.searchsorted(events["time_ns"][asked], time))
    place = float(asked[min(after, len(asked) - 1)]) - 0.5
    return place if place < backward.min() else None
