"""Captures: calls that a CUDA (or HIP) graph records instead of launching their work.

Between the begin and the end of a stream's capture a launch call puts a node into a graph and nothing on the
device; the work runs when the graph is replayed. Such a call has lost no device work.

Ranges that are steps by their own names: `step 12`, `train_iter_3`, an engine's `execute_model`.

People and inference engines put one range around each step. A number in its name counts
up, or the name says that it is a step. Layers, buckets and phases have numbered ranges,
too; they are told apart by what they are called, and since they hold part of the work only.

Steps: the training iterations of a recording, by CPU time, and their step times.

A row of the host belongs to a step by when it begins; device work belongs to the
step that launched it, or by when it begins where no call was recorded at all. A step
completes when the last of its work ends, and its step time runs from the completion of
the step before: the CPU's own range says little where the CPU runs ahead of the device.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from daydream.arrays import combinations
from daydream.collect.derive.device_work import is_device_alone, read_launches
from daydream.collect.derive.nesting import LAUNCH_CALL, STEP_MARKER
from daydream.collect.derive.phases import BACKWARD_NODE
from daydream.collect.derive.recording import SAID, Recording
from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.schema import DEVICE_KINDS, UNKNOWN

BEGIN = regex(r"StreamBeginCapture")
END = regex(r"StreamEndCapture")


def in_capture(recording: Recording) -> np.ndarray:
    """Return a mask of the rows that begin during a capture, on the thread that began it.

    A capture whose end was not recorded reaches to the end of its thread, one whose begin was not recorded
    from the begin of it.
    """
    inside = np.zeros(len(recording), bool)
    runtime = recording.is_kind("runtime")
    begins = recording.named(BEGIN, "runtime")
    marks = np.flatnonzero(begins | recording.named(END, "runtime"))
    if not len(marks):
        return inside
    threads = recording.threads
    start = recording["start_ns"]
    for thread in np.unique(threads[marks]).tolist():
        mine = marks[threads[marks] == thread]
        mine = mine[np.argsort(start[mine], kind="stable")]
        rows = np.flatnonzero(runtime & (threads == thread))
        before = np.searchsorted(start[mine], start[rows], side="right") - 1
        open_ = np.where(before >= 0, begins[mine][before], ~begins[mine[0]])
        inside[rows[open_]] = True
    return inside


NUMBER = regex(r"\d+")
CAMEL = regex(r"(?<=[a-z])(?=[A-Z])")
DETAILS = regex(r"(?<=[\w ])[\[({].*")
"""What an engine says of a step behind its name: `step[DECODE bs=32]`, `execute_context_1(128)`."""
STEP_WORD = regex(
    r"(?<![a-z])(step|iter|iteration|batch|minibatch|run_batch|execute_(model|new|context|\W*#_context))(?![a-z])"
)
PART_WORD = regex(
    r"(?<![a-z])(optim\w*|opt|adam\w*|sgd|scheduler|lr|forward|fwd|backward|bwd|loss|zero|grad\w*|data\w*"
    r"|load\w*|copy\w*|get|next|fetch|wait\w*|read\w*|prefetch\w*|prepare|h#d|d#h|d#d|all\w*reduce|sync\w*"
    r"|micro\w*|mb|mbs|sub\w*|layer\w*|block\w*|stage\w*|head\w*|expert\w*|bucket\w*|chunk\w*|epoch\w*|\w*norm"
    r"|conv\w*|linear|attention|attn|mlp|ffn|\w*coder|transformer\w*|module\w*|rank\w*|gpu|device|worker\w*"
    r"|thread\w*|stream\w*|tower|stack|phase|trial|fold|sample|save|checkpoint\w*|capture\w*|compile\w*)(?![a-z])"
)
"""What holds a part of a step, or many of them."""
COUNTER = regex(r"(^|[ #=:_-])#(?![a-z])")
"""A number that stands for itself, not the end of a module's name (`conv1`)."""
LEAST = 0.5
LEAST_UNNAMED = 0.8
"""Share of the device time that steps launch; with start-up and evaluation beside them it is not all."""
FEWEST_UNNAMED = 3  # ranges whose name does not say that they are steps
AS_MUCH = 0.9  # of what the best ranges hold: those that hold it too are around them, or in them


