"""Program order: tasks sorted by the key that says what the program did when, then by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

FEW = 8  # one task in so many, or fewer, are sorted sooner than they are looked up among all


def in_program_order(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return tasks by `order`, then by id; nothing is sorted where they stand so already.

    Args:
        graph: the graph of the tasks.
        ids: tasks, removed ones and repeated ones too, int64, shape (n,).

    Returns:
        int64, shape (n,).

    """
    order = graph.columns["order"][ids]
    behind = order[1:] > order[:-1]
    behind |= (order[1:] == order[:-1]) & (ids[1:] >= ids[:-1])
    if behind.all():
        return ids
    if len(ids) * FEW > graph.size and graph.alive[ids].all():
        chosen = among(graph, ids)
        if np.count_nonzero(chosen) == len(ids):
            return graph.ids[chosen[graph.ids]]
    return ids[np.lexsort((ids, order))]


def among(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return a mask of all ids ever given out that is true for these: bool, shape (ids,)."""
    mask = np.zeros(graph.size, bool)
    mask[ids] = True
    return mask
