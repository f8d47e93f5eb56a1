"""Who asked for memory: the row, call, layer or block of the trace behind each allocation."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from daydream.costs.workload.calls import forward_rows
from daydream.memory.allocations import Allocations
from daydream.memory.enclosing import innermost, outermost, rows_that
from daydream.model.blocks import TOGETHER, block_of_layers
from daydream.trace.schema import PHASES, UNKNOWN


def codes_of_rows(held: Allocations, column: str, *, at: str = "begin") -> np.ndarray:
    """Return a column of the trace's row that began (or, `at="end"`, ended) each, -1 for none: int64."""
    return np.append(np.asarray(held.trace[column], np.int64), UNKNOWN)[held[f"{at}_row"]]


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
    _, blocks = block_of_layers(held.graph, patterns)
    place = {path: number for number, block in enumerate(blocks) for path in block.split(TOGETHER)}
    known: dict[str | None, int] = {None: UNKNOWN}

    def block(path: str | None) -> int:
        if path is not None and path not in known:
            outer = [path, *(path[: at.start()] for at in re.finditer(r"\.", path))]
            known[path] = next((place[one] for one in outer if one in place), UNKNOWN)
        return known[path]

    by_code = np.array([*(block(path) for path in held.trace.text("layer")), UNKNOWN], np.int64)
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
    return np.asarray(held["phase" if at == "begin" else "end_phase"] == PHASES.index(phase))


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
    return innermost(held.trace, up, rows)


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
    return outermost(trace, up, hits)
