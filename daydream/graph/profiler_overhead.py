"""The graph as it would be without a profiler: what recording cost is taken out, event by event.

`daydream collect` writes the typical cost into its traces, with what its hooks took; up to November 2026 it
measured the cost in the process that it recorded. A trace of `torch.profiler` alone does not tell.

Most of an event's overhead lies outside the event: the profiler notes the inputs before it
takes the start time, and files the event away after it took the end time. So the overhead of
an operator is in the time of what encloses it or comes before it, and that is where it is
taken from. What a piece of time is too short for, since overheads vary and the subtracted one is a
mean, is taken from the pieces that follow on the thread. Waits are not touched: they come
out of the simulation.

The cost per event was measured with small programs, on another machine as a rule. A real script's caches
are colder, and the machine ran at another speed: so the cost is scaled by how long the *heads* of operators
are in the trace, compared with the same heads in the measurement. The recorded unprofiled step time is not
looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from daydream.arrays import combinations, unique
from daydream.collect.derive.quality import (
    CLASSES,
    TYPICAL,
    heads,
    inputs_of,
    recorded_events,
    recorded_ranges,
)
from daydream.graph.graph import Graph
from daydream.graph.tables import CPU, step_rank
from daydream.trace.trace import Trace

VENDORS = (None, "cuda", "rocm", "xpu")  # whose devices torch.profiler records itself
PLACES = ("rank", "pid", "tid")
SHORT_HEAD_NS = 3_000  # in a longer one other things happen than recording
# Times the typical cost: heads of an H200's recordings are up to 4 times as long as usual. In some old public
# traces they are 12 times as long, by what is not known.
LARGEST_SCALE = 4.0


def cost_of_recording(trace: Trace) -> Mapping[str, Any] | None:
    """Return what recording cost an event, in ns; None where nothing is known of it.

    The typical cost is for traces of torch.profiler with work of a device: there the CPU's time may be
    hidden, and show after a change. What another profiler costs is not known.
    """
    metadata = trace.metadata
    by_torch_profiler = (
        metadata.get("profiler") is None
        and "nsys" not in (metadata.get("versions") or {})
        and metadata.get("vendor") in VENDORS
        and "collected" not in metadata
        and trace.is_kind("operator").any()
        and trace.is_kind("kernel").any()
    )
    return metadata.get("profiler_cost") or (TYPICAL if by_torch_profiler else None)


def overhead_scale(trace: Trace, cost: Mapping[str, Any]) -> dict[str, float]:
    """Return by class how many times as much recording cost in a trace as when its cost was measured.

    From heads that both hold, weighted as in the trace. A class that shares none with the
    measurement has the factor of all classes together, 1 if there is none at all. A typical cost, of another
    machine, is scaled by `LARGEST_SCALE` at most.
    """
    most = inf if trace.metadata.get("profiler_cost") else LARGEST_SCALE
    measured = {
        (group, outer, inner): mean
        for group, outer, inner, _, mean in cost["heads"]
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


def without_profiler(graph: Graph) -> Graph:
    """Return an unedited graph without the time that recording took, a copy where that is known."""
    trace = graph.recorded
    cost = cost_of_recording(trace)
    if cost is None:
        return graph
    rows, thread, *overheads = _overheads(trace, cost)
    thread_of_row = np.full(len(trace), -1, np.int64)
    thread_of_row[rows] = thread[: len(rows)]
    tasks = np.flatnonzero(graph.alive & (graph.kind == CPU) & (graph.row >= 0))
    thread_of_task = thread_of_row[graph.row[tasks]]
    duration = graph.duration_ns.copy()
    gap = graph.gap_ns.copy()
    for number in unique(thread):
        lanes = unique(graph.lane[tasks[thread_of_task == number]])
        on_lanes = tasks[np.isin(graph.lane[tasks], lanes)]
        if not len(on_lanes):
            continue
        on_lanes = on_lanes[np.lexsort((graph.order[on_lanes], graph.measured_start_ns[on_lanes]))]
        start = graph.measured_start_ns[on_lanes]
        # A thread's time as slots: a task's duration, its gap, the next task's duration, ...
        slots = np.stack([duration[on_lanes], gap[on_lanes]], axis=1).reshape(-1)
        at, overhead, before = (values[thread == number] for values in overheads)
        task = (
            np.where(before, np.searchsorted(start, at), np.searchsorted(start, at, side="right"))
            - 1
        )
        late = at - (start + duration[on_lanes])[task]
        there = task >= 0
        excess = np.zeros(len(slots), np.int64)
        np.add.at(
            excess, (2 * task + np.where(before, late > 0, late >= 0))[there], overhead[there]
        )
        # What a slot is too short for is carried on to those behind it.
        excess -= slots
        total = np.cumsum(excess)
        carried = total - np.minimum(np.minimum.accumulate(total), 0)
        left = np.maximum(-excess - np.append(0, carried[:-1]), 0)
        duration[on_lanes], gap[on_lanes] = left.reshape(-1, 2).T
    return graph.retimed(duration, gap)


def _overheads(trace: Trace, cost: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Return the rows of events, then each overhead's thread, by number, time, ns, and whether it is before.

    One before its time is in what runs just before it, the others are in what runs from it on. The overheads
    of the rows come first, in their order.
    """
    scale = overhead_scale(trace, cost)
    rows, of_class = recorded_events(trace)
    of_events = [(scale[name], cost["event_ns"].get(name, 0)) for name in CLASSES]
    factor, per_event = np.array(of_events, float)[of_class].T
    whole = (per_event + cost["input_ns"] * inputs_of(trace, rows)) * factor
    inside = np.minimum(cost["inside_ns"] * factor, whole)
    for kind, ranges in recorded_ranges(trace).items():
        rows = np.append(rows, ranges)
        whole = np.append(whole, np.full(len(ranges), cost[f"{kind}_ns"] * scale["forward"]))
        inside = np.append(inside, np.zeros(len(ranges)))
    before = (whole - inside) * cost["before_share"]
    begin = trace["start_ns"][rows]
    end = begin + trace["duration_ns"][rows]
    times = [begin, begin, end]
    overheads = [before, inside, whole - inside - before]
    places = [np.maximum(trace[name][rows], 0) for name in PLACES]
    memory = trace.memory
    if memory is not None:  # each allocation and each free is an event, too
        of_memory = (np.maximum(memory[name], 0) for name in PLACES)
        places = [np.append(*pair) for pair in zip(places, of_memory, strict=True)]
        times.append(memory["time_ns"])
        overheads.append(np.full(len(memory), cost.get("memory_ns", 0) * scale["forward"]))
    number, _ = combinations(places)
    own = number[: len(rows)]
    threads = [own, own, own, number[len(rows) :]][: len(times)]
    # What our own hooks did at the ends of steps, on the thread of each rank's forward pass.
    ends = defaultdict(list)
    for step in trace.metadata["steps"]:
        ends[step_rank(step)].append(step["end_ns"])
    forward = trace["phase"][rows] == trace.code("phase", "forward")
    for rank in sorted(ends):
        mine = own[forward & (np.maximum(trace["rank"][rows], 0) == rank)]
        if len(mine):
            times.append(np.array(ends[rank], np.int64))
            overheads.append(np.full(len(ends[rank]), int(cost.get("step_hooks_ns", 0))))
            threads.append(np.full(len(ends[rank]), np.bincount(mine).argmax()))
    at, overhead, thread = map(np.concatenate, (times, overheads, threads))
    return rows, thread, at, np.rint(overhead).astype(np.int64), np.arange(len(at)) < len(rows)
