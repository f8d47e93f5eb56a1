"""The graph as it would be without a profiler: what recording cost is taken out, event by event.

Most of an event's cost lies outside the event: the profiler notes the inputs before it
takes the start time, and files the event away after it took the end time. So the cost of
an operator is in the time of what encloses it or comes before it, and that is where it is
taken from. What a piece of time cannot give, since costs vary and the subtracted one is a
mean, is taken from the pieces that follow on the thread. Waits are not touched: they come
out of the simulation.

The cost per event was measured with small programs, on another machine as a rule
(`daydream.graph.recording_cost`). A real script's caches are colder, and the machine ran at
another speed: so the cost is scaled by how long the *heads* of operators are in the trace,
compared with the same heads in the measurement. The recorded unprofiled step time is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from daydream.arrays import unique
from daydream.errors import GraphError
from daydream.graph.alike import share_plans
from daydream.graph.graph import Graph
from daydream.graph.recording_cost import cost_of_recording, told_cost
from daydream.graph.tables import CPU
from daydream.trace.trace import Trace

SHORT_HEAD_NS = 3_000  # in a longer one other things happen than recording
# Times the typical cost: heads of an H200's recordings are up to 4 times as long as usual. In some old public
# traces they are 12 times as long, by what is not known.
DEAREST = 4.0


def without_profiler(graph: Graph) -> Graph:
    """Return a copy of an untouched graph without the time that recording took.

    Raises `GraphError` if nothing is known of what recording cost.
    """
    trace = graph.trace
    if trace is None or cost_of_recording(trace) is None:
        raise GraphError(
            "this trace does not say what recording cost; record it again with `daydream collect`"
        )
    from daydream.graph.builder import distinct_rows

    corrected = graph.copy()
    rows, *costs = event_costs(trace)
    begins = np.asarray(trace["start_ns"], np.int64)[rows]
    ends = begins + trace["duration_ns"][rows]
    columns = corrected.columns
    memory_at, memory_cost, memory_columns = _memory_costs(trace)
    place = [
        np.append(np.maximum(trace[name][rows], 0), memory_columns[name]) for name in ("rank", "pid", "tid")
    ]
    thread, threads = distinct_rows(place)
    thread, thread_of_memory = thread[: len(rows)], thread[len(rows) :]
    tasks = np.flatnonzero(corrected.alive & (columns["kind"] == CPU) & (columns["row"] >= 0))
    thread_of_row = np.full(len(trace), -1, np.int64)
    thread_of_row[rows] = thread
    of_task = thread_of_row[columns["row"][tasks]]
    hooks = _step_hooks(trace, rows, thread)
    for number in range(len(threads)):
        lanes = unique(columns["lane"][tasks[of_task == number]])
        on_lane = tasks[np.isin(columns["lane"][tasks], lanes)]
        if len(on_lane):
            mine = thread == number
            owed = [(begins[mine], costs[0][mine], "left"), (begins[mine], costs[1][mine], "right")]
            owed.append((ends[mine], costs[2][mine], "right"))
            held = thread_of_memory == number
            owed.append((memory_at[held], memory_cost[held], "right"))
            owed += [(at, cost, "right") for which, at, cost in hooks if which == number]
            _take_out(corrected, on_lane, owed)
    corrected.touch()
    share_plans(corrected, graph)
    return corrected


def taken_out(graph: Graph, corrected: Graph) -> float:
    """Return how much of the recorded time of the CPU's tasks a corrected graph is without, 0 to 1."""
    mine = graph.alive & (graph.columns["kind"] == CPU) & (graph.columns["row"] >= 0)
    before, after = (
        sum(int(each.columns[name][mine].sum()) for name in ("duration_ns", "gap_ns"))
        for each in (graph, corrected)
    )
    return 1 - after / before if before else 0.0


