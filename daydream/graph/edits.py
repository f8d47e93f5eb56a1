"""Causes that outlast an edit: edges for what the order on a lane said, and for what a task ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.plan import Cause, around
from daydream.graph.select import among

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def keep_waits(graph: Graph, going: np.ndarray, *, drop: bool = True) -> None:
    """Turn waits between streams that the places of these tasks resolve into edges, before they move."""
    order = graph.order
    table = graph.waits
    moving = among(graph, going)
    src, _ = around_points(graph, table["source"], table["record"])
    _, dst = around_points(graph, table["target"], table["wait"])
    resolved = (src >= 0) & (dst >= 0) & (moving[src] | moving[dst]) & (order[src] < order[dst])
    latency = table["latency_ns"][resolved]
    graph.link(src[resolved], dst[resolved], latency_ns=latency, cause=Cause.EVENT)
    if drop:
        table.keep(~resolved)


def around_points(
    graph: Graph, lanes: np.ndarray, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the last task of each lane up to a task's place in the program, and the first behind it."""
    order = graph.order
    ids = graph.ids
    own = graph.lane[ids]
    return around(lambda lane: ids[own == lane], order, lanes, order[points])


def follow_instead(graph: Graph, tasks: np.ndarray, others: np.ndarray) -> None:
    """Let what follows the ends of tasks follow those of others, one for each."""
    moved = np.arange(graph.size)
    moved[tasks] = others
    src = graph.links["src"]
    graph.links.put("src", np.where(graph.links["from_start"] != 0, src, moved[src]))
