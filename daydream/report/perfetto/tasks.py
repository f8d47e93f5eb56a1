"""Slices of a timeline file: what was recorded, and the tasks of a simulation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS
from daydream.report.perfetto.events import About, microseconds, span, thread
from daydream.report.perfetto.flows import measured_flows
from daydream.trace.schema import DEVICE_KINDS, HOST_KINDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline
    from daydream.trace.trace import Trace

INSERTED = " [inserted]"


def measured_slices(
    process: int, graph: Graph, first_lane: int, origin: int, numbers: count[int]
) -> Iterator[str]:
    """Return the rows of the trace behind a graph: host rows nested as recorded, device rows by stream.

    Arrows lead from launches to what they launched.
    """
    trace = graph.trace
    if trace is None:
        return
    rows = np.flatnonzero(trace.is_kind(*HOST_KINDS, *DEVICE_KINDS))
    start = np.asarray(trace["start_ns"], np.int64)[rows]
    duration = np.asarray(trace["duration_ns"], np.int64)[rows]
    lane, names = _lanes_of_rows(graph, trace, rows)
    lane, names = _keep_apart(
        lane, names, start, start + duration, trace.is_kind(*DEVICE_KINDS)[rows]
    )
    for number in range(len(graph.lanes), len(names)):
        yield from thread(process, first_lane + number, names[number])

    step_names = [step["name"] for step in graph.steps]
    about = About(*(trace.text(name) for name in ("kind", "phase", "layer", "op")), step_names)
    kinds = [json.dumps(text) for text in trace.text("kind")]
    titles = [json.dumps(text) for text in trace.text("name")]
    columns = [
        np.asarray(trace[name])[rows].tolist() for name in ("kind", "phase", "layer", "op", "step")
    ]
    tid, ts, dur = (lane + first_lane).tolist(), (start - origin).tolist(), duration.tolist()
    title = np.asarray(trace["name"])[rows].tolist()
    for place, codes in enumerate(zip(*columns, strict=True)):
        name, kind = titles[title[place]], kinds[codes[0]]
        yield span(process, tid[place], ts[place], dur[place], name, kind, about(codes))
    yield from measured_flows(process, graph, rows, lane + first_lane, origin, numbers)


def simulated_slices(
    process: int,
    timeline: Timeline,
    before: Graph | None,
    first_lane: int,
    origin: int,
    path: np.ndarray,
) -> Iterator[str]:
    """Return the tasks of a timeline's first pass, and on CPU threads what they stood waiting for.

    Against the graph `before` the change, tasks that changed show their former duration
    and new ones are marked. Those of `path`, the critical one, say so.
    """
    graph, plan = timeline.graph, timeline.plan
    chosen = np.flatnonzero(timeline.copy == 0)
    task = timeline.task[chosen]
    former = np.full(len(task), -1, np.int64)
    new = np.zeros(len(task), bool)
    if before is not None:
        new = task >= before.size
        former[~new] = before.columns["duration_ns"][task[~new]]

    step_names = [step["name"] for step in graph.steps]
    about = About(KINDS, PHASES, graph.texts["layer"], graph.texts["op"], step_names)
    kinds = [json.dumps(text) for text in KINDS]
    titles = [json.dumps(text) for text in graph.texts["name"]]
    columns = [
        graph.columns[name][task].tolist() for name in ("kind", "phase", "layer", "op", "step")
    ]
    tid = (graph.columns["lane"][task] + first_lane).tolist()
    ts, dur = (timeline.start_ns[chosen] - origin).tolist(), plan.duration_ns[chosen].tolist()
    title, was, is_new = graph.columns["name"][task].tolist(), former.tolist(), new.tolist()
    on_path = np.isin(chosen, path).tolist()
    waited, why = waits(timeline)[chosen].tolist(), waits_for(timeline)[chosen].tolist()
    for place, codes in enumerate(zip(*columns, strict=True)):
        thread_id, begin, args, wait = tid[place], ts[place], about(codes), waited[place]
        name, kind = titles[title[place]], kinds[codes[0]]
        if wait > 0:
            args += f',"wait_us":{microseconds(wait)}'
            if KINDS[codes[0]] == "cpu":
                reason = json.dumps(f"wait: {Cause(why[place]).label}")
                yield span(process, thread_id, begin - wait, wait, reason, '"wait"', "")
        if on_path[place]:
            args += ',"critical":true'
        if is_new[place]:
            args += ',"inserted":true'
            name = name[:-1] + INSERTED + '"'
        elif was[place] not in (-1, dur[place]):
            args += f',"changed":true,"before_us":{microseconds(was[place])}'
        yield span(process, thread_id, begin, dur[place], name, kind, args)


def waits(timeline: Timeline) -> np.ndarray:
    """Return each task's wait; none before the first of a lane, which did not wait but was not recorded."""
    wait = timeline.wait_ns.copy()
    wait[timeline.plan.before_on_lane() < 0] = 0
    return wait


def waits_for(timeline: Timeline) -> np.ndarray:
    """Return the cause that bound each task's start, `RELEASE` where it was no edge."""
    plan, start = timeline.plan, timeline.start_ns
    cause = np.full(len(plan), int(Cause.RELEASE))
    dst = plan.edge_dst
    binding = np.flatnonzero(start[plan.edge_src] + plan.edge_delay_ns == start[dst])
    cause[dst[binding[::-1]]] = plan.edge_cause[binding[::-1]]
    return cause


def _lanes_of_rows(graph: Graph, trace: Trace, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return each row's lane, and the names of all lanes: threads with no task come behind the graph's."""
    on_device = trace.is_kind(*DEVICE_KINDS)[rows]
    places = [
        np.where(
            on_device,
            np.asarray(trace[ours], np.int64)[rows],
            np.asarray(trace[theirs], np.int64)[rows],
        )
        for ours, theirs in (("device", "pid"), ("stream", "tid"))
    ]
    keys = np.stack(
        [np.asarray(trace["rank"], np.int64)[rows], on_device.astype(np.int64), *places]
    )
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    lane_of = np.full(distinct.shape[1], -1, np.int64)
    place_of_row = np.full(len(trace), -1, np.int64)
    place_of_row[rows] = which
    tasks = np.flatnonzero(graph.columns["row"] >= 0)
    here = place_of_row[graph.columns["row"][tasks]]
    lane_of[here[here >= 0]] = graph.columns["lane"][tasks[here >= 0]]
    names = [lane.name for lane in graph.lanes]
    for place in np.flatnonzero(lane_of < 0).tolist():
        lane_of[place] = len(names)
        names.append(f"thread {distinct[3, place]}")
    return lane_of[which], names


def _keep_apart(
    lane: np.ndarray, names: list[str], start: np.ndarray, end: np.ndarray, on_device: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return lanes and names with device rows that overlap others of their stream on a lane of their own."""
    lane = lane.copy()
    for number in np.unique(lane[on_device]).tolist():
        rows = np.flatnonzero(lane == number)
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        while True:
            reached = np.maximum.accumulate(end[rows])
            over = np.append(False, start[rows][1:] < reached[:-1])
            if not over.any():
                break
            # Only what overlaps a row that stays has to go; the first of each pile stays.
            rows = rows[over]
            lane[rows] = len(names)
            names = [*names, f"{names[number]} (overlapping)"]
    return lane, names
