"""Counters of a timeline file: launches in flight on each stream, how many streams are busy, memory held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.calls import Coverage, device_work
from daydream.memory.views import held_over_time
from daydream.report.perfetto.events import counter

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline

IN_FLIGHT, BUSY, MEMORY = "in flight", "streams busy", "memory"


def measured_counters(process: int, graph: Graph, origin: int) -> Iterator[str]:
    """Return the counters of what was recorded."""
    start = graph.columns["measured_start_ns"]
    tasks = np.flatnonzero(
        device_work(graph) & graph.alive & (graph.columns["row"] >= 0) & (start >= 0)
    )
    launch = graph.columns["launch"][tasks]
    launched = np.where(launch >= 0, start[launch], start[tasks])
    yield from _counters(process, graph, tasks, start[tasks], launched, origin)
    yield from _memory(process, graph, origin)


def simulated_counters(process: int, timeline: Timeline, origin: int) -> Iterator[str]:
    """Return the counters of a timeline's first pass."""
    graph = timeline.graph
    first = np.flatnonzero(timeline.copy == 0)
    start = np.full(graph.size, -1, np.int64)
    start[timeline.task[first]] = timeline.start_ns[first]
    tasks = timeline.task[first][device_work(graph)[timeline.task[first]]]
    launch = graph.columns["launch"][tasks]
    launched = np.where((launch >= 0) & (start[launch] >= 0), start[launch], start[tasks])
    yield from _counters(process, graph, tasks, start[tasks], launched, origin)


def _counters(
    process: int,
    graph: Graph,
    tasks: np.ndarray,
    start: np.ndarray,
    launched: np.ndarray,
    origin: int,
) -> Iterator[str]:
    """Return the counters of device tasks; what has no launch in the trace counts from its own start."""
    lane = graph.columns["lane"][tasks]
    end = start + graph.columns["duration_ns"][tasks]
    begins, closes = [], []
    for number in np.unique(lane).tolist():
        mine = lane == number
        name = f"{IN_FLIGHT}: {graph.lanes[number].name}"
        yield from _steps(process, name, np.minimum(launched[mine], start[mine]), end[mine], origin)
        busy = Coverage(start[mine], end[mine])
        begins.append(busy.start_ns)
        closes.append(busy.end_ns)
    if begins:
        yield from _steps(process, BUSY, np.concatenate(begins), np.concatenate(closes), origin)


def _memory(process: int, graph: Graph, origin: int) -> Iterator[str]:
    """Return the bytes that each device holds, wherever they change; nothing where none were recorded."""
    for one in held_over_time(graph.trace) if graph.trace is not None else []:
        name = f"{MEMORY}: {f'rank {one.rank} ' if one.rank else ''}{one.device}"
        last = np.append(one.time_ns[1:] != one.time_ns[:-1], True)[: len(one.time_ns)]
        times = np.maximum(one.time_ns[last] - origin, 0)
        for ts, nbytes in zip(times.tolist(), one.held_bytes[last].tolist(), strict=True):
            yield counter(process, ts, name, nbytes)


def _steps(
    process: int, name: str, begin: np.ndarray, end: np.ndarray, origin: int
) -> Iterator[str]:
    """Return how many intervals are open, wherever that changes."""
    times = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(begin), np.int64), np.full(len(end), -1, np.int64)])
    at, place = np.unique(times, return_inverse=True)
    level = np.cumsum(np.bincount(place.reshape(-1), weights=change).astype(np.int64))
    differs = np.append(True, level[1:] != level[:-1])[: len(level)]
    for ts, value in zip((at[differs] - origin).tolist(), level[differs].tolist(), strict=True):
        yield counter(process, ts, name, value)
