"""Grouping: tasks of equal values, and consecutive tasks up to a size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import unique
from daydream.errors import GraphError
from daydream.graph.groups import Groups
from daydream.graph.query.blocks import block_of_layers
from daydream.graph.query.calls import instances
from daydream.graph.query.columns import coded, is_text, read_column
from daydream.graph.query.matching import note_layers
from daydream.graph.query.numbering import distinct, distinct_rows

if TYPE_CHECKING:
    from daydream.graph.selection import Selection


def group_by(
    tasks: Selection, columns: tuple[str, ...], within: str | None, block: str | Sequence[str] | None = None
) -> Groups:
    """Return the tasks in groups of equal values; see `Selection.group_by`."""
    graph, ids = tasks.graph, tasks.ids
    numbers: list[np.ndarray] = []
    keys: list[list[Any]] = []
    if within is not None:
        calls = instances(graph, ids, within)
        values, number = distinct(calls)
        numbers.append(np.where(calls >= 0, number, -1))
        keys.append(values.tolist())
    if block is not None:
        note_layers(graph, {"block": block})
        by_layer, blocks = block_of_layers(graph, block)
        numbers.append(by_layer[graph.columns["layer"][ids]])
        keys.append(blocks)
    for name in columns:
        if is_text(name):
            number, texts = coded(graph, name, ids)
            numbers.append(np.asarray(number, np.int64))
            keys.append([*texts])
        else:
            column = read_column(graph, name, ids)
            values, number = distinct(column)
            numbers.append(np.where(column >= 0, number, -1))
            keys.append(values.tolist())
    if not numbers:
        raise GraphError("group by a column, such as layer, op or step, within an operator or by block")
    if len(numbers) == 1:
        return Groups(tasks, numbers[0], keys[0])
    known = np.all([number >= 0 for number in numbers], axis=0)
    table = np.stack(numbers)[:, known]
    first, place = distinct_rows(table)
    number = np.full(len(ids), -1)
    number[known] = place
    joined: list[Any] = [
        tuple(key[code] for key, code in zip(keys, column, strict=True))
        for column in table[:, first].T.tolist()
    ]
    return Groups(tasks, number, joined)


def runs(tasks: Selection, size: float | Sequence[float], of: str) -> Groups:
    """Return consecutive tasks whose sums reach a size; see `Selection.runs`."""
    sizes = [size] if isinstance(size, int | float | np.number) else list(size)
    if not sizes or not all(one > 0 for one in sizes):
        raise GraphError(f"runs need sizes above 0, not {size}")
    amounts = np.maximum(read_column(tasks.graph, of, tasks.ids), 0).tolist()
    steps, ranks = tasks.step.tolist(), tasks.rank.tolist()
    number: list[int] = []
    keys: list[tuple[int, int, int]] = []
    filled: dict[tuple[int, int], tuple[int, float]] = {}  # (step, rank) -> runs so far, filled of the last
    place: dict[tuple[int, int, int], int] = {}
    # A loop over tasks: where a run ends depends on where the one before it did.
    for step, rank, amount in zip(steps, ranks, amounts, strict=True):
        run, sum_ = filled.get((step, rank), (0, 0))
        key = (step, rank, run)
        if key not in place:
            place[key] = len(keys)
            keys.append(key)
        number.append(place[key])
        sum_ += amount
        full = sum_ >= sizes[min(run, len(sizes) - 1)]
        filled[step, rank] = (run + 1, 0) if full else (run, sum_)
    return Groups(tasks, np.array(number, np.int64), keys)


def stretches(tasks: Selection, by: Selection, *, on_lane: bool) -> Groups:
    """Return the tasks in groups with no task of `by` between them; see `Selection.stretches`."""
    graph = tasks.graph
    place = np.empty(graph.size, np.int64)
    place[graph.ids] = np.arange(len(graph.ids))
    lanes = graph.columns["lane"]
    ranks = np.array([lane.rank for lane in graph.lanes] or [0], np.int64)
    mine, theirs = (lanes[chosen.ids] if on_lane else ranks[lanes[chosen.ids]] for chosen in (tasks, by))
    before = np.zeros(len(tasks), np.int64)
    for one in unique(mine).tolist():
        here = mine == one
        before[here] = np.searchsorted(np.sort(place[by.ids[theirs == one]]), place[tasks.ids[here]])
    table = np.stack([tasks.step, mine, before])
    first, number = distinct_rows(table)
    return Groups(tasks, number, [tuple(key) for key in table[:, first].T.tolist()])
