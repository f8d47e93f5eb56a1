"""Collectives that run on threads of the CPU (gloo): their rows, the calls that began them, who met in them.

torch's gloo backend queues each collective for a pool of threads; the thread's row spans its run, the
`c10d::` operator its queueing. The profiler ties neither to the other, and names no group.
"""

from __future__ import annotations

import re

import numpy as np

from daydream.collect.derive.device_names import collective_of_name
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS
from daydream.trace.trace import Trace

RUN = regex(r"^gloo:")
CALL = regex(r"^c10d::")
# None of the members can be done before all have begun; of the others a root or a leaf can.
SAME_SIZE = ("all_reduce", "broadcast", "reduce")  # calls of others are given inputs and outputs
NEED_ALL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")
CLOCKS_AGREE_NS = 100_000  # by so much may one member seem to end before another began


def host_collectives(trace: Trace) -> np.ndarray:
    """Return the rows of collectives on the CPU; none where there is device work, which has its own."""
    none = np.empty(0, np.int64)
    if trace.is_kind(*DEVICE_KINDS).any():
        return none
    return _rows(trace, RUN, "annotation")


def calls_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the row of the call that began each collective, -1 where none was recorded.

    A rank's collectives of one operation begin in the order of their calls; sizes are compared
    where both are known and what a call is given is what is sent.
    """
    calls = _rows(trace, CALL, "operator")
    rank, start = np.maximum(trace["rank"], 0), trace["start_ns"]
    what = dict(zip(rows.tolist(), operations(trace, rows), strict=True))
    asked = dict(zip(calls.tolist(), operations(trace, calls), strict=True))
    nbytes = trace["bytes"]
    found = np.full(len(rows), -1, np.int64)
    open_calls: dict[int, list[int]] = {}
    for call in calls[np.argsort(start[calls], kind="stable")].tolist():
        open_calls.setdefault(int(rank[call]), []).append(call)
    places = np.argsort(start[rows], kind="stable").tolist()
    for place in places:
        row = int(rows[place])
        waiting = open_calls.get(int(rank[row]), [])
        for call in waiting:
            if start[call] > start[row]:
                break
            sizes_differ = min(nbytes[call], nbytes[row]) >= 0 and nbytes[call] != nbytes[row]
            if asked[call] == what[row] and not (sizes_differ and what[row] in SAME_SIZE):
                found[place] = call
                waiting.remove(call)
                break
    # gloo runs a reduce-scatter as an all-reduce: what is left belongs together in its order, from the last.
    for place in reversed(places):
        row = int(rows[place])
        waiting = [call for call in open_calls.get(int(rank[row]), []) if start[call] <= start[row]]
        if found[place] < 0 and waiting:
            found[place] = waiting[-1]
            open_calls[int(rank[row])].remove(waiting[-1])
    return found


def inside_collectives(trace: Trace) -> np.ndarray:
    """Return the rows that lie within a collective of a pool's thread: copies in and out of its buffers."""
    rows = host_collectives(trace)
    if not len(rows):
        return rows
    parent = np.asarray(trace["parent"], np.int64)
    within = np.zeros(len(trace) + 1, bool)
    within[rows] = True
    found = within[parent] & (parent >= 0)
    while (more := (found[parent] & (parent >= 0) & ~found)).any():
        found |= more
    return np.flatnonzero(found)


def operations(trace: Trace, rows: np.ndarray) -> list[str]:
    """Return what each row does (all_reduce, ...), by its name where the trace does not tell."""
    said = trace.values("collective", rows)
    names = trace.values("name", rows)
    return [one or collective_of_name(name) or name for one, name in zip(said, names, strict=True)]


def host_meetings(trace: Trace, rows: np.ndarray) -> list[np.ndarray]:
    """Return the rows that are one collective, each array in order of rank.

    All ranks call them in one order. Two ranks' sequences are laid along each other so that
    operations and sizes are equal and most members were at it at one time, as the clocks of one host tell.
    What was not is no meeting.
    """
    calls = calls_of(trace, rows)
    begun = np.where(calls >= 0, trace["start_ns"][calls], trace["start_ns"][rows])
    rows = rows[np.argsort(begun, kind="stable")]
    rank = np.maximum(trace["rank"], 0)
    runs = [rows[rank[rows] == one] for one in np.unique(rank[rows]).tolist()]
    longest = max(runs, key=len)
    slots: list[list[tuple[int, int]]] = [[(int(rank[row]), int(row))] for row in longest]
    for run in runs:
        if run is longest:
            continue
        for here, there in _line_up(trace, longest, run):
            slots[here].append((int(rank[run[there]]), int(run[there])))
    return [np.array([row for _, row in sorted(slot)]) for slot in slots if len(slot) > 1]


def _line_up(trace: Trace, one: np.ndarray, other: np.ndarray) -> list[tuple[int, int]]:
    """Return the places of two ranks' sequences that pair up; empty if they do not fit."""
    start, end = trace["start_ns"], trace["start_ns"] + trace["duration_ns"]
    what, theirs = np.array(operations(trace, one)), np.array(operations(trace, other))
    same_size = np.isin(what, SAME_SIZE)
    nbytes = np.asarray(trace["bytes"], np.int64)
    best: tuple[int, int] | None = None
    pairs: list[tuple[int, int]] = []
    for shift in range(1 - len(other), len(one)):
        here = np.arange(max(shift, 0), min(len(one), len(other) + shift))
        a, b = one[here], other[here - shift]
        sizes = (nbytes[a] == nbytes[b]) | (nbytes[a] < 0) | (nbytes[b] < 0) | ~same_size[here]
        if not (sizes & (what[here] == theirs[here - shift])).all():
            continue
        together = (end[a] + CLOCKS_AGREE_NS >= start[b]) & (end[b] + CLOCKS_AGREE_NS >= start[a])
        fits = (int(together.sum()), -abs(2 * shift - len(one) + len(other)))
        needed = np.isin(what[here], NEED_ALL)
        if (together.any() or not needed.any()) and (best is None or fits > best):
            best = fits
            met = together | ~needed
            pairs = list(zip(here[met].tolist(), (here[met] - shift).tolist(), strict=True))
    return pairs


def _rows(trace: Trace, pattern: re.Pattern[str], kind: str) -> np.ndarray:
    texts = trace.text("name")
    codes = [
        code
        for code, name in enumerate(texts)
        if pattern.match(name) and collective_of_name(name) is not None
    ]
    return np.flatnonzero(np.isin(trace["name"], codes) & trace.is_kind(kind))