def find_numbered_ranges(recording: Recording) -> np.ndarray:
    """Return the annotation rows that are steps by their names, in order of time; empty if none are.

    They lie on one thread, one after another, and most of the device's work is launched in
    them. Where such ranges lie in others, the outer ones are the steps if there are several.
    """
    stems = [_stem(text) for text in recording.text("name")]
    useful = [
        bool(STEP_WORD.search(stem) or COUNTER.search(stem)) and not PART_WORD.search(stem)
        for stem in stems
    ]
    chosen = np.flatnonzero(
        recording.is_kind("annotation") & np.append(useful, False)[recording["name"]]
    )
    chosen = chosen[np.argsort(recording["start_ns"][chosen], kind="stable")]
    families: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in chosen.tolist():
        families[int(recording.threads[row]), stems[recording["name"][row]]].append(row)
    launches = read_launches(recording)
    work_ns = np.append(0, np.cumsum(launches.work_ns))
    found = []
    for (_, stem), members in families.items():
        rows = np.array(members)
        start = recording["start_ns"][rows]
        end = start + recording["duration_ns"][rows]
        if (start[1:] < end[:-1]).any():
            continue
        least = LEAST
        if not STEP_WORD.search(stem):
            least = LEAST_UNNAMED
            if len(rows) < FEWEST_UNNAMED or not _counts_up(recording.texts_of("name", rows)):
                continue
        first, last = (np.searchsorted(launches.start_ns, each) for each in (start, end))
        share = float((work_ns[last] - work_ns[first]).sum() / max(work_ns[-1], 1))
        if share >= least:
            found.append((share, rows))
    if not found:
        return np.empty(0, np.int64)
    most = max(share for share, _ in found)
    alike = [rows for share, rows in found if share >= AS_MUCH * most]
    several = [rows for rows in alike if len(rows) >= FEWEST_UNNAMED] or alike
    return min(several, key=len)


def _stem(text: str) -> str:
    """Return a name without its numbers and details; empty for C++ names and paths of modules."""
    short = DETAILS.sub("", text)
    if "::" in short or re.search(r"\w\.\w", short):
        return ""
    return NUMBER.sub("#", CAMEL.sub("_", short).lower()).strip()


def _counts_up(names: list[str | None]) -> bool:
    """Return whether one number in the names grows by the same amount from each to the next."""
    numbers = [
        [int(each) for each in NUMBER.findall(DETAILS.sub("", name or ""))] for name in names
    ]
    steps = np.diff(np.array(numbers, np.float64), axis=0)
    grows = (steps == steps[0]).all(axis=0) & (steps[0] > 0)
    return bool(grows.sum() == 1 and (steps[:, ~grows] == 0).all())


EXECUTE = regex(r"^Method::execute$")  # ExecuTorch: a run of the program
OPTIMIZER_STEP = regex(r"^Optimizer\.step#(.*)\.step$|^Optimizer\.step#")
NO_PREDECESSOR = "no step before it in the window, so its step time is unknown"
WORK_LOST = "much of the device work it launched was not recorded"
UNRECORDED = (
    "but no device work was recorded: another tool held the device's profiler (CUPTI), or it was off, "
    "stopped early, or does not work there (WSL, containers)"
)
OF_A_DEVICE = regex(r"^aten::_?(cudnn|miopen)_(conv|batch_norm|rnn)|^nccl:")
UNLAUNCHED = (
    "no recorded call is known to have launched much of its device work: whether the CPU or the device "
    "bounds it is not known"
)
LOST_BEFORE = "the end of the step before it was not recorded"
# Of a step's launches, or its device work. Memsets and the odd kernel go unrecorded in complete traces, too.
MOST_LOST = 0.1
LAUNCH = regex(r"Launch(Cooperative)?Kernel|ModuleLaunch|GraphLaunch|ExtLaunch")
SYNCHRONIZE = regex(r"Synchronize")
LAUNCHED_BEFORE = "device work launched before the window runs in it"
CUT_OFF = "the recording ended before its work did"

