"""The one builder of traces that are written down row by row, as text or by functions; times in microseconds.

`trace` makes a trace of the rows: who encloses whom is told by the times, who launched what by the
correlation, and the step of a row by where it (or its launch) begins. `kineto` makes the file that torch's
profiler would have written.
"""

import gzip
import json
import re
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from daydream import Trace, simulate
from daydream.trace.schema import DEVICE_KINDS, FIELDS, HOST_KINDS

Row = dict[str, Any]
PID = 100
LEAST_MADE = 1_000_000  # the first correlation that no test gives
NO_COST = {
    "event_ns": {},
    "input_ns": 0,
    "module_ns": 0,
    "annotation_ns": 0,
    "inside_ns": 0,
    "before_share": 0.5,
    "heads": [],
    "step_hooks_ns": 0,
}
"""Rows written by hand cost nothing to record."""


KINDS = {"op": "operator", "note": "annotation", "call": "runtime"}  # others are what they are called
PAIR = r' (\w+)=((?:"[^"]*"|\S)+)'  # blanks stand in quotes
ROW, LAUNCH = (rf"(.+?)((?: -?[\d.]+){{{count}}})((?: \w+=.*)?)" for count in (2, 3))
IDS = ("correlation", "External_id", "Sequence_number")


def rows(text, *, times=1, every=0, ids=0, **more):
    """Return the rows of lines `KIND NAME BEGIN END COLUMN=VALUE ...`, so many `times`, each `every` us.

    `launch NAME AT BEGIN END` is a kernel and the call that launches it. Ids are `ids` more each time.
    """
    found = []
    for number in range(times):
        for line in filter(None, map(str.strip, text.splitlines())):
            kind, rest = " ".join(line.split()).split(" ", 1)
            name, when, given = re.fullmatch(LAUNCH if kind == "launch" else ROW, rest).groups()
            pairs = re.findall(PAIR, given)
            columns = more | {key: _value(key, value, ids * number) for key, value in pairs}
            at = [every * number + float(each) for each in when.split()]
            if kind == "launch":
                found += launched(name, *at, **columns)
            elif kind in DEVICE_KINDS:
                found.append(kernel(name, *at, kind=kind, **columns))
            else:
                usual = {"pid": PID, "tid": 1} | ({"correlation": -1} if kind == "call" else {})
                found.append(row(KINDS.get(kind, kind), name, *at, **usual | columns))
    return found


def _value(key, text, ids):
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value + ids if key in IDS else value


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


def collective(start, end, nbytes=4096, *, operation="all_reduce", **more):
    """One rank's kernel of a collective."""
    of = {"kind": "collective", "collective": operation, "bytes": nbytes, **more}
    return kernel(f"nccl_{operation}", start, end, **of)


def sync_row(kind, start, correlation, **columns):
    return row("sync", kind, start, start, correlation=correlation, **columns)


def trace(*given, steps=(), **metadata):
    """Return the trace of these rows, with steps between these borders, all but the first covered."""
    rows = _numbered(given)
    rows.sort(key=lambda each: (each.get("rank") or 0, each["start_ns"], -each["duration_ns"]))
    _find_parents(rows)
    borders = [round(1000 * at) for at in steps]
    ends = _completions(rows, borders)
    columns, texts = columns_of(rows)
    listed = [
        {
            "name": f"step {number}",
            "rank": 0,
            "start_ns": begin,
            "end_ns": end,
            "covered": number > 0,
            "measured_ns": ends[number] - (ends[number - 1] if number else begin),
        }
        for number, (begin, end) in enumerate(pairwise(borders))
    ]
    known = {"profiler_cost": NO_COST} if "profiler" not in metadata else {}
    return Trace(columns, texts, {"steps": listed, "vendor": "cuda", **known, **metadata})


def repeated(text, length, *, times=4, ids=10, **metadata):
    """Return a trace of so many steps of this length in us, each with these rows."""
    steps = tuple(length * number for number in range(times + 1))
    return trace(rows(text, times=times, every=length, ids=ids), steps=steps, **metadata)


def columns_of(rows):
    """Return the columns of these rows, and the texts of those that hold codes."""
    columns = {}
    texts = {}
    for name in {name for each in rows for name in each}:
        field = FIELDS[name]
        values = [each.get(name) for each in rows]
        if field.type == "text":
            known = sorted({value for value in values if value is not None})
            columns[name] = np.array([known.index(v) if v is not None else -1 for v in values], np.int32)
            texts[name] = known
        else:
            columns[name] = np.array([field.null if value is None else value for value in values], np.int64)
    return columns, texts


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
    if isinstance(given, str):
        return rows(given)
    return [given] if isinstance(given, dict) else [each for one in given for each in _flat(one)]


def _numbered(given):
    """Return copies of the rows in which launches have numbers."""
    found, made = [dict(each) for each in _flat(given)], {}
    for each in found:
        if type(each.get("correlation")) is object:
            each["correlation"] = made.setdefault(each["correlation"], LEAST_MADE + len(made))
    return found


# -- as torch's profiler writes it ---------------------------------------------------------------------

