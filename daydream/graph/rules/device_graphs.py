"""Rule 9, CUDA and HIP graphs: one launch, many kernels.

The nodes of a graph launch share its correlation id. On one stream they run in
order; a node that starts just as a node of the same launch ends on another stream
waited for it. Profilers record only some of a graph's nodes at times: a hole
between two recorded nodes is device work that was not traced, and takes part in a
what-if as such. Treated as idle time, it would vanish from under a faster GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.graph.draft import Draft
from daydream.graph.plan import Cause

HOLE_NS = 10_000  # nodes of a graph follow each other in 0.5 to 2 us
NEAR_NS = 20_000
CLOCK_NS = 3_000
UNTRACED = "untraced graph nodes"


@dataclass
class DeviceWork:
    """Device tasks by lane, in order: `row` is -1 for work that was not traced, `like` a row it resembles."""

    row: np.ndarray
    like: np.ndarray
    lane: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    launch: np.ndarray
    order: np.ndarray
    unit: np.ndarray  # correlation, the same for all nodes of a graph launch


def fill_holes(work: DeviceWork) -> DeviceWork:
    """Put untraced work into the holes between consecutive nodes of a graph launch that runs on one stream."""
    end = work.start + work.duration
    same = (work.unit[1:] == work.unit[:-1]) & (work.lane[1:] == work.lane[:-1]) & (work.unit[1:] >= 0)
    hole = np.flatnonzero(same & (work.start[1:] - end[:-1] > HOLE_NS) & ~np.isin(work.unit[1:], _spread(work)))
    if not len(hole):
        return work
    after = hole + 1
    return DeviceWork(
        row=np.insert(work.row, after, -1),
        like=np.insert(work.like, after, work.like[after]),
        lane=np.insert(work.lane, after, work.lane[after]),
        start=np.insert(work.start, after, end[hole]),
        duration=np.insert(work.duration, after, work.start[after] - end[hole]),
        launch=np.insert(work.launch, after, work.launch[after]),
        order=np.insert(work.order, after, work.order[after]),
        unit=np.insert(work.unit, after, work.unit[after]),
    )


def _spread(work: DeviceWork) -> np.ndarray:
    """Return the launches whose nodes run on more than one stream."""
    pairs = np.unique(np.stack([work.unit, work.lane]), axis=1)
    units, streams = np.unique(pairs[0], return_counts=True)
    spread: np.ndarray = units[streams > 1]
    return spread


def link_nodes(draft: Draft) -> None:
    """Link nodes of one graph launch across streams, and count the holes that stand for untraced work."""
    graph = draft.graph
    columns = graph.columns
    holes = (columns["kind"] > 0) & (columns["row"] < 0)
    if holes.any():
        graph.facts.notes.append(
            f"{int(holes.sum()):,} holes between the recorded nodes of CUDA graphs, "
            f"{columns['duration_ns'][holes].sum() / 1e6:,.2f} ms in all, count as untraced device work."
        )
    launched = np.flatnonzero((columns["kind"] > 0) & (columns["launch"] >= 0))
    pairs = np.unique(np.stack([columns["launch"][launched], columns["lane"][launched]]), axis=1)
    calls, streams = np.unique(pairs[0], return_counts=True)
    for call in calls[streams > 1].tolist():
        nodes = launched[columns["launch"][launched] == call]
        _link_streams(draft, nodes)


def _link_streams(draft: Draft, nodes: np.ndarray) -> None:
    columns = draft.graph.columns
    nodes = nodes[np.argsort(draft.start_ns[nodes], kind="stable")]
    lanes, ends = columns["lane"][nodes], draft.end_ns[nodes]
    free: dict[int, int] = {}
    for place, node in enumerate(nodes.tolist()):
        start, lane = int(draft.start_ns[node]), int(lanes[place])
        if start - free.get(lane, -(2**60)) > CLOCK_NS:
            others = np.flatnonzero((lanes[:place] != lane) & (ends[:place] <= start + CLOCK_NS))
            if len(others):
                source = int(others[np.argmax(ends[others])])
                if start - ends[source] <= NEAR_NS:
                    draft.graph.link([int(nodes[source])], [node], cause=Cause.GRAPH)
        free[lane] = int(ends[place])
