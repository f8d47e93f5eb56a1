"""Slices of a timeline file: what was recorded, and the tasks of a simulation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.graph.graph import KINDS
from daydream.graph.plan import Cause
from daydream.simulate.timeline import WAITING_FOR
from daydream.trace import DEVICE_KINDS, HOST_KINDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline
    from daydream.trace import Trace

INSERTED = " [inserted]"


def measured_slices(process: int, graph: Graph, first_lane: int, origin: int) -> Iterator[str]:
    """Return the rows of the trace behind a graph: host rows nested as recorded, device rows on their stream."""
    trace = graph.trace
    if trace is None:
        return
    rows = np.flatnonzero(trace.is_kind(*HOST_KINDS, *DEVICE_KINDS))
    start = np.asarray(trace["start_ns"], np.int64)[rows]
    end = start + np.asarray(trace["duration_ns"], np.int64)[rows]
    lane, names = _lanes_of_rows(graph, trace, rows)
    apart, names = _keep_apart(lane, names, start, end, trace.is_kind(*DEVICE_KINDS)[rows])
    for number in range(len(graph.lanes), len(names)):
        thread = first_lane + number
        yield json.dumps({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": names[number]}})
        yield json.dumps({"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}})
    phase, kind = _texts(trace, "phase"), _texts(trace, "kind")
    name, layer, op = _texts(trace, "name"), _texts(trace, "layer"), _texts(trace, "op")
    steps = [json.dumps(step["name"]) for step in graph.steps]
    about: dict[tuple[int, ...], str] = {}
    columns = [np.asarray(trace[column])[rows].tolist() for column in ("kind", "phase", "layer", "op", "step")]
    codes = np.asarray(trace["name"])[rows].tolist()
    slices = zip(
        (apart + first_lane).tolist(), (start - origin).tolist(), (end - start).tolist(), codes, zip(*columns, strict=True),
        strict=True,
    )  # fmt: skip
    for thread, begin, duration, code, key in slices:
        args = about.get(key)
        if args is None:
            texts = (kind[key[0]], phase[key[1]], layer[key[2]], op[key[3]], _pick(steps, key[4]))
            args = about[key] = _args(texts)
        yield _slice(process, thread, begin, duration, name[code], kind[key[0]], args)


def simulated_slices(
    process: int, timeline: Timeline, before: Graph | None, first_lane: int, origin: int
) -> Iterator[str]:
    """Return the tasks of a timeline's first pass, and on CPU threads what they stood waiting for.

    Against the graph `before` the change, tasks that changed show their former duration
    and new ones are marked.
    """
    graph, plan = timeline.graph, timeline.plan
    chosen = np.flatnonzero(timeline.copy == 0)
    task = timeline.task[chosen]
    kind, lane = graph.columns["kind"][task], graph.columns["lane"][task]
    wait = timeline.wait_ns[chosen]
    first = np.ones(len(plan), bool)
    following = plan.next_on_lane()
    first[following[following >= 0]] = False
    wait[first[chosen]] = 0  # before its first task a lane does not wait: it was not recorded
    waits_for = _waits_for(timeline)[chosen]
    former = np.full(len(task), -1, np.int64)
    if before is not None:
        old = task < before.size
        former[old] = before.columns["duration_ns"][task[old]]
    new = before is not None and task >= before.size

    name, layer, op = ([json.dumps(text) for text in graph.texts[column]] for column in ("name", "layer", "op"))
    steps = [json.dumps(step["name"]) for step in graph.steps]
    kinds, phases = [json.dumps(text) for text in KINDS], [json.dumps(text) for text in PHASES]
    about: dict[tuple[int, ...], str] = {}
    columns = zip(
        kind.tolist(), *(graph.columns[column][task].tolist() for column in ("phase", "layer", "op", "step")), strict=True
    )
    slices = zip(
        (lane + first_lane).tolist(), (timeline.start_ns[chosen] - origin).tolist(),
        plan.duration_ns[chosen].tolist(), graph.columns["name"][task].tolist(), columns,
        wait.tolist(), waits_for.tolist(), former.tolist(), np.broadcast_to(new, len(task)).tolist(), strict=True,
    )  # fmt: skip
    for thread, begin, duration, code, key, waited, why, was, is_new in slices:
        args = about.get(key)
        if args is None:
            texts = (
                kinds[key[0]], _pick(phases, key[1]), _pick(layer, key[2]), _pick(op, key[3]), _pick(steps, key[4])
            )  # fmt: skip
            args = about[key] = _args(texts)
        if waited > 0:
            args += f',"wait_us":{_us(waited)}'
            if key[0] == 0:
                reason = WAITING_FOR.get(Cause(why), "")
                yield _slice(process, thread, begin - waited, waited, json.dumps(f"wait: {reason}"), '"wait"', "")
        if is_new:
            args += ',"inserted":true'
        elif was not in (-1, duration):
            args += f',"before_us":{_us(was)}'
        title = name[code][:-1] + INSERTED + '"' if is_new else name[code]
        yield _slice(process, thread, begin, duration, title, kinds[key[0]], args)


def _waits_for(timeline: Timeline) -> np.ndarray:
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
        np.where(on_device, np.asarray(trace[ours], np.int64)[rows], np.asarray(trace[theirs], np.int64)[rows])
        for ours, theirs in (("device", "pid"), ("stream", "tid"))
    ]
    keys = np.stack([np.asarray(trace["rank"], np.int64)[rows], on_device.astype(np.int64), *places])
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


def _texts(trace: Trace, column: str) -> list[str]:
    """Return the texts of a column as JSON, the one for unknown (-1) last."""
    return [*(json.dumps(text) for text in trace.text(column)), ""]


def _pick(texts: Sequence[str], code: int) -> str:
    return texts[code] if code >= 0 else ""


def _args(texts: Sequence[Any]) -> str:
    names = ("kind", "phase", "layer", "op", "step")
    return "".join(f',"{name}":{text}' for name, text in zip(names, texts, strict=True) if text)


def _slice(process: int, thread: int, begin: int, duration: int, name: str, category: str, args: str) -> str:
    return (
        f'{{"ph":"X","pid":{process},"tid":{thread},"ts":{_us(begin)},"dur":{_us(duration)},'
        f'"name":{name},"cat":{category},"args":{{{args[1:]}}}}}'
    )


def _us(ns: int) -> str:
    """Return nanoseconds, never negative, as microseconds without loss."""
    return f"{ns // 1000}.{ns % 1000:03d}"