CATEGORIES = {
    "operator": "cpu_op",
    "annotation": "user_annotation",
    "runtime": "cuda_runtime",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "collective": "kernel",
    "module": "python_function",
    "frame": "python_function",
    "sync": "cuda_sync",
}


def kineto(*given, **header):
    """Return the document of these rows; what is no row, but an event already, stays as it is."""
    events = [
        _event(each) if isinstance(each, dict) and "start_ns" in each else each for each in _numbered(given)
    ]
    about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Test GPU", "numSms": 10}]}
    return {**about, **header, "traceEvents": events}


def _event(of):
    """Return the event of a row; blanks of its arguments' names are underscores in the row."""
    of = dict(of)
    kind, name, start, duration = (of.pop(key) for key in ("kind", "name", "start_ns", "duration_ns"))
    of.pop("rank", None)
    place = {"pid": of.pop("pid", 0), "tid": of.pop("tid", of.get("stream"))}
    name = f"nn.Module: {name}" if kind == "module" else name
    kept = "wait_on", "stream_id"
    told = {key if key.startswith(kept) else key.replace("_", " "): value for key, value in of.items()}
    if told.get("correlation") == -1:
        del told["correlation"]
    times = {"ts": start / 1000, "dur": duration / 1000}
    return {"ph": "X", "cat": CATEGORIES.get(kind, kind), "name": name, **place, **times, "args": told}


def write(path, content):
    """Write JSON (or text, or bytes) to a file, gzipped if its name says so."""
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def training(steps=3):
    """Return rows of a training loop with a loader, a forward pass, an autograd thread and an optimizer.

    thread 1 |load|linear|relu|mse_loss|.............|Optimizer.step|
    thread 2                            |node|node|accumulate|
    stream        |gemm|relu|loss|     |dgemm|...          |add|
    """
    node = "autograd::engine::evaluate_function: "
    found = rows(
        f"""
        note enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ 1 51
        op aten::linear 100 150 External_id=1 Sequence_number=1 Fwd_thread_id=0
        op aten::addmm 105 145 External_id=2 Sequence_number=1 Input_Dims=[[64],[8,32],[32,64]]
        call cudaLaunchKernel 110 120 correlation=1 External_id=2
        kernel ampere_sgemm_32x32_tn 130 170 correlation=1 External_id=2 grid=[8,1,1] block=[128,1,1]
        op aten::mse_loss 200 250 External_id=3 Sequence_number=2 Fwd_thread_id=0
        call cudaLaunchKernel 210 220 correlation=2 External_id=3
        kernel reduce_kernel<float> 240 260 correlation=2 External_id=3
        op {node}MseLossBackward0 300 360 tid=2 External_id=4 Sequence_number=2 Fwd_thread_id=1
        op MseLossBackward0 305 355 tid=2 External_id=5 Sequence_number=2 Fwd_thread_id=1
        call cudaLaunchKernel 310 320 tid=2 correlation=3 External_id=5
        kernel mse_backward<float> 330 350 correlation=3 External_id=5
        op {node}AddmmBackward0 400 460 tid=2 External_id=6 Sequence_number=1 Fwd_thread_id=1
        call cudaLaunchKernel 410 420 tid=2 correlation=4 External_id=6
        kernel ampere_sgemm_32x32_nt 430 490 correlation=4 External_id=6
        op {node}torch::autograd::AccumulateGrad 470 490 tid=2 External_id=7
        note Optimizer.step#SGD.step 600 700 External_id=8
        op aten::add_ 610 650 External_id=9
        call cudaLaunchKernel 620 630 correlation=5 External_id=9
        kernel multi_tensor_apply<float> 640 670 correlation=5 External_id=9
        op aten::item 750 780 External_id=10
    """,
        times=steps,
        every=1000,
        ids=100,
    )
    marks = [note(f"ProfilerStep#{step}", 1000 * step, 1000 * step + 999) for step in range(steps)]
    flow = {"cat": "ac2g", "name": "ac2g", "id": 5, "ph": "s", "pid": PID, "tid": 1, "ts": 620}
    name = {"name": "process_name", "ph": "M", "ts": 0, "pid": PID, "tid": 0, "args": {"name": "secret-job"}}
    span = {"ph": "X", "cat": "Trace", "ts": 0, "dur": 9, "pid": "Spans", "tid": "Profiler", "name": "span"}
    return [*marks, *found, flow, name, span]


def _find_parents(rows):
    calls = {
        (each.get("rank", 0), each["correlation"]): number
        for number, each in enumerate(rows)
        if each["kind"] == "runtime"
    }
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


# -- what tests ask of a trace -------------------------------------------------------------------------


def rows_named(trace, name):
    return np.flatnonzero(trace["name"] == trace.code("name", name)).tolist()


def one(trace, column, name):
    """Return the value that the only row of a name has in a column."""
    (row,) = rows_named(trace, name)
    return trace.values(column, [row])[0]


def parent_of(trace, name):
    """Return the name of the row that encloses the only row of a name, or that launched it."""
    (row,) = rows_named(trace, name)
    parent = int(trace["parent"][row])
    return None if parent < 0 else trace.values("name", [parent])[0]


