"""How much more work each task has when one size of the input changes: batch size, sequence length.

The work of every call is computed again with the new size in its shapes (`new_shapes.py`). Where the new
shapes of a call do not fit each other its work is unknown, and grows in proportion.

A trace's amounts of work are those recorded. Who makes them more (`batch-size`, `sequence-length`) leaves that
here: `work` then counts the work as it is now, and the tasks' `shapes` are the new ones, so that whoever needs the
size of a tensor after it finds the new size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from daydream.arrays import distinct_rows
from daydream.costs.operators import bare_name
from daydream.costs.resize.new_shapes import Resize, Resized, as_text, result_size, rows_of_scores
from daydream.costs.workload.calls import Calls, calls_of
from daydream.costs.workload.formulas import Argument, Shape, parse_shapes
from daydream.errors import NotApplicableError
from daydream.graph.calls import shape_rows
from daydream.graph.graph import Graph, Resizing
from daydream.graph.select import coded
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU, phase_code
from daydream.trace.trace import Trace

SCALAR_BYTES = 8  # a copied number grows with nothing
PASSES = ("forward", "loss", "backward")


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
    found[2, -1] = 0
    found[3] = np.nan
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
    which = calls.which_of_tasks(rows[there])
    growth = flop[there]
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


def leave_grown(graph: Graph, resizing: Resizing) -> None:
    """Let the work of the passes count as grown from now on, and give their tasks the new shapes.

    What an edit of sizes says last, so that the optimizations behind it read the new work (`work`).
    """
    graph.resized.append(resizing)
    if resizing.old is None or not len(graph.recorded):
        return
    calls = calls_of(graph.recorded)
    resize = _resize(calls, resizing)
    hints = {(name, text): hint for name, text, hint in calls.keys}
    tasks = graph.select(phase=PASSES)
    rows = shape_rows(graph, tasks.ids)
    ids = tasks.ids[rows >= 0]
    rows = rows[rows >= 0]
    codes, texts = coded(graph, "shapes", ids)
    names = np.asarray(graph.recorded["name"], np.int64)[rows]
    first, which = distinct_rows([names, np.asarray(codes, np.int64)])
    new = []
    for name_code, code in zip(names[first].tolist(), codes[first].tolist(), strict=True):
        name = graph.recorded.text("name")[name_code]
        text = texts[code]
        after = resize.call(name, parse_shapes(text) or [], hints.get((name, text)))
        new.append(code if after is None else graph.code("shapes", as_text(after[1])))
    graph.write("shapes", ids, np.array(new, np.int64)[which])


def grow_copies(tasks: Selection, factor: float) -> None:
    """Let the copies among these tasks have so many times their bytes; single numbers stay."""
    copies = tasks.where(kind=("memcpy", "memset")).where(lambda each: each.bytes > SCALAR_BYTES)
    if len(copies):
        copies.set(bytes=np.rint(copies.bytes * factor).astype(np.int64))


def grown_by(graph: Graph, selection: Selection) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by how much FLOP and bytes of each task are more than recorded, after all edits so far.

    The third is by how much the results of products are larger, NaN of other work that grew.
    """
    flop, nbytes, results = (np.ones(len(selection)) for _ in range(3))
    in_passes = np.isin(graph.phase[selection.ids], [phase_code(phase) for phase in PASSES])
    on_device = graph.kind[selection.ids] != CPU
    for each in graph.resized:
        mine = in_passes & (on_device == each.on_device)
        if each.old is None:
            same = np.full(len(selection), each.factor)
            factors = (same, same, np.full(len(selection), np.nan))
        else:
            growth = growth_of(graph, selection, each.old, each.new, every=each.every)
            factors = (growth.flop, growth.nbytes, growth.results)
        flop *= np.where(mine, factors[0], 1.0)
        nbytes *= np.where(mine, factors[1], 1.0)
        results *= np.where(mine, factors[2], 1.0)
    return flop, nbytes, results


def arguments_now(graph: Graph, calls: Calls) -> list[list[Argument]]:
    """Return the arguments of each distinct call of the passes (`Calls.keys`), after all edits so far.

    Args:
        graph: the graph of the trace.
        calls: those of the graph's trace (`calls_of`).

    Returns:
        for each of `calls.keys` its arguments: a shape, or a list of shapes.
    """
    resizes = [_resize(calls, each) for each in graph.resized if each.old is not None]
    found = []
    for name, shapes, recorded in calls.keys:
        arguments = parse_shapes(shapes) or []
        hint = recorded
        for resize in resizes:
            after = resize.call(name, arguments, hint)
            if after is not None:
                _, arguments, hint = after
        found.append(arguments)
    return found


def _resize(calls: Calls, resizing: Resizing) -> Resize:
    return Resize(calls, resizing.old or 1, resizing.new, every=resizing.every)
