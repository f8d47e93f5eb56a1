"""Which rows of a trace make, read and keep memory.

Who asked for an allocation (the row, call, layer or block behind it), which calls read it and when the next one
does, and what operators keep for the backward pass: their input or their result, and until where.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from daydream.arrays import first_of, places, take, unique
from daydream.costs.operators import operator
from daydream.costs.workload.calls import forward_rows, nodes, nodes_above
from daydream.costs.workload.formulas import elements
from daydream.costs.workload.operator import itemsize
from daydream.graph.calls import enclosing
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    STEP,
    Allocations,
    Parts,
    parts_of,
    place_before,
    rounded,
)
from daydream.memory.enclosing import arguments_of, has_tensors, rows_that
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace


def codes_of_rows(held: Allocations, column: str, *, at: str = "begin") -> np.ndarray:
    """Return a column of the trace's row that began (or, `at="end"`, ended) each, -1 for none: int64."""
    return take(np.asarray(held.trace[column], np.int64), held[f"{at}_row"])


def block_of_rows(
    held: Allocations, patterns: str | Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the block of the layer that asked for each allocation, and of the layer that frees it.

    What is of a parameter is of its layer.

    Args:
        held: the allocations.
        patterns: shell patterns on module paths, `blocks.*`, as `daydream.model.block_of_layers` has them.

    Returns:
        two arrays of places among the blocks, -1 if in none; int64, shape (rows,).
    """
    from daydream.model.blocks import block_of_paths

    block, _ = block_of_paths(held.graph, patterns)
    by_code = np.array([block(path) for path in (*held.trace.text("layer"), None)], np.int64)
    begin, end = (by_code[codes_of_rows(held, "layer", at=at)] for at in ("begin", "end"))
    owned = np.flatnonzero(held["parameter"] >= 0)
    begin[owned] = end[owned] = [block(held.parameter(row)["layer"]) for row in owned.tolist()]
    return begin, end


def forward_calls(held: Allocations, *, at: str = "begin") -> np.ndarray:
    """Return the forward call whose gradient the row computes that began (or ended) each, -1 for none."""
    rows = held[f"{at}_row"]
    return np.where(rows >= 0, forward_rows(held.trace, np.maximum(rows, 0)), UNKNOWN)


def in_phase(held: Allocations, phase: str, *, at: str = "begin") -> np.ndarray:
    """Return which allocations begin (or end) in a phase.

    Args:
        held: the allocations.
        phase: `forward`, `loss`, `backward`, ...
        at: `begin` or `end`.

    Returns:
        bool, shape (rows,).
    """
    return held["phase" if at == "begin" else "end_phase"] == PHASES.index(phase)


def nearest(held: Allocations, rows: np.ndarray, *, forward: bool = False) -> np.ndarray:
    """Return the innermost of some rows of the trace around what asked for each allocation, -1 for none.

    Args:
        held: the allocations.
        rows: which rows of the trace, bool, shape (rows of the trace,).
        forward: in the backward pass look around the forward call whose gradient is computed.

    Returns:
        rows of the trace, int64, shape (rows,).
    """
    up = held["begin_row"].copy()
    if forward:
        mine = np.flatnonzero(in_phase(held, "backward") & (up >= 0))
        up[mine] = forward_rows(held.trace, up[mine])
    return enclosing(held.trace["parent"], rows, up, inner=True)


def calls_that_made(held: Allocations, pattern: str, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the operator call that each allocation is due to, whose name matches.

    Args:
        held: the allocations.
        pattern: regular expression on names of operators.
        rows: which allocations are asked about, int64; all if not given.

    Returns:
        rows of the trace, int64, shape (rows,): the outermost call that matches around what asked for it, or
        in the backward pass around the forward call whose gradient that computes; -1 for none.
    """
    trace = held.trace
    hits = rows_that(trace, re.compile(pattern).search) & trace.is_kind("operator")
    every = np.arange(len(held)) if rows is None else rows
    up = held["begin_row"][every]
    backward = np.flatnonzero(in_phase(held, "backward")[every] & (up >= 0))
    call = forward_rows(trace, up[backward])
    up[backward] = np.where(call >= 0, call, up[backward])
    return enclosing(trace["parent"], hits, up, inner=False)


def used_until(held: Allocations, rows: np.ndarray, parts: Parts) -> np.ndarray:
    """Return where the forward call is done that keeps each for its backward pass, within the part it is of.

    What keeps its own result hands it on: then it is the next call.

    Args:
        held: the allocations.
        rows: which of them, each of some part and freed by a node of the backward pass; int64, shape (n,).
        parts: parts of the forward pass.

    Returns:
        places, int64, shape (n,); the end of the part where no node tells the call.
    """
    trace = held.trace
    start = np.append(trace["start_ns"], 0)
    end = start + np.append(trace["duration_ns"], 0)
    mine = np.flatnonzero((parts.of >= 0) & (held["begin_row"] >= 0))
    keys = (start[held["begin_row"][mine]], parts.of[mine])
    mine = mine[np.lexsort((held["begin"][mine], *keys))]
    span = np.int64(end.max()) + 1
    asked = parts.of[mine] * span + start[held["begin_row"][mine]]

    def behind(call: np.ndarray) -> np.ndarray:
        """Return the first allocation of each one's part that is asked for behind a call, -1 for none."""
        found = take(mine, np.searchsorted(asked, parts.of[rows] * span + end[call]))
        return np.where(
            (call >= 0) & (found >= 0) & (parts.of[found] == parts.of[rows]), found, UNKNOWN
        )

    call = forward_rows(trace, held["end_row"][rows])
    first = behind(call)
    made = calls_that_made(held, "", rows)
    following = calls_that_made(held, "", np.maximum(first, 0))
    own = (call >= 0) & (made >= 0) & (start[call] >= start[made]) & (end[call] <= end[made])
    first = np.where(own & (first >= 0), behind(following), first)
    return place_before(np.where(first >= 0, held["begin"][first], parts.until[parts.of[rows]]))


def until_next_call(held: Allocations, rows: np.ndarray) -> np.ndarray:
    """Return where the next call of the forward pass behind each has read it.

    Args:
        held: the allocations.
        rows: which of them, int64, shape (n,).

    Returns:
        places, int64, shape (n,).
    """
    calls = parts_of(held, in_phase(held, "forward"), held["step"], calls_that_made(held, ""))
    begins = np.sort(calls.first)
    at = np.searchsorted(begins, held["begin"][rows], side="right")
    return place_before(np.append(begins, [begins[-1:] + STEP] * 2)[at + 1])


def next_call(held: Allocations, rows: np.ndarray) -> np.ndarray:
    """Return the last place before the first allocation behind each that another autograd node makes.

    Args:
        held: the allocations.
        rows: which of them, int64, shape (n,); none from before the recording.

    Returns:
        places, int64, shape (n,).
    """
    inside = np.flatnonzero(held["begin"] > BEFORE)
    order = inside[np.lexsort((held["begin"][inside], held["rank"][inside]))]
    asked = held["begin_row"][order]
    node = np.where(asked >= 0, nodes_above(held.trace, np.maximum(asked, 0)), UNKNOWN)
    # What the engine does behind a node's own function, as sums over samples, is in the call around it.
    above = take(held.trace["parent"], node)
    node = np.where(take(nodes(held.trace), above, False), above, node)
    node = np.where(node >= 0, node, asked)
    found = np.full(len(held), AFTER)
    after = [UNKNOWN] * 3  # rank, node and begin of the allocation behind
    keys = (column.tolist() for column in (order, held["rank"][order], node, held["begin"][order]))
    for row, *of_row in reversed(list(zip(*keys, strict=True))):
        if of_row[0] != after[0]:
            behind = of_row[2] + STEP
        elif of_row[1] != after[1]:
            behind = after[2]
        found[row] = place_before(behind)
        after = of_row
    return found[rows]


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
    wanted = held.where(kind=("activation", "temporary", "input")) & (held["begin"] > BEFORE)
    by_size: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    found = np.full(len(parts), UNKNOWN, np.int64)
    for place, (rank, turn, *_, row) in enumerate(parts.keys.tolist()):
        nbytes = _read_bytes(trace, row)
        key = (rank, turn, nbytes)
        if key not in by_size:
            size = rounded(np.full(len(held), nbytes), held["device"])
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


def read_behind(held: Allocations, rows: np.ndarray, calls: npt.ArrayLike) -> np.ndarray:
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
    start = trace["start_ns"]
    rank = np.maximum(trace["rank"], 0)
    readers = readers[np.lexsort((readers, start[readers], rank[readers]))]
    known, of = places(calls)
    nbytes = np.full(len(known), UNKNOWN, np.int64)
    for place, call in enumerate(known.tolist()):
        own = readers[rank[readers] == rank[call]] if call >= 0 else readers[:0]
        at = int(np.searchsorted(start[own], start[call] + int(trace["duration_ns"][call])))
        if at < len(own):
            nbytes[place] = _read_bytes(trace, int(own[at]))
    return rounded(nbytes[of], held["device"][rows]) == held["recorded_bytes"][rows]


def _read_bytes(trace: Trace, row: int) -> int:
    """Return the bytes of the first tensor that a call works on, of the one behind the bias of `addmm`."""
    dtype = int(trace["dtype"][row])
    width = itemsize(trace.text("dtype")[dtype]) if dtype >= 0 else None
    return first_elements(trace, row) * (width or 4)


def first_elements(trace: Trace, row: int) -> int:
    """Return the elements of that tensor."""
    arguments = arguments_of(trace, row)
    place = operator(trace.text("name")[int(trace["name"][row])]).first
    return elements(arguments[place]) if place < len(arguments) else 0


@dataclass(frozen=True)
class KeptCalls:
    """Calls of the forward pass, an entry each, as they are in the table when this is worked out.

    Attributes:
        calls: the calls as parts of the program; the last of their keys is the row of the trace.
        done: where the call is done, int64, shape (calls,).
        node: where its autograd node is done, int64, shape (calls,); `BEFORE` where it has none.
        input: row of the table that holds what it reads, int64, shape (calls,); -1 if not known.
        output: row of the table that holds its result, likewise.
        besides: what else each row is that a call made and left: the call, -1 for none; int64, shape (rows,).
        freed_by: the call whose node frees each row, -1 for none; int64, shape (rows,).
    """

    calls: Parts
    done: np.ndarray
    node: np.ndarray
    input: np.ndarray
    output: np.ndarray
    besides: np.ndarray
    freed_by: np.ndarray

    def __len__(self) -> int:
        return len(self.calls)

    def drop_inputs(self, held: Allocations, which: npt.ArrayLike | None = None) -> None:
        """Let inputs go when the last of these calls has read them, if a node of these freed them.

        Args:
            held: the allocations.
            which: of which calls, bool, shape (calls,); of all if not given.
        """
        chosen = (self.input >= 0) & np.asarray(True if which is None else which)
        rows = self.input[chosen]
        own = self.freed_by[rows] >= 0
        ends = np.full(len(held), BEFORE)
        np.maximum.at(ends, rows[own], self.done[chosen][own])
        found = unique(rows[own])
        held["end"][found] = np.minimum(held["end"][found], ends[found])

    def keep(
        self,
        held: Allocations,
        rows: np.ndarray,
        which: np.ndarray | None = None,
    ) -> None:
        """Hold one row for each call, its input say, until its node is done.

        Args:
            held: the allocations.
            rows: int64, shape (calls,); -1 for none.
            which: of which calls, bool, shape (calls,); of all if not given.
        """
        chosen = (rows >= 0) & (True if which is None else which)
        np.maximum.at(held["end"], rows[chosen], self.node[chosen])

    def drop_outputs(self, held: Allocations) -> None:
        """Let results go that the nodes of their own calls freed, at the least.

        Where the call behind keeps what it reads, as products do, they stay until its node is done, which
        runs right before: they are held as long as now.
        """
        place = np.flatnonzero(self.output >= 0)
        rows = self.output[place]
        rows = rows[self.freed_by[rows] == place]
        ends = held["end"][rows]
        held["end"][rows] = held.among(np.minimum(ends, next_call(held, rows)), ends, ends)

    def add(self, held: Allocations, nbytes: npt.ArrayLike) -> None:
        """Hold something more for each call that has a node, from its begin until that is done.

        Args:
            held: the allocations.
            nbytes: int64, shape (calls,).
        """
        mine = np.flatnonzero(self.calls.of >= 0)
        like = take(mine, first_of(self.calls.of[mine], len(self)))
        have = self.node > BEFORE
        begin = self.calls.first[have]
        end = self.node[have]
        held.add(
            like[have], bytes=np.asarray(nbytes)[have], begin=begin, end=end, kind="activation"
        )


def kept_calls(held: Allocations, pattern: str, layer: str | None = None) -> KeptCalls:
    """Return the forward calls of some operators, and what each reads, gives and keeps.

    Args:
        held: the allocations.
        pattern: regular expression on names of operators; of calls within each other the outermost counts.
        layer: shell pattern on the layer; all if not given.
    """
    call = calls_that_made(held, pattern)
    made = (call >= 0) & held.where(layer=layer)
    calls = parts_of(held, made & (in_phase(held, "forward") | in_phase(held, "loss")), call)
    nodes = parts_of(held, made & in_phase(held, "backward"), call)
    at = nodes.find(calls.keys)
    node = np.where(at >= 0, place_before(take(nodes.until, at, 0)), BEFORE)
    done = place_before(calls.until)
    stays = np.flatnonzero((calls.of >= 0) & (held["end"] > np.append(done, AFTER)[calls.of]))
    order = stays[np.lexsort((held["begin"][stays], -held["bytes"][stays], calls.of[stays]))]
    first = np.unique(calls.of[order], return_index=True)
    output = np.full(len(calls), UNKNOWN)
    output[first[0]] = order[first[1]]
    besides = np.full(len(held), UNKNOWN)
    besides[stays] = calls.of[stays]
    besides[output[output >= 0]] = UNKNOWN
    return KeptCalls(
        calls,
        done,
        node,
        input_of_parts(held, calls),
        output,
        besides,
        _freed_by(held, pattern, calls),
    )


def _freed_by(held: Allocations, pattern: str, calls: Parts) -> np.ndarray:
    """Return the call within whose autograd node each row is freed, -1 for none."""
    trace = held.trace
    up = np.full(len(held), UNKNOWN)
    rows = np.flatnonzero(in_phase(held, "backward", at="end") & (held["end_row"] >= 0))
    up[rows] = forward_rows(trace, held["end_row"][rows])
    hits = rows_that(trace, re.compile(pattern).search)
    found = enclosing(trace["parent"], hits, up, inner=False)
    keys = np.stack([held["rank"], held["repeat"], found], axis=1)
    return calls.find(keys)
