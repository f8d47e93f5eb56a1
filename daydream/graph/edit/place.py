"""Where an inserted task goes in program order.

Keys of program order are whole numbers, with room between those of recorded tasks.
Where insertions have used the room up, everything behind moves on: the order of what
is there stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import ORDER_STEP

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


def place_next_to(graph: Graph, anchors: np.ndarray, *, behind: bool) -> np.ndarray:
    """Return a key for a new task beside each anchor (ids; one may stand there several times).

    The keys lie between the anchor's and its neighbour's; those of one anchor ascend in the
    order given. Where there is no room, all that is behind moves on.
    """
    order = graph.columns["order"]
    sequence = np.argsort(order, kind="stable")
    position = np.empty(len(order), np.int64)
    position[sequence] = np.arange(len(order))
    places = position[anchors]
    count = np.bincount(places, minlength=len(order))
    wanted = count[:-1] if behind else count[1:]
    room = np.diff(order[sequence])
    push = np.where(wanted > 0, np.maximum(wanted + 1 - room, 0), 0)
    order[sequence[1:]] += np.cumsum(push)
    by_place = np.argsort(places, kind="stable")
    first = np.searchsorted(places[by_place], places[by_place])
    turn = np.empty(len(places), np.int64)
    turn[by_place] = np.arange(len(places)) - first
    return order[anchors] + 1 + turn if behind else order[anchors] - count[places] + turn
