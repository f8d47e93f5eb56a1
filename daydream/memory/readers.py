"""What a program does with memory that it made: the call that reads it, the call behind, a call's input."""

from __future__ import annotations

import numpy as np

from daydream.costs.operators import operator
from daydream.costs.workload.calls import forward_rows, nodes, nodes_above
from daydream.costs.workload.operator import itemsize
from daydream.costs.workload.shapes import Argument, elements, parse_shapes
from daydream.memory.allocations import (
    BEFORE,
    GRANULE,
    Allocations,
    Parts,
    parts_of,
    place_before,
    rounded,
)
from daydream.memory.asked import calls_that_made, in_phase
from daydream.memory.enclosing import rows_that
from daydream.memory.growth import has_tensors
from daydream.trace.schema import UNKNOWN


def used_until(held: Allocations, rows: np.ndarray, parts: Parts) -> np.ndarray:
    """Return where the forward call is done that keeps each for its backward pass, within the part it is of.

    What keeps its own result hands it on: then it is the next call.

    Args:
        held: the allocations.
        rows: which of them, each of some part and freed by a node of the backward pass; int64, shape (n,).
        parts: parts of the forward pass.

    Returns:
        places, float64, shape (n,); the end of the part where no node tells the call.
    """
    trace = held.trace
    start = np.append(np.asarray(trace["start_ns"], np.int64), 0)
    end = start + np.append(np.asarray(trace["duration_ns"], np.int64), 0)
    mine = np.flatnonzero((parts.of >= 0) & (held["begin_row"] >= 0))
    keys = (start[held["begin_row"][mine]], parts.of[mine])
    mine = mine[np.lexsort((held["begin"][mine], *keys))]
    span = np.int64(end.max()) + 1
    asked = parts.of[mine] * span + start[held["begin_row"][mine]]

    def behind(call: np.ndarray) -> np.ndarray:
        """Return the first allocation of each one's part that is asked for behind a call, -1 for none."""
        found = np.append(mine, UNKNOWN)[np.searchsorted(asked, parts.of[rows] * span + end[call])]
        return np.where(
            (call >= 0) & (found >= 0) & (parts.of[found] == parts.of[rows]), found, UNKNOWN
        )

    call = forward_rows(trace, held["end_row"][rows])
    first = behind(call)
    made, following = (calls_that_made(held, "", some) for some in (rows, np.maximum(first, 0)))
    own = (call >= 0) & (made >= 0) & (start[call] >= start[made]) & (end[call] <= end[made])
    first = np.where(own & (first >= 0), behind(following), first)
    return place_before(
        held, np.where(first >= 0, held["begin"][first], parts.until[parts.of[rows]])
    )


def until_next_call(held: Allocations, rows: np.ndarray) -> np.ndarray:
    """Return where the next call of the forward pass behind each has read it.

    Args:
        held: the allocations.
        rows: which of them, int64, shape (n,).

    Returns:
        places, float64, shape (n,).
    """
    calls = parts_of(held, in_phase(held, "forward"), held["step"], calls_that_made(held, ""))
    begins = np.sort(calls.first)
    at = np.searchsorted(begins, held["begin"][rows], side="right")
    return place_before(held, np.append(begins, [begins[-1:] + 1] * 2)[at + 1])


def next_call(held: Allocations, rows: np.ndarray) -> np.ndarray:
    """Return the last place before the first allocation behind each that another autograd node makes.

    Args:
        held: the allocations.
        rows: which of them, int64, shape (n,); none from before the recording.

    Returns:
        places, float64, shape (n,).
    """
    inside = np.flatnonzero(held["begin"] > BEFORE)
    order = inside[np.lexsort((held["begin"][inside], held["rank"][inside]))]
    asked = held["begin_row"][order]
    node = np.where(asked >= 0, nodes_above(held.trace, np.maximum(asked, 0)), UNKNOWN)
    # What the engine does behind a node's own function, as sums over samples, is in the call around it.
    above = np.append(np.asarray(held.trace["parent"], np.int64), UNKNOWN)[node]
    node = np.where(np.append(nodes(held.trace), False)[above], above, node)
    node = np.where(node >= 0, node, asked)
    rank = held["rank"][order]
    changes = np.append((node[1:] != node[:-1]) | (rank[1:] != rank[:-1]), True)
    last = np.where(changes, np.arange(len(order)), len(order))
    last = np.minimum.accumulate(last[::-1])[::-1]  # the last allocation of the same node
    begins = np.append(held["begin"][order], np.inf)
    behind = np.where(
        np.append(rank[1:] == rank[:-1], False)[last], begins[last + 1], begins[last] + 1
    )
    found = np.full(len(held), np.inf)
    found[order] = behind
    return place_before(held, found[rows])


