"""Parts of a program, in its order: where they begin and end, and to run one of them once more.

A part is some allocations with one key: the forward pass of a block in a step, say. It lasts from its first
allocation to the first of anything else behind its last one: what the program frees between the two
belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.costs.workload.forward_calls import forward_rows, nodes_above
from daydream.costs.workload.operator import itemsize
from daydream.costs.workload.shapes import elements, parse_shapes
from daydream.graph.query.blocks import TOGETHER, block_of_layers
from daydream.memory.allocations import BEFORE, GRANULE, Allocations
from daydream.trace.schema import PHASES, UNKNOWN


@dataclass(frozen=True)
class Parts:
    """Parts of the program that some allocations make up.

    Attributes:
        keys: what tells the parts apart, int64, shape (parts, columns).
        of: the part that each allocation is made in, -1 for none; int64, shape (rows,).
        first: place of a part's first allocation, float64, shape (parts,).
        until: place behind its last, where something else begins; float64, shape (parts,).
    """

    keys: np.ndarray
    of: np.ndarray
    first: np.ndarray
    until: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return which part has each of these keys, shape (n, columns): int64, -1 for none."""
        number = {tuple(key): place for place, key in enumerate(self.keys.tolist())}
        return np.array([number.get(tuple(key), UNKNOWN) for key in keys.tolist()], np.int64)


def parts_of(held: Allocations, which: np.ndarray, *columns: np.ndarray) -> Parts:
    """Return the parts that some allocations (bool, shape (rows,)) make up.

    Args:
        held: all allocations.
        which: those that count; none that was there before the recording does.
        columns: what tells parts of a rank apart, each int64, of shape (rows,): the step, the block.

    Returns:
        `Parts`; their keys are the rank, the repetition and these columns.
    """
    mine = np.flatnonzero(which & (held["begin"] > BEFORE))
    rows = np.stack([held["rank"], held["repeat"], *columns], axis=1)
    keys, part = np.unique(rows[mine], axis=0, return_inverse=True)
    of = np.full(len(held), UNKNOWN, np.int64)
    of[mine] = part.reshape(-1)
    begin = held["begin"][mine]
    first, last = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
    np.minimum.at(first, of[mine], begin)
    np.maximum.at(last, of[mine], begin)
    until = np.full(len(keys), np.inf)
    for rank in np.unique(keys[:, 0]).tolist() if len(keys) else []:
        theirs = np.flatnonzero(keys[:, 0] == rank)
        begins = np.sort(held["begin"][held["rank"] == rank])
        at = np.searchsorted(begins, last[theirs], side="right")
        until[theirs] = np.append(begins, begins[-1:] + 1)[at]
    return Parts(keys, of, first, until)


def codes_of_rows(held: Allocations, column: str, *, at: str = "begin") -> np.ndarray:
    """Return a column of the trace's row that began (or, `at="end"`, ended) each, -1 for none: int64."""
    return np.append(np.asarray(held.trace[column], np.int64), UNKNOWN)[held[f"{at}_row"]]


