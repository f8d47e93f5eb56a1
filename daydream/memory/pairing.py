"""From recorded events to allocations: which free ends which allocation, and what was held before.

An allocation and a free at one address of one device belong together. A free of what was never seen
allocated ends something that was held before the recording. Where the allocator's totals are recorded,
what they hold beyond that was there before and stays.
"""

from __future__ import annotations

import numpy as np

from daydream.memory.allocations import AFTER, BEFORE, KINDS, Allocations
from daydream.memory.enclosing import enclosing_rows
from daydream.text import counted
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace


def paired(trace: Trace, events: MemoryEvents) -> Allocations:
    """Return the allocations of a trace's memory events, all of kind `unknown`.

    What contradicts itself (an address allocated twice, a free of another size) is counted in the notes.
    Events without addresses are paired by size, the latest first.
    """
    begin, end = _pairs(events)
    notes = _said(events, begin, end)
    of = np.where(begin >= 0, begin, end)  # the event that tells whose and how much
    rows = enclosing_rows(trace, events)
    columns = {
        "rank": events["rank"][of],
        "device": events["device"][of],
        "bytes": np.abs(events["bytes"][of]),
        "begin": np.where(begin >= 0, begin, BEFORE),
        "end": np.where(end >= 0, end, AFTER),
        "begin_row": np.where(begin >= 0, rows[begin], UNKNOWN),
        "end_row": np.where(end >= 0, rows[end], UNKNOWN),
        "kind": np.full(len(of), KINDS.index("unknown")),
    }
    held = _held_throughout(events, columns)
    columns = {name: np.concatenate([column, held[name]]) for name, column in columns.items()}
    step = np.append(trace["step"], UNKNOWN)  # the last: no row
    for name, at in (("step", "begin_row"), ("end_step", "end_row")):
        row = columns[at]
        columns[name] = step[row].astype(np.int64)
    return Allocations(trace, columns, notes)


def _pairs(events: MemoryEvents) -> tuple[np.ndarray, np.ndarray]:
    """Return the events that begin and end each allocation, -1 where there is none."""
    nbytes, address = events["bytes"], events["address"]
    known = address >= 0
    key = np.where(known, address, -2 - np.abs(nbytes))  # without an address: by size
    # events of one rank, device and key beside each other, in order
    order = np.lexsort((np.arange(len(events)), key, events["device"], events["rank"]))
    begins: list[int] = []
    ends: list[int] = []
    open_now: list[int] = []
    before: tuple[int, int, int] | None = None
    places = zip(
        order.tolist(), events["rank"][order].tolist(), events["device"][order].tolist(), key[order].tolist(),
        nbytes[order].tolist(), strict=True,
    )  # fmt: skip
    for event, rank, device, where, amount in places:
        if (rank, device, where) != before:
            for begin in open_now:
                begins.append(begin)
                ends.append(UNKNOWN)
            open_now, before = [], (rank, device, where)
        if amount > 0:
            open_now.append(event)
        elif amount < 0:
            begins.append(open_now.pop() if open_now else UNKNOWN)
            ends.append(event)
    for begin in open_now:
        begins.append(begin)
        ends.append(UNKNOWN)
    return np.array(begins, np.int64), np.array(ends, np.int64)


def _said(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    """Return sentences about events that contradict each other."""
    notes: list[str] = []
    both = (begin >= 0) & (end >= 0)
    sizes = events["bytes"][begin[both]] + events["bytes"][end[both]]
    if odd := int((sizes != 0).sum()):
        notes.append(
            f"{counted(odd, 'free', 'frees')} of memory gave back another size than was allocated there."
        )
    return notes


def _held_throughout(events: MemoryEvents, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the recorded totals hold at the start and no event names: a row a device."""
    found: dict[str, list[float]] = {name: [] for name in columns}
    pairs = sorted(set(zip(events["rank"].tolist(), events["device"].tolist(), strict=True)))
    for rank, device in pairs:
        own = np.flatnonzero((events["rank"] == rank) & (events["device"] == device))
        total = events["allocated_bytes"][own]
        known = np.flatnonzero(total >= 0)
        if not len(known):
            continue
        first = known[0]
        start = int(total[first]) - int(events["bytes"][own][: first + 1].sum())
        mine = (columns["rank"] == rank) & (columns["device"] == device) & (columns["begin"] == BEFORE)
        rest = start - int(columns["bytes"][mine].sum())
        if rest > 0:
            row = {
                "rank": rank, "device": device, "bytes": rest, "begin": BEFORE, "end": AFTER,
                "begin_row": UNKNOWN, "end_row": UNKNOWN, "kind": KINDS.index("unknown"),
            }  # fmt: skip
            for name, value in row.items():
                found[name].append(value)
    return {name: np.array(values, columns[name].dtype) for name, values in found.items()}