def input_of_parts(held: Allocations, parts: Parts) -> np.ndarray:
    """Return the allocation that holds what each part, a call by its last key, reads first.

    It is the last one made before the call that is as large as the call's first tensor.

    Args:
        held: the allocations.
        parts: calls of the forward pass; the last of their keys is the call's row of the trace.

    Returns:
        rows of the table, int64, shape (parts,); -1 where none is.
    """
    trace = held.trace
    names, shapes, dtypes = trace.text("name"), trace.text("shapes"), trace.text("dtype")
    wanted = held.where(kind=("activation", "temporary", "input")) & (held["begin"] > BEFORE)
    by_size: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    found = np.full(len(parts), UNKNOWN, np.int64)
    for place, (rank, turn, *_, row) in enumerate(parts.keys.tolist()):
        code, dtype = int(trace["shapes"][row]), int(trace["dtype"][row])
        first = first_factor(names[int(trace["name"][row])], shapes[code] if code >= 0 else "")
        nbytes = elements(first) * ((itemsize(dtypes[dtype]) if dtype >= 0 else None) or 4)
        key = (rank, turn, nbytes)
        if key not in by_size:
            on_gpu = -(-nbytes // GRANULE) * GRANULE
            size = np.where(held["device"] >= 0, on_gpu, nbytes)
            rows = np.flatnonzero(
                wanted
                & (held["recorded_bytes"] == size)
                & (held["rank"] == rank)
                & (held["repeat"] == turn)
            )
            rows = rows[np.argsort(held["begin"][rows], kind="stable")]
            by_size[key] = rows, held["begin"][rows]
        rows, begins = by_size[key]
        at = int(np.searchsorted(begins, parts.first[place])) - 1
        if nbytes and at >= 0 and held["end"][rows[at]] >= parts.first[place]:
            found[place] = rows[at]
    return found


def read_behind(held: Allocations, rows: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Return which allocations are as large as what the next call of the forward pass works on.

    Args:
        held: the allocations.
        rows: which of them, int64, shape (n,).
        calls: behind which row of the trace the next one counts, each; int64, shape (n,), -1 for none.

    Returns:
        bool, shape (n,).
    """
    trace = held.trace
    passes = [trace.code("phase", name) for name in ("forward", "loss")]
    told = rows_that(trace, has_tensors, "shapes") & np.isin(
        trace["phase"], [code for code in passes if code >= 0]
    )
    readers = np.flatnonzero(trace.is_kind("operator") & told)
    start = np.asarray(trace["start_ns"], np.int64)
    rank = np.maximum(np.asarray(trace["rank"], np.int64), 0)
    readers = readers[np.lexsort((readers, start[readers], rank[readers]))]
    known, of = np.unique(calls, return_inverse=True)
    nbytes = np.full(len(known), UNKNOWN, np.int64)
    for place, call in enumerate(known.tolist()):
        own = readers[rank[readers] == rank[call]] if call >= 0 else readers[:0]
        at = int(np.searchsorted(start[own], start[call] + int(trace["duration_ns"][call])))
        if at < len(own):
            nbytes[place] = _read_bytes(held, int(own[at]))
    fits: np.ndarray = (
        rounded(nbytes[of.reshape(-1)], held["device"][rows]) == held["recorded_bytes"][rows]
    )
    return fits


def _read_bytes(held: Allocations, row: int) -> int:
    trace = held.trace
    name = trace.text("name")[int(trace["name"][row])]
    nbytes = elements(first_factor(name, trace.text("shapes")[int(trace["shapes"][row])]))
    dtype = int(trace["dtype"][row])
    return nbytes * ((itemsize(trace.text("dtype")[dtype]) if dtype >= 0 else None) or 4)


def first_factor(name: str, shapes: str) -> Argument:
    """Return the tensor that a call works on: its first argument, or of `addmm` the one behind the bias."""
    arguments = parse_shapes(shapes) or []
    place = operator(name).first
    return arguments[place] if place < len(arguments) else ()
