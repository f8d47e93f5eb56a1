"""What earlier edits of the same question made of the recorded work: a larger batch, longer sequences.

A trace's amounts of work are those recorded. Who makes them more (`batch-size`,
`sequence-length`) leaves that here: `work` then counts the work as it is now, and the tasks'
`shapes` are the new ones, so that whoever needs the size of a tensor after it finds the new size.
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import distinct_rows
from daydream.costs.resize.growth import growth_of
from daydream.costs.resize.new_shapes import Resize, as_text
from daydream.costs.workload.calls import Calls, calls_of
from daydream.costs.workload.shapes import Argument, parse_shapes
from daydream.graph.calls import shape_rows
from daydream.graph.graph import Graph, Resizing
from daydream.graph.select import coded
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU, phase_code

SCALAR_BYTES = 8  # a copied number grows with nothing
PASSES = ("forward", "loss", "backward")


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
    ids, rows = tasks.ids[rows >= 0], rows[rows >= 0]
    codes, texts = coded(graph, "shapes", ids)
    names = np.asarray(graph.recorded["name"], np.int64)[rows]
    first, which = distinct_rows([names, np.asarray(codes, np.int64)])
    new = []
    for name_code, code in zip(names[first].tolist(), codes[first].tolist(), strict=True):
        name, text = graph.recorded.text("name")[name_code], texts[code]
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
        arguments, hint = parse_shapes(shapes) or [], recorded
        for resize in resizes:
            after = resize.call(name, arguments, hint)
            if after is not None:
                _, arguments, hint = after
        found.append(arguments)
    return found


def _resize(calls: Calls, resizing: Resizing) -> Resize:
    return Resize(calls, resizing.old or 1, resizing.new, every=resizing.every)