Ranges = list[tuple[str, int, int]]


def find_steps(
    recording: Recording, step_marker: str | None, steps: str | None
) -> tuple[Ranges, str]:
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
            runs = enumerate(_marked(recording, markers))
            return [(f"run {number}", *run[1:]) for number, run in runs], "runs of Method::execute"
        markers = find_numbered_ranges(recording)
        if len(markers):
            return _marked(
                recording, markers
            ), f"ranges such as {_first_name(recording, markers)!r}"
    return _by_period(recording)


def _by_period(recording: Recording) -> tuple[Ranges, str]:
    from daydream.collect.derive.periods import TWO_KINDS, find_steps_by_period

    ranges = find_steps_by_period(recording)
    if not ranges:
        return [
            ("whole recording", *_window(recording))
        ], "the whole recording: no markers, no period"
    if len(ranges) == 1:
        return [("pass", *ranges[0])], "one pass, whose layers repeat (auto)"
    named = [(f"period {index}", *each) for index, each in enumerate(ranges)]
    kinds = ", after a step of another kind" if recording.metadata.pop(TWO_KINDS, False) else ""
    return named, f"period of the launch sequence (auto){kinds}"


def finish_ranges(recording: Recording) -> None:
    """Lengthen an optimizer's range that the end of the recording cut to nothing to the end of its thread."""
    start = recording["start_ns"]
    duration = recording["duration_ns"]
    threads = recording.threads
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
    reached = np.maximum.accumulate(end)[:-1]
    inside = (end[1:] <= reached) & (recording["start_ns"][rows[1:]] < reached)
    return rows[np.append(True, ~inside)]  # a marker inside another one begins no step of its own


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

    Calls without a backward pass between them are of one iteration. Of several optimizers the one with
    fewest iterations counts, of equals the last; one that only ever joins another (every second time, say)
    makes no steps of its own.
    """
    codes = recording["name"][markers]
    start = recording["start_ns"][markers]
    end = start + recording["duration_ns"][markers]
    nodes = np.sort(recording["start_ns"][recording.named(BACKWARD_NODE, "operator")])
    turn = np.searchsorted(nodes, start) if len(nodes) else np.arange(len(start))
    turns = {
        code: set(turn[codes == code].tolist()) for code in codes[::-1].tolist()
    }  # the last one first
    own = [code for code in turns if not any(turns[code] < other for other in turns.values())]
    code = min(own, key=lambda code: len(turns[code]))
    end = end[np.append(turn[1:] > turn[:-1], True) & np.isin(turn, list(turns[code]))]
    first, _ = _window(recording)
    begins = [first, *(end[:-1] + 1).tolist()]
    ranges = zip(begins, end.tolist(), strict=True)
    named = [(f"iteration {index}", *each) for index, each in enumerate(ranges)]
    return named, f"ends of {recording.text('name')[code]}"


def _window(recording: Recording) -> tuple[int, int]:
    host = recording.is_kind("operator", "annotation", "runtime")
    rows = host if host.any() else slice(None)
    start = recording["start_ns"][rows]
    return int(start.min()), int((start + recording["duration_ns"][rows]).max())


def _annotations(recording: Recording) -> str:
    codes = recording["name"][recording.is_kind("annotation")].tolist()
    common = [recording.text("name")[code] for code, _ in Counter(codes).most_common(5)]
    return (
        "This file's annotations: " + ", ".join(repr(name) for name in common)
        if common
        else "It has none."
    )


def assign_steps(
    recording: Recording, ranges: Ranges, launch: np.ndarray
) -> tuple[np.ndarray, Ranges]:
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
    alone = (
        recording.is_kind(*DEVICE_KINDS)
        if is_device_alone(recording)
        else np.zeros(len(step), bool)
    )
    step[~((host & _at_work(recording, launch)) | alone)] = UNKNOWN

    launches = alone
    launches[launch[launch >= 0]] = True
    busy = np.zeros(len(ranges) + 1, bool)
    busy[step[(recording.is_kind("operator") | launches) & (step >= 0)]] = True
    number = np.append(np.where(busy[:-1], np.cumsum(busy[:-1]) - 1, UNKNOWN), UNKNOWN).astype(
        np.int32
    )
    step = number[step]
    linked = launch >= 0
    step[linked] = step[launch[linked]]
    return step, [chosen for chosen, is_busy in zip(ranges, busy[:-1], strict=True) if is_busy]


def _lost_work(
    recording: Recording, step: np.ndarray, launch: np.ndarray, count: int
) -> np.ndarray:
    """Return which steps miss much of the device work they launched, as where a recording was cut off."""
    calls = recording.named(LAUNCH, "runtime") & (step >= 0) & ~in_capture(recording)
    linked = np.zeros(len(step), bool)
    linked[launch[launch >= 0]] = True
    launched = np.bincount(step[calls], minlength=count)
    lost = np.bincount(step[calls & ~linked], minlength=count)
    return np.asarray(lost > MOST_LOST * launched)


def _cut_off(
    recording: Recording, step: np.ndarray, last: int, calls: np.ndarray, works: np.ndarray
) -> bool:
    """Tell whether the recording ended within the last step: it did less, or its last launch has no work.

    That is the last one of the thread that launches most: a loader copies for steps beyond the window.
    """
    done = np.bincount(step[works & (step >= 0)], minlength=last + 1)
    others = done[1:last]
    names = recording["name"]
    threads = recording["tid"]
    found, counts = np.unique(threads[calls], return_counts=True)
    alike = recording.is_kind("runtime") & np.isin(names, names[calls]) & (step >= 0)
    most = found[counts == counts.max(initial=0)][:1]
    like = np.flatnonzero(alike & np.isin(threads, most))
    less = len(others) and 0 < done[last] < (1 - MOST_LOST) * others.min()
    return bool(less or not np.isin(like[-1:], calls).all())


def unrecorded(recording: Recording) -> str | None:
    """Return what says that a device worked, though none of its work was recorded; None if nothing does."""
    if recording.is_kind(*DEVICE_KINDS).any():
        return None
    if calls := int((recording.named(LAUNCH_CALL, "runtime") & ~in_capture(recording)).sum()):
        return f"{counted(calls, 'call')} launched work on a device, {UNRECORDED}"
    memory = recording.memory
    if memory is not None and (memory["device"] >= 0).any():
        return f"memory of a device was allocated, {UNRECORDED}"
    if recording.named(OF_A_DEVICE).any():
        return f"operators ran that only a device has, {UNRECORDED}"
    return None


def need_work(recording: Recording) -> None:
    """Raise `TraceError` where neither an operator nor device work was recorded; say what the file says."""
    said = recording.metadata.pop(SAID, [])
    if not recording.is_kind("operator", *DEVICE_KINDS).any():
        why = [why] if (why := unrecorded(recording)) else []
        raise TraceError(
            f"{recording.metadata.get('source')}: no operator, kernel or copy was recorded. "
            + " ".join([*why, *said])
        )


def _unlaunched(
    recording: Recording, device: np.ndarray, launch: np.ndarray, completion: np.ndarray
) -> np.ndarray:
    """Return the steps during which much of the device's work is of no known call: bool, shape (steps,)."""
    if is_device_alone(recording):
        return np.zeros(len(completion), bool)
    during = np.searchsorted(completion, recording["start_ns"][device], side="right")
    took = recording["duration_ns"][device].astype(float)
    of_none = np.where(launch[device] < 0, took, 0.0)
    whole, unknown = (np.bincount(during, ns, len(completion) + 1) for ns in (took, of_none))
    return np.asarray(unknown > MOST_LOST * whole)[:-1]


