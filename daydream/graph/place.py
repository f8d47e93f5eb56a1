"""Where an inserted task goes in program order.

Keys of program order are whole numbers, with room between those of recorded tasks.
Where insertions have used the room up, everything behind moves on: the order of what
is there stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.graph import ORDER_STEP

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def place(graph: Graph, lane: int, causes: Sequence[int], followers: Sequence[int]) -> int:
    """Return the key of a new task: behind its causes, else before its followers, else last of its lane."""
    order, lanes = graph.columns["order"], graph.columns["lane"]
    if causes:
        ahead = np.isin(graph.columns["launch"], causes)
        ahead[list(causes)] = True
        tasks = np.flatnonzero(ahead)
        last = int(tasks[np.lexsort((tasks, order[tasks]))[-1]])
        behind = _from(order, last)
        behind[last] = False
        if lane in lanes[tasks] and (order[behind] <= order[last] + 1).any():
            order[behind] += 2
        return int(order[last]) + 1
    if followers:
        first = min(followers, key=lambda task: (order[task], task))
        if ((lanes == lane) & (order == order[first]))[:first].any():
            order[_from(order, first)] += 2
        return int(order[first]) - 1
    on_lane = order[lanes == lane]
    return int(on_lane.max()) + ORDER_STEP if len(on_lane) else 0


def _from(order: np.ndarray, task: int) -> np.ndarray:
    """Return a mask of a task and all behind it in program order; of equal keys the lower id comes first."""
    behind: np.ndarray = order > order[task]
    behind[task:] |= order[task:] == order[task]
    return behind