def block_of_rows(held: Allocations, patterns: str | Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
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


def in_phase(held: Allocations, phase: str, *, at: str = "begin") -> np.ndarray:
    """Return which allocations begin (or end) in a phase: bool, shape (rows,)."""
    return np.asarray(held["phase" if at == "begin" else "end_phase"] == PHASES.index(phase))


def repeat(
    held: Allocations, rows: np.ndarray, parts: Parts, before: np.ndarray,
    *, turn: int = 0, turns: int = 1, **columns: Any,
) -> np.ndarray:  # fmt: skip
    """Let the program make some allocations once more, in their order, right before some places.

    What ends in its part does so in the copy, too; what ends behind it ends there, or where the column `end`
    says.

    Args:
        held: the allocations.
        rows: which of them, all of some part; int64, shape (n,).
        parts: the parts that they are of.
        before: the place before which each part is run once more, float64, shape (parts,).
        turn: which of several repetitions before the same place this is, from 0.
        turns: how many there are.
        **columns: what else the copies have of their own, of shape (n,) or for all.

    Returns:
        the new rows, int64, shape (n,). Call `renumber` when all parts are repeated.
    """
    part, end = parts.of[rows], held["end"][rows]
    moved = Moved(held, parts, before, turns)
    inside = end < parts.until[part]
    ends = moved(np.where(inside, end, 0), part, turn)
    count = len(held)
    columns = {
        **columns, "begin": moved(held["begin"][rows], part, turn),
        "end": np.where(inside, ends, columns.get("end", end)),
    }  # fmt: skip
    held.add(rows, **columns)
    return np.arange(count, count + len(rows))


class Moved:
    """Where places of parts are when those are run once more, several turns right before some places."""

    def __init__(self, held: Allocations, parts: Parts, before: np.ndarray, turns: int) -> None:
        self.parts, self.before, self.turns = parts, before, turns
        self.gap = before - place_before(held, before)

    def __call__(self, place: np.ndarray, part: np.ndarray, turn: int) -> np.ndarray:
        """Return where places of parts, each of shape (n,), are in a turn, from 0; float64."""
        share = (place - self.parts.first[part]) / (self.parts.until[part] - self.parts.first[part])
        found: np.ndarray = self.before[part] - self.gap[part] * (1 - (turn + 0.1 + 0.8 * share) / self.turns)
        return found


def place_before(held: Allocations, places: np.ndarray) -> np.ndarray:
    """Return the last place before each of these where anything begins or ends: float64, shape (n,)."""
    known = np.unique(np.concatenate([held["begin"], held["end"]]))
    known = known[np.isfinite(known)]
    found: np.ndarray = np.append(known[:1] - 1, known)[np.searchsorted(known, places)]
    return found


def used_until(held: Allocations, rows: np.ndarray, parts: Parts) -> np.ndarray:
    """Return where the forward call is done that keeps each for its backward pass, within the part it is of.

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
    call = forward_rows(trace, held["end_row"][rows])
    mine = np.flatnonzero((parts.of >= 0) & (held["begin_row"] >= 0))
    keys = (start[held["begin_row"][mine]], parts.of[mine])
    mine = mine[np.lexsort((held["begin"][mine], *keys))]
    span = np.int64(end.max()) + 1
    asked = parts.of[mine] * span + start[held["begin_row"][mine]]
    at = np.searchsorted(asked, parts.of[rows] * span + end[call])
    behind = np.append(mine, -1)[at]
    inside = (call >= 0) & (parts.of[behind] == parts.of[rows]) & (at < len(mine))
    return place_before(held, np.where(inside, held["begin"][behind], parts.until[parts.of[rows]]))


def renumber(held: Allocations) -> None:
    """Give places whole numbers again, in the same order."""
    places = np.concatenate([held["begin"], held["end"]])
    inside = np.isfinite(places)
    _, order = np.unique(places[inside], return_inverse=True)
    places[inside] = order.reshape(-1)
    held.columns["begin"], held.columns["end"] = places[: len(held)].copy(), places[len(held) :].copy()


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
    node = np.where(node >= 0, node, asked)
    rank = held["rank"][order]
    changes = np.append((node[1:] != node[:-1]) | (rank[1:] != rank[:-1]), True)
    last = np.where(changes, np.arange(len(order)), len(order))
    last = np.minimum.accumulate(last[::-1])[::-1]  # the last allocation of the same node
    begins = np.append(held["begin"][order], np.inf)
    behind = np.where(np.append(rank[1:] == rank[:-1], False)[last], begins[last + 1], begins[last] + 1)
    found = np.full(len(held), np.inf)
    found[order] = behind
    return place_before(held, found[rows])


def scale_owned(held: Allocations, which: np.ndarray, times: np.ndarray, share: float) -> None:
    """Let some layers have other numbers of parameters and optimizer states: `times` more of each, or less.

    Args:
        held: the allocations.
        which: what is of these layers, bool, shape (rows,).
        times: how many more there are of each of these, -1 to take it away; int64, shape (rows,).
        share: by which part of all parameters' elements they grow or shrink together. Where no parameter is
            told from others, all parameters and states do so by this part, and so does what a joint
            update makes on its way.
    """
    lasting = held.where(kind=("parameter", "optimizer_state"))
    owned = np.flatnonzero(lasting & which)
    known = (held["parameter"] >= 0) | (held["begin_row"] >= 0)
    alike = lasting & ~known if not len(owned) else np.zeros(len(held), bool)
    joint = held.where(phase="optimizer", kind="temporary") & (codes_of_rows(held, "layer") < 0)
    held.scale(alike | joint, 1 + share)
    goes = np.zeros(len(held), bool)
    goes[owned[times[owned] < 0]] = True
    more = np.maximum(times[owned], 0)
    held.add(np.repeat(owned, more))
    held.remove(np.append(goes, np.zeros(more.sum(), bool)))


def nearest(held: Allocations, rows: np.ndarray, *, forward: bool = False) -> np.ndarray:
    """Return the innermost of some rows of the trace around what asked for each allocation, -1 for none.

    Args:
        held: the allocations.
        rows: which rows of the trace, bool, shape (rows of the trace,).
        forward: in the backward pass look around the forward call whose gradient is computed.

    Returns:
        rows of the trace, int64, shape (rows,).
    """
    trace = held.trace
    parent = np.append(np.asarray(trace["parent"], np.int64), UNKNOWN)
    up = held["begin_row"].copy()
    if forward:
        mine = np.flatnonzero(in_phase(held, "backward") & (up >= 0))
        up[mine] = forward_rows(trace, up[mine])
    while (climbing := np.flatnonzero((up >= 0) & ~np.append(rows, False)[up])).size:
        up[climbing] = parent[up[climbing]]
    return up


def calls_that_made(held: Allocations, pattern: str) -> np.ndarray:
    """Return the operator call that each allocation is due to, whose name matches.

    Args:
        held: the allocations.
        pattern: regular expression on names of operators.

    Returns:
        rows of the trace, int64, shape (rows,): the outermost call that matches around what asked for it, or
        in the backward pass around the forward call whose gradient that computes; -1 for none.
    """
    trace = held.trace
    search = re.compile(pattern).search
    hits = np.array([*(search(text) is not None for text in trace.text("name")), False])[trace["name"]]
    hits &= trace.is_kind("operator")
    parent = np.append(np.asarray(trace["parent"], np.int64), UNKNOWN)
    up = held["begin_row"].copy()
    backward = np.flatnonzero(in_phase(held, "backward") & (up >= 0))
    call = forward_rows(trace, up[backward])
    up[backward] = np.where(call >= 0, call, up[backward])
    found = np.full(len(held), UNKNOWN, np.int64)
    while (climbing := np.flatnonzero(up >= 0)).size:
        fits = climbing[hits[up[climbing]]]
        found[fits] = up[fits]
        up[climbing] = parent[up[climbing]]
    return found


def put_away(
    held: Allocations, rows: np.ndarray, gone: np.ndarray, back: np.ndarray, left: float = 0.0
) -> None:
    """Let allocations (int64, shape (n,)) be gone from one place to another, but for a part that stays there.

    Args:
        held: the allocations.
        rows: which of them.
        gone: places where they go, float64, shape (n,).
        back: places where they come again, float64, shape (n,); where that is not behind, nothing changes.
        left: the part of the bytes that is held between.
    """
    away = (gone < back) & (gone > held["begin"][rows]) & (back < held["end"][rows])
    rows, gone, back = rows[away], gone[away], back[away]
    if left:
        held.add(rows, bytes=np.rint(held["bytes"][rows] * left), begin=gone, end=back)
    held.add(rows, begin=back, phase="backward")
    held["end"][rows] = gone


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
    shapes, dtypes = trace.text("shapes"), trace.text("dtype")
    wanted = held.where(kind=("activation", "temporary", "input")) & (held["begin"] > BEFORE)
    by_size: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    found = np.full(len(parts), UNKNOWN, np.int64)
    for place, (rank, turn, *_, row) in enumerate(parts.keys.tolist()):
        code, dtype = int(trace["shapes"][row]), int(trace["dtype"][row])
        first = (parse_shapes(shapes[code]) or [()])[0] if code >= 0 else ()
        nbytes = elements(first) * ((itemsize(dtypes[dtype]) if dtype >= 0 else None) or 4)
        key = (rank, turn, nbytes)
        if key not in by_size:
            on_gpu = -(-nbytes // GRANULE) * GRANULE
            size = np.where(held["device"] >= 0, on_gpu, nbytes)
            rows = np.flatnonzero(
                wanted & (held["recorded_bytes"] == size) & (held["rank"] == rank) & (held["repeat"] == turn)
            )
            rows = rows[np.argsort(held["begin"][rows], kind="stable")]
            by_size[key] = rows, held["begin"][rows]
        rows, begins = by_size[key]
        at = int(np.searchsorted(begins, parts.first[place])) - 1
        if nbytes and at >= 0 and held["end"][rows[at]] >= parts.first[place]:
            found[place] = rows[at]
    return found