def of_kinds(trace, column, *kinds):
    """Return the values of a column that rows of each name have, for some kinds of rows."""
    found = {}
    lines = np.flatnonzero(trace.is_kind(*kinds))
    for name, value in zip(trace.values("name", lines), trace.values(column, lines), strict=True):
        found.setdefault(name, set()).add(value)
    return found


# Shapes as text: `64x32 32 -` is a matrix, a vector and a number.


def dims(shapes):
    """Return shapes as lists of sizes; what is a list already stays one."""
    if not isinstance(shapes, str):
        return shapes
    return [[] if one == "-" else [int(size) for size in one.split("x")] for one in shapes.split()]


# Small traces that show what each rule is for; times in microseconds.


def full_queue_trace(depth=2, launches=5, *, before=0):
    #  of a queue of two c is taken when a ends (105), d when b ends (206), e when c ends (307)
    #  thread 1  |a 5|b 5|c: wait 95, 5|d: wait 96, 5|e: wait 96, 5|
    #  stream 7      |a 100        |1|b 100       |1|c 100      |1|d 100 ...
    kernels = [(5 + 101 * place, 105 + 101 * place) for place in range(launches)]
    calls = [(0, 5)]
    for place in range(1, launches):
        began = calls[-1][1]
        calls.append((began, 5 + (began if place < depth else kernels[place - depth][1])))
    return trace(
        [call("cudaLaunchKernel", *at, place) for place, at in enumerate(calls) if place >= before],
        [kernel("abcde"[place], *at, place) for place, at in enumerate(kernels)],
    )


def blocked(name, *more, work="a", returned=120):
    #  thread 1  |launch 5|gap 5|name: enters at 10, the device is done at 110, returns at 120|after 5|
    #  stream 7          |a 100 ......................................|
    return trace(
        launched(work, 0, 10, 110),
        call(name, 10, returned, 99),
        op("after", returned, returned + 5),
        *more,
    )


def long_launch_trace():
    #  thread 1  |5|5|5|launch: loads its module 300 long, submits at its end|after 5|
    #  stream 7                                                         |k 10|
    usual = [launched(f"k{n}", 20 * n, 20 * n + 6, 20 * n + 10) for n in range(5)]
    return trace(
        usual,
        """
            call cudaLaunchKernel 100 400 correlation=9
            kernel k 401 411 correlation=9
            op after 400 405
        """,
    )


def waiting_trace(*more):
    #  thread 1  |launch a|record|wait|launch b|      ten times, every 400
    #  stream 7      |a: 10 to 210|
    #  stream 8                     |b: 212 to 232|
    step = """
        launch a 0 10 210
        call cudaEventRecord 6 7 correlation=2
        call cudaStreamWaitEvent 8 9 correlation=3
        launch b 10 212 232 stream=8
    """
    return trace(rows(step, times=10, every=400, ids=10), *more)


def graph_trace(*nodes):
    """Return a trace of one graph launch at 0 with (name, start, end, stream) nodes."""
    return trace(
        call("cudaGraphLaunch", 0, 8, 1),
        [kernel(name, start, end, 1, stream=stream) for name, start, end, stream in nodes],
    )


def ranks_trace(*, skew=0, other="reduce"):
    #  rank 0  stream 7  |a: 10 to 20|reduce: 21 to 91 (70: 50 waiting, 20 transfer)|
    #  rank 1  stream 7  |a: 10 to 70|                        |reduce: 71 to 91     |
    return trace(
        launched("a", 0, 10, 20, rank=0),
        launched("reduce", 6, 21, 91, rank=0, kind="collective"),
        launched("a", 0, 10, 70, rank=1),
        launched(other, 6, 71, 91 + skew, rank=1, kind="collective"),
    )


def backward_trace(steps=1, *more):
    #  thread 1  |forward 10|2|......... 26 .........|2|step 10|
    #  thread 2               |node 14|gap 2|node 10 |
    evaluate = "autograd::engine::evaluate_function: "
    rows = []
    for at in range(0, 100 * steps, 100):
        rows += [
            op("forward", at, at + 10),
            op(evaluate + "Mul", at + 12, at + 26, tid=2),
            op(evaluate + "Add", at + 28, at + 38, tid=2),
            op("step", at + 40, at + 50),
        ]
    return trace(rows, *more)


def latency_trace():
    #  launches of an idle stream start 7, 8, 9, 30 later; of a busy one right behind the task before
    rows = []
    for at, latency in [(0, 7), (100, 8), (200, 9), (300, 30)]:
        first = at + latency
        rows += [
            *launched("first", at, first, first + 40),
            *launched("second", at + 6, first + 42, first + 52),
        ]
    return trace(rows)


def unlaunched_trace():
    #  no calls; a collective waits for a product of another stream, and the next product for it
    #  stream 7  |a 100      |              |c 100: 142 to 242|
    #  stream 8              |b: 102 to 140|                  |b: 244 to 282|
    return trace(
        """
            kernel a 0 100
            kernel b 102 140 stream=8
            kernel c 142 242
            kernel b 244 282 stream=8
        """,
    )
