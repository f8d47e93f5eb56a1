"""What a device runs, as opposed to threads of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, hipGraphLaunch, cuGraphLaunch and their versions


def device_work(graph: Graph) -> np.ndarray:
    """Return a mask over tasks of those that a device runs; collectives on CPU threads (gloo) are none."""
    host = np.array([lane.host for lane in graph.lanes] + [False], bool)
    return np.asarray((graph.columns["kind"] > 0) & ~host[graph.columns["lane"]])


def in_replays(tasks: Selection) -> Selection:
    """Return those of some device tasks that a replayed CUDA (or HIP) graph runs.

    They are launched by a call that launches graphs, or share their launch with other recorded kernels. What
    nsys records of a graph as a whole is one task, and work between its nodes that was not traced counts.
    """
    graph = tasks.graph
    columns = graph.columns
    replays = np.array([GRAPH_LAUNCH in name for name in graph.texts["name"]] + [False], bool)
    call = columns["launch"][tasks.ids]
    recorded = graph.alive & (columns["kind"] > 0) & (columns["launch"] >= 0) & (columns["repeat"] == 0)
    recorded &= columns["row"] >= 0
    nodes = np.bincount(columns["launch"][recorded], minlength=graph.size)
    found = (call >= 0) & (replays[columns["name"][call]] | (nodes[call] > 1))
    return tasks.of(tasks.ids[found & device_work(graph)[tasks.ids]], f"{tasks.words} in replays")
