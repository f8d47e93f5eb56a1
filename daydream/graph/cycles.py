"""Cycles: tasks that wait for each other, named with the reason of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.plan import Cause

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

LONGEST = 6  # steps of a cycle that are named
REASONS = {
    Cause.LANE: "on {lane}, which runs in program order",
    Cause.LAUNCH: "which it launched",
    Cause.SYNC: "a call that waits for it",
    Cause.EVENT: "whose stream waits for it",
    Cause.QUEUE: "a launch that needs its place in the queue",
    Cause.HANDOFF: "on a thread that it wakes",
    Cause.COMMUNICATION: "which communicates with it",
    Cause.GRAPH: "a node after it",
    Cause.LOCK: "which needs the driver's lock",
    Cause.USER: "by an edge that was put in",
}


class CycleError(GraphError):
    """Tasks wait for each other; `edges` are one cycle: a task, the one behind it, and why it is."""

    def __init__(self, message: str, edges: list[tuple[int, int, Cause]]) -> None:
        super().__init__(message)
        self.edges = edges


def cycle_error(
    graph: Graph, task: np.ndarray, stuck: np.ndarray, src: np.ndarray, dst: np.ndarray, cause: np.ndarray
) -> CycleError:
    """Return the error that names one cycle among the stuck entries of a plan."""
    inside = np.flatnonzero(stuck[src] & stuck[dst])
    into = dict(zip(dst[inside].tolist(), inside.tolist(), strict=True))  # an edge into each, any
    walk: list[int] = []
    seen: dict[int, int] = {}
    entry = int(np.flatnonzero(stuck)[0])
    while entry not in seen:
        seen[entry] = len(walk)
        walk.append(into[entry])
        entry = int(src[into[entry]])
    cycle = walk[seen[entry] :][::-1]
    edges = [(int(task[src[edge]]), int(task[dst[edge]]), Cause(int(cause[edge]))) for edge in cycle]
    return CycleError(_in_words(graph, edges), edges)


def _in_words(graph: Graph, cycle: list[tuple[int, int, Cause]]) -> str:
    said = [f"{task_name(graph, cycle[0][0])} comes before"]
    for _, after, cause in cycle[:LONGEST]:
        lane = graph.lanes[graph.columns["lane"][after]].name
        said.append(f"{task_name(graph, after)} ({REASONS[cause].format(lane=lane)}), before")
    words = " ".join(said).removesuffix(", before")
    more = f", and on through {len(cycle) - LONGEST} more" if len(cycle) > LONGEST else ""
    return f"the graph has a cycle of {len(cycle)} tasks: {words}{more}"


def task_name(graph: Graph, task: int) -> str:
    """Return a task's name for a message, shortened."""
    name = graph.texts["name"][graph.columns["name"][task]]
    return repr(name if len(name) <= 60 else name[:57] + "...")
