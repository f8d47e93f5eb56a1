"""Traces small enough to write down, row by row; times in microseconds.

Who encloses whom is told by the times, who launched what by the correlation, and the
step of a row by where it (or its launch) begins.
"""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from daydream import Trace, simulate
from daydream.trace.schema import DEVICE_KINDS, FIELDS, HOST_KINDS

Row = dict[str, Any]
PID = 100
LEAST_MADE = 1_000_000  # the first correlation that no test gives
NO_COST = {
    "event_ns": {}, "input_ns": 0, "module_ns": 0, "annotation_ns": 0, "inside_ns": 0,
    "before_share": 0.5, "heads": [], "step_hooks_ns": 0,
}  # fmt: skip
"""Rows written by hand cost nothing to record."""


def row(kind, name, start, end, **columns):
    times = {"start_ns": round(1000 * start), "duration_ns": round(1000 * (end - start))}
    return {"kind": kind, "name": name, **times, **columns}


def op(name, start, end, *, tid=1, **columns):
    return row("operator", name, start, end, pid=PID, tid=tid, **columns)


def note(name, start, end, *, tid=1, **columns):
    return row("annotation", name, start, end, pid=PID, tid=tid, **columns)


def call(name, start, end, correlation=-1, *, tid=1, **columns):
    return row("runtime", name, start, end, correlation=correlation, pid=PID, tid=tid, **columns)


def kernel(name, start, end, correlation=-1, *, stream=7, **columns):
    columns = {"kind": "kernel", "device": 0, "rank": 0, **columns}
    return row(columns.pop("kind"), name, start, end, correlation=correlation, stream=stream, **columns)


def launched(name, at, start, end, correlation=None, **columns):
    """A kernel and the call of 5 us that launched it at `at`; the trace numbers them unless they are."""
    tid, rank = columns.pop("tid", 1), columns.get("rank", 0)
    correlation = object() if correlation is None else correlation
    launch = call("cudaLaunchKernel", at, at + 5, correlation, tid=tid, rank=rank)
    return [launch, kernel(name, start, end, correlation, **columns)]


def sync_row(kind, start, correlation, **columns):
    return row("sync", kind, start, start, correlation=correlation, **columns)


def trace(*given, steps=(), **metadata):
    """Return the trace of these rows, with steps between these borders, all but the first covered."""
    rows, made = [dict(each) for each in _flat(given)], {}
    for each in rows:
        if type(each.get("correlation")) is object:
            each["correlation"] = made.setdefault(each["correlation"], LEAST_MADE + len(made))
    rows.sort(key=lambda each: (each.get("rank") or 0, each["start_ns"], -each["duration_ns"]))
    _find_parents(rows)
    borders = [round(1000 * at) for at in steps]
    ends = _completions(rows, borders)
    columns, texts = {}, {}
    for name in {name for each in rows for name in each}:
        field = FIELDS[name]
        values = [each.get(name) for each in rows]
        if field.type == "text":
            known = sorted({value for value in values if value is not None})
            columns[name] = np.array([known.index(v) if v is not None else -1 for v in values], np.int32)
            texts[name] = known
        else:
            columns[name] = np.array([field.null if value is None else value for value in values], np.int64)
    listed = [
        {
            "name": f"step {number}", "rank": 0, "start_ns": begin, "end_ns": end, "covered": number > 0,
            "measured_ns": ends[number] - (ends[number - 1] if number else begin),
        }
        for number, (begin, end) in enumerate(pairwise(borders))
    ]  # fmt: skip
    known = {"profiler_cost": NO_COST} if "profiler" not in metadata else {}
    return Trace(columns, texts, {"steps": listed, "vendor": "cuda", **known, **metadata})


def with_steps(found, borders):
    """Give thread 1 of each rank steps between these borders (us), all but the first covered."""
    column, steps = np.full(len(found), -1), []
    for rank, at in borders.items():
        for number, (begin, end) in enumerate((1000 * a, 1000 * b) for a, b in pairwise(at)):
            mine = (found["rank"] == rank) & (found["tid"] == 1)
            column[mine & (found["start_ns"] >= begin) & (found["start_ns"] < end)] = len(steps)
            times = {"start_ns": begin, "end_ns": end, "completion_ns": end, "measured_ns": end - begin}
            steps.append({"name": f"step {number}", "rank": rank, "covered": number > 0, **times})
    found.columns["step"] = column
    found.metadata |= {"steps": steps, "vendor": "cpu"}
    return found


def starts(graph):
    """Return when each task starts, by name; of several with one name, the last."""
    timeline = simulate(graph)
    return dict(zip(timeline.column("name").tolist(), (timeline.start_ns / 1000).tolist(), strict=True))


def total(graph):
    return simulate(graph).makespan_ns / 1000


def _flat(given):
    return [given] if isinstance(given, dict) else [each for one in given for each in _flat(one)]


def _find_parents(rows):
    calls = {(each.get("rank", 0), each["correlation"]): number for number, each in enumerate(rows)
             if each["kind"] == "runtime"}  # fmt: skip
    open_rows = {}
    for number, each in enumerate(rows):
        each["parent"] = -1
        if each["kind"] in DEVICE_KINDS and each["correlation"] >= 0:
            each["parent"] = calls.get((each.get("rank", 0), each["correlation"]), -1)
        elif each["kind"] in HOST_KINDS:
            stack = open_rows.setdefault((each.get("rank", 0), each["tid"]), [])
            while stack and _end(rows[stack[-1]]) <= each["start_ns"]:
                stack.pop()
            each["parent"] = stack[-1] if stack else -1
            stack.append(number)


def _end(each):
    return int(each["start_ns"] + each["duration_ns"])


def _completions(rows, borders):
    """Give every row its step, and return when each step was complete: none before the one before it.

    CPU work counts up to the end of its step's range, as in recordings.
    """
    ends = [0] * max(len(borders) - 1, 0)
    for each in rows:
        launch = rows[each["parent"]] if each["kind"] in DEVICE_KINDS and each["parent"] >= 0 else each
        step = int(np.searchsorted(borders, launch["start_ns"], side="right")) - 1
        each["step"] = step if 0 <= step < len(ends) else None
        if each["step"] is not None and each["kind"] != "sync":
            on_device = each["kind"] in DEVICE_KINDS
            ends[step] = max(ends[step], _end(each) if on_device else min(_end(each), borders[step + 1]))
    return list(accumulate(ends, max))
