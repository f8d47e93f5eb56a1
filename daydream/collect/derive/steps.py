"""Steps: the training iterations of a recording, by CPU time, and their step times.

A row of the host belongs to a step by when it begins; device work belongs to the
step that launched it, or by when it begins where no call was recorded at all. A step
completes when the last of its work ends, and its step time runs from the completion of
the step before: the CPU's own range says little where the CPU runs ahead of the device.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from daydream.collect.derive.captures import in_capture
from daydream.collect.derive.launches import is_device_alone
from daydream.collect.derive.nesting import STEP_MARKER
from daydream.collect.derive.numbered_ranges import DETAILS, find_numbered_ranges
from daydream.collect.derive.recording import PORTION, Recording
from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS, UNKNOWN

EXECUTE = regex(r"^Method::execute$")  # ExecuTorch: a run of the program
OPTIMIZER_STEP = regex(r"^Optimizer\.step#(.*)\.step$|^Optimizer\.step#")
BACKWARD_NODE = regex(r"^autograd::engine::evaluate_function|^[A-Z]\w*Backward\d*$|AccumulateGrad$")
NO_PREDECESSOR = "no step before it in the window, so its step time is unknown"
WORK_LOST = "much of the device work it launched was not recorded"
LOST_BEFORE = "the end of the step before it was not recorded"
MOST_LOST = 0.1  # of a step's launches; memsets and the odd kernel go unrecorded in complete traces too
LAUNCH = regex(r"Launch(Cooperative)?Kernel|ModuleLaunch|GraphLaunch|ExtLaunch")
SYNCHRONIZE = regex(r"Synchronize")
LAUNCHED_BEFORE = "device work launched before the window runs in it"

Ranges = list[tuple[str, int, int]]


def find_steps(recording: Recording, step_marker: str | None, steps: str | None) -> tuple[Ranges, str]:
    """Return (name, start_ns, end_ns) of the steps in CPU time, and where they come from.

    Sources, in order: ranges whose name `step_marker` (a regular expression) finds;
    `ProfilerStep#`; `Optimizer.step#`; `Method::execute`; ranges that are steps by their own
    names (`step 12`); the period of the launch sequence. `steps="auto"` takes the period at once.
    """
    if steps not in (None, "auto"):
        raise TraceError(f"unknown way to find steps: {steps!r}; only 'auto' is known")
    if step_marker is not None:
        try:
            pattern = re.compile(step_marker)
        except re.error as error:
            raise TraceError(
                f"the step marker {step_marker!r} is not a regular expression ({error})"
            ) from None
        markers = _markers(recording, pattern)
        if not len(markers):
            raise TraceError(
                f"no annotation matches the step marker {step_marker!r}. {_annotations(recording)}"
            )
        return _marked(recording, markers), f"ranges that match {step_marker!r}"
    if steps is None:
        markers = _markers(recording, STEP_MARKER)
        if len(markers):
            return _marked(recording, markers), "ProfilerStep# ranges"
        markers = _markers(recording, OPTIMIZER_STEP)
        if len(markers):
            return _between_optimizers(recording, markers)
        markers = _markers(recording, EXECUTE)
        if len(markers):
            runs = [(start, end) for _, start, end in _marked(recording, markers)]
            return [(f"run {number}", *run) for number, run in enumerate(runs)], "runs of Method::execute"
        markers = find_numbered_ranges(recording)
        if len(markers):
            return _marked(recording, markers), f"ranges such as {_first_name(recording, markers)!r}"
    return _by_period(recording)


def _by_period(recording: Recording) -> tuple[Ranges, str]:
    from daydream.collect.derive.periods import find_steps_by_period

    ranges = find_steps_by_period(recording)
    if not ranges:
        return [("whole recording", *_window(recording))], "the whole recording: no markers, no period"
    if len(ranges) == 1:
        return [("pass", *ranges[0])], "one pass, whose layers repeat (auto)"
    named = [(f"period {index}", start, end) for index, (start, end) in enumerate(ranges)]
    return named, "period of the launch sequence (auto)"


def finish_ranges(recording: Recording) -> None:
    """Lengthen an optimizer's range that the end of the recording cut to nothing to the end of its thread."""
    start, duration, threads = recording["start_ns"], recording["duration_ns"], recording.threads
    cut = np.flatnonzero(recording.named(OPTIMIZER_STEP, "annotation") & (duration == 0))
    for row in cut.tolist():
        rows = np.flatnonzero((threads == threads[row]) & (start >= start[row]))
        same = rows[recording["name"][rows] == recording["name"][row]]
        if len(same) > 1 or len(rows) == 1:
            continue
        end = int((start[rows] + duration[rows]).max())
        recording.set_numbers("duration_ns", np.array([row]), np.array([end - int(start[row])]))
        recording.note(
            f"The last {recording.texts_of('name', [row])[0]} was cut off; it is assumed to last to the end."
        )