def event_costs(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (rows, ns before their start, ns inside, ns after their end) of all recorded events."""
    from daydream.collect.live.event_cost import CLASSES, inputs_of, recorded_events, recorded_ranges

    cost = _known(trace)
    scale = dearness(trace)
    rows, of_class = recorded_events(trace)
    per_class = np.array([cost["event_ns"].get(name, 0) for name in CLASSES], float)
    factor = np.array([scale[name] for name in CLASSES], float)
    whole = (per_class[of_class] + cost["input_ns"] * inputs_of(trace, rows)) * factor[of_class]
    inside = np.minimum(cost["inside_ns"] * factor[of_class], whole)
    for kind, ranges in recorded_ranges(trace).items():
        rows = np.append(rows, ranges)
        whole = np.append(whole, np.full(len(ranges), cost[f"{kind}_ns"] * scale["forward"]))
        inside = np.append(inside, np.zeros(len(ranges)))
    before = (whole - inside) * cost["before_share"]
    after = whole - inside - before
    return rows, *(np.rint(part).astype(np.int64) for part in (before, inside, after))


def dearness(trace: Trace, cost: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Return by class how much dearer recording was in a trace than when its cost was measured.

    From heads that both hold, weighted as in the trace. A class that shares none with the
    measurement has the factor of all classes together, 1 if there is none at all. A typical cost, of another
    machine, is scaled by `DEAREST` at most. `cost` is the measurement, by default what the trace is known by.
    """
    most = inf if told_cost(trace) is not None else DEAREST
    from daydream.collect.live.event_cost import CLASSES, heads

    measured = {
        (group, outer, inner): mean
        for group, outer, inner, _, mean in (cost or _known(trace))["heads"]
        if mean <= SHORT_HEAD_NS
    }
    here = {key: value for key, value in heads(trace).items() if key in measured}
    scale = {}
    for name in CLASSES:
        keys = [key for key in here if key[0] == name] or list(here)
        then = sum(here[key][0] * measured[key] for key in keys)
        now = sum(here[key][0] * here[key][1] for key in keys)
        scale[name] = min(now / then, most) if then else 1.0
    return scale


def _known(trace: Trace) -> Mapping[str, Any]:
    found = cost_of_recording(trace)
    assert found is not None  # noqa: S101 - asked before
    return found


def _memory_costs(trace: Trace) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return when allocations and frees were recorded, what each cost in ns, and on which thread."""
    memory, none = trace.memory, np.empty(0, np.int64)
    if memory is None:
        return none, none, dict.fromkeys(("rank", "pid", "tid"), none)
    cost = _known(trace).get("memory_ns", 0) * dearness(trace)["forward"]
    each = np.full(len(memory), round(cost), np.int64)
    return memory["time_ns"], each, {name: np.maximum(memory[name], 0) for name in ("rank", "pid", "tid")}


def _step_hooks(
    trace: Trace, rows: np.ndarray, thread: np.ndarray
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return (thread, times, ns) of what our own hooks did at the ends of steps, by rank."""
    cost = int(_known(trace).get("step_hooks_ns", 0))
    forward = trace["phase"][rows] == trace.code("phase", "forward")
    found = []
    for rank in sorted({step.get("rank", 0) for step in trace.metadata["steps"]}):
        mine = np.flatnonzero(forward & (np.maximum(trace["rank"][rows], 0) == rank))
        ends = [step["end_ns"] for step in trace.metadata["steps"] if step.get("rank", 0) == rank]
        if len(mine):
            which = int(np.bincount(thread[mine]).argmax())
            found.append((which, np.array(ends, np.int64), np.full(len(ends), cost, np.int64)))
    return found


def _take_out(graph: Graph, tasks: np.ndarray, owed: list[tuple[np.ndarray, np.ndarray, str]]) -> None:
    """Subtract costs, given as (times, ns, side), from the durations and gaps of one thread's tasks.

    A cost on the left is in what runs just before its time, one on the right in what runs from it on.
    """
    columns = graph.columns
    tasks = tasks[np.lexsort((columns["order"][tasks], columns["measured_start_ns"][tasks]))]
    start = columns["measured_start_ns"][tasks]
    end = start + columns["duration_ns"][tasks]
    # A thread's time as slots: a task's duration, its gap, the next task's duration, ...
    slots = np.stack([columns["duration_ns"][tasks], columns["gap_ns"][tasks]], axis=1).reshape(-1)
    owes = np.zeros(len(slots), np.int64)
    for at, cost, side in owed:
        left = side == "left"
        task = np.searchsorted(start, at, side="left" if left else "right") - 1
        there = task >= 0
        in_gap = at > end[task] if left else at >= end[task]
        np.add.at(owes, (2 * task + in_gap)[there], cost[there])
    columns.own("duration_ns")[tasks], columns.own("gap_ns")[tasks] = _paid(slots, owes).reshape(-1, 2).T


def _paid(slots: np.ndarray, owes: np.ndarray) -> np.ndarray:
    """Return what is left of the slots when each pays what it owes; what it lacks, the next ones pay."""
    balance = np.cumsum(owes - slots)
    debt = balance - np.minimum(np.minimum.accumulate(balance), 0)  # still owes behind each slot
    brought = np.append(0, debt[:-1])
    return np.maximum(slots - owes - brought, 0)
