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
            graph.columns.own("order")[behind] += 2
        return int(order[last]) + 1
    if followers:
        first = min(followers, key=lambda task: (order[task], task))
        if ((lanes == lane) & (order == order[first]))[:first].any():
            order = graph.columns.own("order")
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
    sequence, position = _sorted(graph)
    places = position[anchors]
    count = np.bincount(places, minlength=len(order))
    wanted = count[:-1] if behind else count[1:]
    ahead = np.flatnonzero(wanted)
    room = order[sequence[ahead + 1]] - order[sequence[ahead]]
    push = np.maximum(wanted[ahead] + 1 - room, 0)
    if push.any():
        pushed = np.zeros(len(wanted), np.int64)
        pushed[ahead] = push
        order, first = graph.columns.own("order"), int(ahead[np.argmax(push > 0)])
        order[sequence[first + 1 :]] += np.cumsum(pushed[first:])
        del pushed
    by_place = np.argsort(places, kind="stable")
    first = np.searchsorted(places[by_place], places[by_place])
    turn = np.empty(len(places), np.int64)
    turn[by_place] = np.arange(len(places)) - first
    return order[anchors] + 1 + turn if behind else order[anchors] - count[places] + turn


def _sorted(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return all ids in program order, and the place of each; kept until the next structural edit."""
    if "by_order" not in graph._derived:
        sequence = np.argsort(graph.columns["order"], kind="stable")
        position = np.empty(len(sequence), np.int32)
        position[sequence] = np.arange(len(sequence), dtype=np.int32)
        graph._derived["by_order"] = sequence, position
    found: tuple[np.ndarray, np.ndarray] = graph._derived["by_order"]
    return found