def _markers(recording: Recording, pattern: re.Pattern[str]) -> np.ndarray:
    """Return the annotation rows a pattern finds, in order, those of the busiest thread only."""
    rows = np.flatnonzero(recording.named(pattern, "annotation"))
    if not len(rows):
        return rows
    threads = recording.threads[rows]
    busiest = Counter(threads.tolist()).most_common(1)[0][0]
    rows = rows[threads == busiest]
    rows = rows[np.argsort(recording["start_ns"][rows], kind="stable")]
    end = recording["start_ns"][rows] + recording["duration_ns"][rows]
    inside = np.zeros(len(rows), bool)  # a marker inside another one begins no step of its own
    inside[1:] = end[1:] <= np.maximum.accumulate(end)[:-1]
    inside[1:] &= recording["start_ns"][rows[1:]] < np.maximum.accumulate(end)[:-1]
    return np.asarray(rows[~inside])


def _marked(recording: Recording, markers: np.ndarray) -> Ranges:
    start = recording["start_ns"][markers].tolist()
    last = start[-1] + int(recording["duration_ns"][markers[-1]])
    names = [recording.text("name")[code] for code in recording["name"][markers].tolist()]
    return list(zip(names, start, [*start[1:], last], strict=True))


def _first_name(recording: Recording, markers: np.ndarray) -> str:
    """Return the name of the first marker, cut where an engine goes into detail."""
    return DETAILS.sub("", recording.text("name")[recording["name"][markers[0]]]).strip()


def _between_optimizers(recording: Recording, markers: np.ndarray) -> tuple[Ranges, str]:
    """Steps that end with an optimizer.

    Of several optimizers the one that runs least often counts, of equals the last; calls
    without a backward pass between them belong to one step.
    """
    codes = recording["name"][markers]
    counts = Counter(codes.tolist())  # in order of first appearance
    last = {code: index for index, code in enumerate(codes.tolist())}
    code = min(counts, key=lambda code: (counts[code], -last[code]))
    markers = markers[codes == code]
    start = recording["start_ns"][markers]
    end = start + recording["duration_ns"][markers]
    nodes = np.sort(recording["start_ns"][recording.named(BACKWARD_NODE, "operator")])
    if len(nodes):
        seen = np.searchsorted(nodes, start)
        alone = np.append(seen[1:] > seen[:-1], True)
        end = end[alone]
    first, _ = _window(recording)
    begins = [first, *(end[:-1] + 1).tolist()]
    ranges = [
        (f"iteration {index}", begin, stop)
        for index, (begin, stop) in enumerate(zip(begins, end.tolist(), strict=True))
    ]
    return ranges, f"ends of {recording.text('name')[code]}"


def _window(recording: Recording) -> tuple[int, int]:
    host = recording.is_kind("operator", "annotation", "runtime")
    rows = host if host.any() else np.ones(len(recording), bool)
    start, duration = recording["start_ns"], recording["duration_ns"]
    first, last = [], []
    for begin in range(0, len(rows), PORTION):  # in portions: times are wide
        part = begin + np.flatnonzero(rows[begin : begin + PORTION])
        if len(part):
            first.append(int(start[part].min()))
            last.append(int((start[part] + duration[part]).max()))
    return min(first), max(last)


def _annotations(recording: Recording) -> str:
    codes = recording["name"][recording.is_kind("annotation")].tolist()
    common = [recording.text("name")[code] for code, _ in Counter(codes).most_common(5)]
    return (
        "This file's annotations: " + ", ".join(repr(name) for name in common) if common else "It has none."
    )