def _launched_before(recording: Recording, device: np.ndarray, launch: np.ndarray) -> bool:
    """Tell whether work of no known call runs ahead of all other work of its stream."""
    lane, lanes = combinations([recording[name][device] for name in ("device", "stream")])
    start = recording["start_ns"][device]
    known = launch[device] >= 0
    first = np.full(len(lanes), np.iinfo(np.int64).max)
    np.minimum.at(first, lane[known], start[known])
    return bool((start < first[lane]).any())


def _at_work(recording: Recording, launch: np.ndarray) -> np.ndarray:
    """Return the rows of threads that hold operators or launch device work (not watchdogs and monitors)."""
    threads = recording.threads
    working = np.union1d(threads[recording.is_kind("operator")], threads[launch[launch >= 0]])
    return np.isin(threads, working) if len(working) else np.ones(len(recording), bool)


def measure_steps(
    recording: Recording,
    ranges: Ranges,
    step: np.ndarray,
    launch: np.ndarray,
    doubts: str | None = None,
) -> list[dict[str, Any]]:
    """Return the metadata of the steps: their ranges, completions and measured step times.

    `doubts` say why none can be judged.
    """
    device = recording.is_kind(*DEVICE_KINDS)
    counts = (device | recording.is_kind("operator", "runtime")) & (step >= 0)
    stops = np.array([stop for _, _, stop in ranges], np.int64)
    completion = np.array([begin for _, begin, _ in ranges], np.int64)
    # Where CPUs alone work, their operators may go on behind the range, as a device's do (XLA's thread pool).
    whole = device if device.any() else recording.is_kind("operator")
    rows = np.flatnonzero(counts)
    end = recording["start_ns"][rows] + recording["duration_ns"][rows]
    limited = np.where(whole[rows], end, np.minimum(end, stops[step[rows]]))
    np.maximum.at(completion, step[rows], limited)
    completion = np.maximum.accumulate(completion)  # a step is not done before the one before it
    orphans = _launched_before(recording, np.flatnonzero(device), launch) and not is_device_alone(
        recording
    )
    lost = _lost_work(recording, step, launch, len(ranges))
    unlaunched = _unlaunched(recording, device, launch, completion)
    without = doubts or unrecorded(recording)
    rank = int(recording.metadata.get("rank", 0))

    steps: list[dict[str, Any]] = []
    for index, (name, begin, stop) in enumerate(ranges):
        before = int(completion[index - 1]) if index else begin
        why_not = without or (UNLAUNCHED if unlaunched[index] else None)
        if why_not is not None:
            pass
        elif index == 0 and len(ranges) > 1:
            why_not = NO_PREDECESSOR
        elif index == 0 and orphans:
            why_not = LAUNCHED_BEFORE
        elif lost[index]:
            why_not = WORK_LOST
        elif index and lost[index - 1]:
            why_not = LOST_BEFORE
        elif index + 1 == len(ranges) and any(each["covered"] for each in steps):
            why_not = (
                CUT_OFF if _cut_off(recording, step, index, launch[launch >= 0], whole) else None
            )
        steps.append(
            {
                "name": name,
                "rank": rank,
                "start_ns": begin,
                "end_ns": stop,
                "completion_ns": int(completion[index]),
                "measured_ns": int(completion[index]) - before
                if index or len(ranges) == 1
                else None,
                "covered": why_not is None,
                "why_not": why_not,
            }
        )
    return steps
