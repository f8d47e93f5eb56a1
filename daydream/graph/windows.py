"""Windows: the part of the program that is repeated.

One range of program-order keys, or one for each rank: ranks do not begin their steps at
one point of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from daydream.graph.tables import ORDER_STEP

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

Window: TypeAlias = tuple[int, int] | Mapping[int, tuple[int, int]]


def borders(graph: Graph, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return the program-order keys between which each lane is repeated; the end is not included."""
    if isinstance(window, Mapping):
        other = next(iter(window.values()))  # lanes of no rank: what edits put between the ranks
        each = [window.get(lane.rank, other) for lane in graph.lanes]
    else:
        each = [window] * len(graph.lanes)
    begin, end = np.array(each, np.int64).reshape(-1, 2).T
    return begin, end


def key_of(window: Window | None) -> object:
    """Return what tells one window from another, to be looked up by."""
    return tuple(sorted(window.items())) if isinstance(window, Mapping) else window


def steps_in(graph: Graph, window: Window) -> dict[int, tuple[int, int]]:
    """Return the first and the last step, by rank, that a window holds."""
    found: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(graph.steps):
        rank, key = step.get("rank", 0), int(step["start_ns"]) * ORDER_STEP
        begin, end = window.get(rank, (0, 0)) if isinstance(window, Mapping) else window
        if begin <= key < end:
            found[rank] = (found.get(rank, (number, number))[0], number)
    return found


def where_in(graph: Graph, window: Window) -> np.ndarray:
    """Return where each task lies: 0 before the window of its rank, 1 in it, 2 behind it; int8, shape (ids,).

    The first task of a step may begin where the window does. What an edit puts right before it stands ahead
    of that key and belongs to the step all the same: at a border, where nothing recorded lies between, a
    task that was not recorded goes by its step.
    """
    columns = graph.columns
    order, lane = columns["order"], columns["lane"]
    begin, end = borders(graph, window)
    if len(set(zip(begin.tolist(), end.tolist(), strict=True))) == 1:  # for all lanes
        found = (order >= begin[0]).astype(np.int8) + (order >= end[0])
    else:
        found = (order >= begin[lane]).astype(np.int8) + (order >= end[lane])
    made = (columns["measured_start_ns"] < 0) & ((columns["row"] < 0) | (columns["repeat"] > 0))
    made &= columns["step"] >= 0
    if not made.any():
        return found
    ranks = np.array([each.rank for each in graph.lanes], np.int64)
    for rank, (first, last) in steps_in(graph, window).items():
        mine = ranks[lane] == rank
        for side, of_next in ((0, columns["step"] >= first), (1, columns["step"] > last)):
            here = mine & (found == side)
            edge = order.max(where=here & ~made, initial=-1)
            found[here & made & of_next & (order > edge)] += 1
    return found