def assign_steps(recording: Recording, ranges: Ranges, launch: np.ndarray) -> tuple[np.ndarray, Ranges]:
    """Return each row's step, and the ranges that are steps: those with an operator or a launch in them."""
    start = recording["start_ns"]
    begins = np.array([begin for _, begin, _ in ranges], np.int64)
    ends = np.array([end for _, _, end in ranges], np.int64)
    step = (np.searchsorted(begins, start, side="right") - 1).astype(np.int32)
    # A range ends before the next begins; the last one holds a row that begins just as it ends.
    step[(step >= 0) & (start > ends[step])] = UNKNOWN
    # The profiler's own closing synchronize begins there too, and is no work of the step.
    closing = np.flatnonzero(recording.named(SYNCHRONIZE) & (step >= 0))
    step[closing[start[closing] == ends[step[closing]]]] = UNKNOWN
    host = recording.is_kind("operator", "annotation", "runtime", "module")
    alone = recording.is_kind(*DEVICE_KINDS) if is_device_alone(recording) else np.zeros(len(step), bool)
    step[~((host & _at_work(recording, launch)) | alone)] = UNKNOWN

    launches = alone
    launches[launch[launch >= 0]] = True
    busy = np.zeros(len(ranges) + 1, bool)
    busy[step[(recording.is_kind("operator") | launches) & (step >= 0)]] = True
    number = np.append(np.where(busy[:-1], np.cumsum(busy[:-1]) - 1, UNKNOWN), UNKNOWN).astype(np.int32)
    step = number[step]
    linked = launch >= 0
    step[linked] = step[launch[linked]]
    return step, [chosen for chosen, is_busy in zip(ranges, busy[:-1], strict=True) if is_busy]


def _lost_work(recording: Recording, step: np.ndarray, launch: np.ndarray, count: int) -> np.ndarray:
    """Return which steps miss much of the device work they launched, as where a recording was cut off."""
    calls = recording.named(LAUNCH, "runtime") & (step >= 0) & ~in_capture(recording)
    linked = np.zeros(len(step), bool)
    linked[launch[launch >= 0]] = True
    if not linked.any():  # a trace of the CPU alone
        return np.zeros(count, bool)
    launched = np.bincount(step[calls], minlength=count)
    lost = np.bincount(step[calls & ~linked], minlength=count)
    return np.asarray(lost > MOST_LOST * launched)


def _at_work(recording: Recording, launch: np.ndarray) -> np.ndarray:
    """Return the rows of threads that hold operators or launch device work (not watchdogs and monitors)."""
    threads = recording.threads
    working = np.zeros(int(threads.max(initial=0)) + 1, bool)
    working[threads[recording.is_kind("operator")]] = True
    working[threads[launch[launch >= 0]]] = True
    if not working.any():
        return np.ones(len(recording), bool)
    return np.asarray(working[threads])


def measure_steps(
    recording: Recording, ranges: Ranges, step: np.ndarray, launch: np.ndarray
) -> list[dict[str, Any]]:
    """Return the metadata of the steps: their ranges, completions and measured step times."""
    device = recording.is_kind(*DEVICE_KINDS)
    counts = (device | recording.is_kind("operator", "runtime")) & (step >= 0)
    stops = np.array([stop for _, _, stop in ranges], np.int64)
    completion = np.array([begin for _, begin, _ in ranges], np.int64)
    # Where CPUs alone work, their operators may go on behind the range, as a device's do (XLA's thread pool).
    whole = device if device.any() else recording.is_kind("operator")
    for portion in range(0, len(recording), PORTION):  # in portions: times are wide
        rows = portion + np.flatnonzero(counts[portion : portion + PORTION])
        end = recording["start_ns"][rows] + recording["duration_ns"][rows]
        limited = np.where(whole[rows], end, np.minimum(end, stops[step[rows]]))
        np.maximum.at(completion, step[rows], limited)
    completion = np.maximum.accumulate(completion)  # a step is not done before the one before it
    orphans = bool((device & (launch < 0)).any()) and not is_device_alone(recording)
    lost = _lost_work(recording, step, launch, len(ranges))
    rank = int(recording.metadata.get("rank", 0))

    steps = []
    for index, (name, begin, stop) in enumerate(ranges):
        before = int(completion[index - 1]) if index else begin
        why_not = None
        if index == 0 and len(ranges) > 1:
            why_not = NO_PREDECESSOR
        elif index == 0 and orphans:
            why_not = LAUNCHED_BEFORE
        elif lost[index]:
            why_not = WORK_LOST
        elif index and lost[index - 1]:
            why_not = LOST_BEFORE
        steps.append({
            "name": name, "rank": rank, "start_ns": begin, "end_ns": stop,
            "completion_ns": int(completion[index]),
            "measured_ns": int(completion[index]) - before if index or len(ranges) == 1 else None,
            "covered": why_not is None, "why_not": why_not,
        })  # fmt: skip
    return steps
