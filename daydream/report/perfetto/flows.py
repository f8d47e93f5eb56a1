"""Arrows and the critical path of a timeline file: what launched what, who waited for whom, what decided."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.tables import CPU
from daydream.report.perfetto.events import flow
from daydream.trace.schema import DEVICE_KINDS

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline

LAUNCH, PATH = "launch", "critical path"
# Waiting for room in the queue ties every launch to a kernel a thousand before it: no arrow helps there.
SHOWN = (Cause.EVENT, Cause.SYNC, Cause.HANDOFF, Cause.LOCK, Cause.COMMUNICATION, Cause.USER)


def measured_flows(
    process: int, graph: Graph, rows: np.ndarray, tid: np.ndarray, origin: int, numbers: count[int]
) -> Iterator[str]:
    """Return an arrow from each recorded launch to its device work; `rows` are shown on threads `tid`."""
    trace = graph.trace
    if trace is None:
        return
    thread = np.full(len(trace), -1, np.int64)
    thread[rows] = tid
    start = np.asarray(trace["start_ns"], np.int64) - origin
    columns = graph.columns
    work = np.flatnonzero(
        (columns["kind"] != CPU) & (columns["launch"] >= 0) & (columns["row"] >= 0)
    )
    source, target = columns["row"][columns["launch"][work]], columns["row"][work]
    duration = np.asarray(trace["duration_ns"], np.int64)
    there = (
        (source >= 0)
        & (thread[source] >= 0)
        & (thread[target] >= 0)
        & trace.is_kind(*DEVICE_KINDS)[target]
    )
    there &= (duration[source] > 0) & (duration[target] > 0) & (start[source] <= start[target])
    source, target = source[there], target[there]
    ends = (thread[source], start[source], thread[target], start[target])
    yield from _arrows(process, LAUNCH, *ends, numbers)


def simulated_flows(
    process: int,
    timeline: Timeline,
    first_lane: int,
    origin: int,
    path: np.ndarray,
    numbers: count[int],
) -> Iterator[str]:
    """Return the arrows of a timeline's first pass: launches, waits, and the critical path from lane to lane.

    `path` are the entries on it, in order.
    """
    plan, start = timeline.plan, timeline.start_ns - origin
    thread = plan.lane.astype(np.int64) + first_lane
    shown = (timeline.copy == 0) & (plan.duration_ns > 0)
    src, dst = plan.edge_src.astype(np.int64), plan.edge_dst
    both = shown[src] & shown[dst] & (thread[src] != thread[dst])
    # An arrow leaves a slice within it: at its start where that is what counts, else at its end.
    leaves = start[src] + np.where(plan.edge_from_start, 0, plan.duration_ns[src] - 1)
    leaves = np.clip(leaves, start[src], np.maximum(start[dst], start[src]))
    for cause in (Cause.LAUNCH, *SHOWN):
        edges = np.flatnonzero(both & (plan.edge_cause == cause) & (leaves <= start[dst]))
        name = LAUNCH if cause is Cause.LAUNCH else cause.label
        source, target = src[edges], dst[edges]
        yield from _arrows(
            process, name, thread[source], leaves[edges], thread[target], start[target], numbers
        )
    path = path[shown[path]]
    source, target = path[:-1], path[1:]
    hop = (thread[source] != thread[target]) & (start[source] <= start[target])
    source, target = source[hop], target[hop]
    leaves = np.minimum(start[source] + plan.duration_ns[source] - 1, start[target])
    yield from _arrows(
        process, PATH, thread[source], leaves, thread[target], start[target], numbers
    )


def critical_entries(timeline: Timeline) -> np.ndarray:
    """Return the entries on the chain of causes behind the last covered step of the first pass, in order."""
    ends = [
        (int(timeline.end_ns[task]), task)
        for (copy, step), task in timeline.last_of_steps.items()
        if copy == 0 and timeline.graph.steps[step].get("covered")
    ]
    if not ends:
        return np.empty(0, np.int64)
    path = timeline.critical_path(max(ends)[1]).task
    return np.asarray(path[timeline.copy[path] == 0], np.int64)


def _arrows(
    process: int,
    name: str,
    tid: np.ndarray,
    ts: np.ndarray,
    to_tid: np.ndarray,
    to_ts: np.ndarray,
    numbers: count[int],
) -> Iterator[str]:
    for ends in zip(tid.tolist(), ts.tolist(), to_tid.tolist(), to_ts.tolist(), strict=True):
        yield from flow(process, next(numbers), name, *ends)
