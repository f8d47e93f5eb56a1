"""How much more work each task has when one size of the input changes: batch size, sequence length.

The work of every call is computed again with the new size in its shapes (`new_shapes.py`). Where the new
shapes of a call do not fit each other its work is unknown, and grows in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from daydream.costs.operators import bare_name
from daydream.costs.resize.new_shapes import Resize, Resized, as_text, result_size, rows_of_scores
from daydream.costs.workload.calls import Calls, calls_of
from daydream.costs.workload.shapes import Shape, parse_shapes
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.trace.trace import Trace


@dataclass(frozen=True)
class Growth:
    """By how much work grows with a size of the input; an entry a task, in the order of the selection.

    Attributes:
        flop: factor of the FLOP, float64.
        nbytes: factor of the bytes, float64.
        known: shapes that fit each other tell it, bool.
        results: factor of the result of a product, float64, NaN of other work: the gradient of a weight sums
            over more samples into a result of the same size.
    """

    flop: np.ndarray
    nbytes: np.ndarray
    known: np.ndarray
    results: np.ndarray


def growth_of(
    graph: Graph, selection: Selection, old: int, new: int, *, every: bool = False
) -> Growth:
    """Return the growth of each task when a size of the input changes, and whether its shapes tell it.

    Args:
        graph: the graph of the trace.
        selection: device work or CPU tasks.
        old: the size as recorded.
        new: the size to predict.
        every: all sizes equal to `old` change (a sequence length, which scores hold twice); else the first of
            a tensor (a batch).

    Returns:
        `Growth`, arrays in the order of the selection.

    Raises:
        NotApplicableError: no recorded shape holds the old size.
    """
    count = len(selection)
    if not len(graph.recorded) or not count:
        return Growth(np.ones(count), np.ones(count), np.zeros(count, bool), np.full(count, np.nan))
    by_row = _growth_by_row(graph.recorded, old, new, every=every)
    rows = graph.row[selection.ids]
    return Growth(by_row.flop[rows], by_row.nbytes[rows], by_row.known[rows], by_row.results[rows])


_known: WeakKeyDictionary[Trace, dict[tuple[int, int, bool], Growth]] = WeakKeyDictionary()


def _growth_by_row(trace: Trace, old: int, new: int, *, every: bool) -> Growth:
    """Return the growth of every row of a trace, worked out once, and that of unknown work at the end."""
    asked = _known.setdefault(trace, {})
    if (old, new, every) in asked:
        return asked[old, new, every]
    calls = calls_of(trace)
    resize = Resize(calls, old, new, every=every)
    resized = _resized(calls, resize)
    if not resized:
        raise NotApplicableError(
            f"no operator of this trace works on a tensor with a size of {old}.\n"
            "       Give the size that the trace was recorded with; shapes must have been recorded."
        )
    rows = np.arange(len(trace))
    which = calls.which_of_tasks(rows)
    found = _of_works(calls, resized, new / old)[:, which]
    if resize.shared:
        owner = np.where(calls.owner >= 0, calls.owner, rows)
        of_scores = _of_works(calls, _resized(calls, resize, scores=True), new / old)[:, which]
        found = np.where(rows_of_scores(calls)[owner], of_scores, found)
    flop, nbytes, fits, results = np.column_stack([found, [1.0, 1.0, 0.0, np.nan]])
    asked[old, new, every] = Growth(flop, nbytes, fits > 0, results)
    return asked[old, new, every]


def _of_works(calls: Calls, resized: dict[int, Resized], factor: float) -> np.ndarray:
    """Return growth of FLOP and of bytes, whether shapes tell it, and growth of results, in four rows.

    A column for each distinct work, and at the end one for unknown work.
    """
    found = np.ones((4, len(calls.amounts) + 1))
    found[2, -1], found[3] = 0, np.nan
    for place, (after, shapes, _) in resized.items():
        if after is None:
            found[:3, place] = factor, factor, 0
            continue
        name, recorded, _ = calls.keys[place]
        was = prod(result_size(bare_name(name), parse_shapes(recorded) or []))
        if was:
            found[3, place] = prod(result_size(bare_name(name), shapes)) / was
        before = calls.amounts[place]
        if before.flop and after.flop:
            found[0, place] = after.flop / before.flop
        if before.elements and after.elements:
            found[1, place] = after.elements / before.elements
    return found


def resized_shapes(
    graph: Graph, selection: Selection, flop: np.ndarray, old: int, new: int, *, every: bool = False
) -> dict[int, tuple[str, Shape | None]]:
    """Return the new shapes, and output where known, of each distinct work (`Calls.which`) that has the size.

    Left out are those whose work would not grow by what `growth_of` says of all tasks: of a
    size that means two things, shapes alone do not tell which is meant.
    """
    trace = graph.recorded
    if not len(trace):
        return {}
    calls = calls_of(trace)
    rows = graph.row[selection.ids]
    there = np.flatnonzero(rows >= 0)
    which, growth = calls.which_of_tasks(rows[there]), flop[there]
    found = {}
    for place, (after, shapes, hint) in _resized(
        calls, Resize(calls, old, new, every=every)
    ).items():
        if after is None:
            continue
        before = calls.amounts[place].flop
        ratio = after.flop / before if before and after.flop else 1.0
        if np.allclose(growth[which == place], ratio):
            found[place] = (as_text(shapes), hint)
    return found


def _resized(calls: Calls, resize: Resize, *, scores: bool = False) -> dict[int, Resized]:
    """Return work, shapes and output at the new size, of each distinct work that has the old one."""
    found = {}
    for place, (name, shapes, hint) in enumerate(calls.keys):
        after = resize.call(name, parse_shapes(shapes) or [], hint, scores=scores)
        if after is not None:
            found[place] = after
    return found
