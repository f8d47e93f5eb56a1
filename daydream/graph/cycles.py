"""An order that every edge agrees with, or the cycle that allows none, named with the reason of each step."""

from __future__ import annotations

import heapq
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


def topological(
    graph: Graph, task: np.ndarray, by_lane: np.ndarray, src: np.ndarray, dst: np.ndarray, cause: np.ndarray
) -> np.ndarray:
    """Return a topological rank for every entry of a plan, as near to program order as its edges allow.

    `task` is the task of each entry and `by_lane` all entries by (lane, entry), both int64, shape (entries,);
    `src`, `dst` and `cause` are the edges between lanes. Raises `CycleError` where there is none.
    """
    count = len(task)
    lanes = graph.columns["lane"][task]
    fixed = ~np.isin(lanes, list(graph.scheduled))
    neighbours = (lanes[by_lane[1:]] == lanes[by_lane[:-1]]) & fixed[by_lane[1:]]
    src = np.concatenate([src, by_lane[:-1][neighbours]])
    dst = np.concatenate([dst, by_lane[1:][neighbours]])
    cause = np.append(cause, np.full(int(neighbours.sum()), int(Cause.LANE)))
    left = np.bincount(dst, minlength=count).tolist()
    by_source = np.argsort(src, kind="stable")
    starts = np.searchsorted(src[by_source], np.arange(count + 1)).tolist()
    children = dst[by_source].tolist()
    ready = [entry for entry, causes in enumerate(left) if not causes]
    rank = np.full(count, -1, np.int64)
    done = 0
    while ready:
        entry = heapq.heappop(ready)
        rank[entry] = done
        done += 1
        for child in children[starts[entry] : starts[entry + 1]]:
            left[child] -= 1
            if not left[child]:
                heapq.heappush(ready, child)
    if done < count:
        raise _cycle_error(graph, task, rank < 0, src, dst, cause)
    return rank


def _cycle_error(
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
