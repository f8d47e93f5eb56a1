"""Whether a recording was made at rest: on a busy machine its steps say little of the script.

Three signs, which other programs give, or more threads than there are free cores:

- steps that do the same work take different times;
- without the cost of recording, steps would not take what those timed without a profiler took;
- steps took less time with the profiler than without one.

First iterations: steps at the begin of a recording that do once what later steps do not repeat.

Modules are loaded, libraries make their handles, memory is taken from the driver, algorithms
are tried out, code is compiled, weights go to the device. A run pays for it once, however long it is.

What the rows of a trace cost to record: the classes they fall into, their inputs, and their heads. The head of
an operator is the time from its start to the start of the first operator inside. Little happens there but the
recording of that inner operator, so heads tell how dear recording was at that time and place: with caches hot
or cold, in fresh memory or in used, at the clock the machine ran at.

An event costs about the same number of instructions anywhere. So its cost, as measured on one machine, is scaled
by how long the heads of operators are in a trace (`daydream.graph.profiler_overhead`). Measuring it anew in
each recorded process, as `benchmarks/event_costs.py` of b281a3aa does, took as long as most of the recording and
was no better (docs/collection.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import combinations, first_of, places
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from daydream.collect.derive.recording import Recording
    from daydream.trace.trace import Trace

LONGER = 0.25
"""Of a usual step by which a first one is longer; less is not worth a step."""
EXPLAINED = 0.5
"""Of what it is longer that work done once must explain."""
ONCE = 3
"""Times as much as in any later step."""
STANDS_NS = 50_000_000
"""A call may stand so long because other programs had the CPU, several time slices: that is no start-up.

What calls of a name take longer than usual counts above this only, if later steps have calls of that name.
"""
LATER = 2
"""Steps, at least, that tell what is usual."""
LOADS = 20
LOADS_NS = 1_000_000
"""Times as long as usual, and ns, that a launch takes which loads a module."""
WORTH_SAYING = 0.1
"""Of the only step."""
WAITS = regex(r"Synchronize|Memcpy|Wait|Query|DataLoader|data_?load|nccl|c10d", re.IGNORECASE)
"""Calls and operators that last as long as something else does: a loader, another rank, the device."""


def first_iterations(
    recording: Recording, step: np.ndarray, parent: np.ndarray, steps: list[dict[str, Any]]
) -> dict[int, str]:
    """Return why steps at the begin are not like those to come, by their number.

    Only a step that is longer than later ones counts, and only where time that calls,
    operators or kernels of one name take in it and not later is at least half of that.
    """
    times = [each["measured_ns"] for each in steps]
    found: dict[int, str] = {}
    if len(steps) < LATER + 2 or None in times[1:]:
        return found
    host, device = _by_name(recording, step, parent, len(steps))
    for number in range(1, len(steps) - LATER):
        usual = float(np.median(times[number + 1 :]))
        longer = times[number] - usual
        if longer <= LONGER * usual:
            break
        once = np.maximum(_started(host, number), _once(device, number))
        if once.sum() < EXPLAINED * longer:
            break
        found[number] = _reason(recording, once)
    return found


def start_up_of_single_step(
    recording: Recording, launch: np.ndarray, steps: list[dict[str, Any]]
) -> str | None:
    """Return a sentence where the only step is much longer because kernels' modules were loaded in it.

    CUDA loads a module when a kernel of it is launched first, inside that call (CUDA programming
    guide, lazy loading); a recording with other steps leaves such a step out.
    """
    if len(steps) != 1 or not steps[0]["measured_ns"]:
        return None
    from daydream.collect.derive.phases import launched  # where a trace is made

    calls, names = launched(recording, launch)
    if not len(calls):
        return None
    took = np.asarray(recording["duration_ns"])[calls].astype(np.int64)
    first = np.unique(names, return_index=True)[1]
    loads = first[took[first] >= max(LOADS_NS, LOADS * float(np.median(took)))]
    total = int(took[loads].sum())
    if total < WORTH_SAYING * steps[0]["measured_ns"]:
        return None
    kernels = counted(len(loads), "kernel")
    longest = took[loads].max() / 1e6
    return (
        f"The only step holds start-up: {total / 1e6:,.0f} ms in first launches of {kernels}, which load "
        f"their modules (the longest {longest:,.0f} ms). A later pass has none of it."
    )


def _by_name(
    recording: Recording, step: np.ndarray, parent: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of each name in each step, of the host without what lies inside, and of the device."""
    duration = np.asarray(recording["duration_ns"])
    own = duration.astype(np.int64)
    held = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[held], duration[held].astype(np.int64))
    np.maximum(own, 0, out=own)
    host = recording.is_kind("operator", "runtime") & ~recording.named(WAITS, "operator", "runtime")
    host_ns, device_ns = (np.zeros((count, len(recording.text("name")))) for _ in range(2))
    for table, rows in (
        (host_ns, host),
        (device_ns, recording.is_kind("kernel", "memcpy", "memset")),
    ):
        used = np.flatnonzero(rows & (step >= 0))
        np.add.at(table, (step[used], recording["name"][used]), own[used].astype(float))
    return host_ns, device_ns


def _once(table: np.ndarray, number: int) -> np.ndarray:
    """Return by how much each name takes longer in a step than usually later, where far longer than ever."""
    later = table[number + 1 :]
    much = table[number] > ONCE * later.max(axis=0)
    return np.where(much, table[number] - np.median(later, axis=0), 0.0)


def _started(table: np.ndarray, number: int) -> np.ndarray:
    """Return the same of calls, without what a thread may have stood still."""
    once = _once(table, number)
    again = (table[number + 1 :] > 0).any(axis=0)
    return np.where(again & (once < STANDS_NS), 0.0, once)


def _reason(recording: Recording, once: np.ndarray) -> str:
    largest = [int(name) for name in np.argsort(-once)[:2] if once[name] >= once.sum() / 4]
    named = " and ".join(_short(recording.text("name")[name]) for name in largest)
    ms = f"{once.sum() / 1e6:,.0f} ms"
    if not named:
        return f"a first iteration: {ms} of work that no later step repeats"
    return f"a first iteration: {ms} of work that no later step repeats, most of it in {named}"


def _short(name: str) -> str:
    short = re.sub(r"[<(].*", "", name).strip().removeprefix("void ")
    return short if len(short) <= 40 else short[:39] + "…"


# Of 30 recordings of small models on two quiet cores (validation/) one reached any of these: at most one step
# in five was further than 20% from the usual one; without the cost of recording, steps came out 17% shorter
# to 20% longer than measured, once 29%; no profiled step was shorter than an unprofiled one.
VARY = 0.2  # steps further than this from the usual one were held up or hurried
MOST_VARYING = 0.25  # share of the steps that may be, as one step now and then is
FAR = 0.25
BELOW = 0.05
OTHER_WORK = (
    0.1  # of the rows of a step: more differing calls, or calls on other shapes, is other work
)


def unrest(trace: Trace, unprofiled_ns: int | None) -> str | None:
    """Return why this recording seems not to have been made at rest, and what to do; None if it does.

    `unprofiled_ns` is the replayed step without the cost of recording, None if that is not known.
    """
    steps: list[dict[str, Any]] = trace.metadata.get("steps", [])
    covered = [number for number, step in enumerate(steps) if step.get("covered")]
    if not covered:
        return None
    times = trace.metadata.get("unprofiled_step_ns")
    signs = [_varying(trace, covered)]
    if times:
        measured = round(median(int(steps[number]["measured_ns"]) for number in covered))
        signs.append(_apart(trace, covered, measured, unprofiled_ns, round(median(times))))
    said = "; ".join(sign for sign in signs if sign)
    if not said:
        return None
    if "collected" not in trace.metadata:
        return (
            f"{said[0].upper()}{said[1:]}. All of them count on average: what the trace shows of the cause "
            "(loading, say) can be asked about, a machine that was not at rest cannot."
        )
    threads = trace.metadata.get("threads")
    had = f" (torch had {threads} threads)" if threads and threads > 1 else ""
    return (
        f"The machine was busy during recording: {said}. Close what else runs "
        f"there, set OMP_NUM_THREADS to the number of cores that are free{had}, and record again; a larger "
        "--warmup skips slow first steps."
    )


def _varying(trace: Trace, covered: Sequence[int]) -> str:
    """Return how steps that do the same work vary, empty if they hardly do."""
    steps = trace.metadata["steps"]
    ranks: dict[int, list[int]] = {}
    for number in covered:
        ranks.setdefault(int(steps[number].get("rank", 0)), []).append(number)
    off = 0
    together = 0
    seen = []
    for mine in ranks.values():
        times = {number: int(steps[number]["measured_ns"]) for number in mine}
        if not far_from_usual(list(times.values())):
            together += len(mine)
            continue
        same = [times[number] for number in _same_work(trace, mine)]
        off += far_from_usual(same)
        together += len(same)
        seen += same
    if off <= MOST_VARYING * together:
        return ""
    return (
        f"{off} of {together} steps that do the same work took over {100 * VARY:.0f}% longer or shorter "
        f"than the usual one, {_ms(min(seen))} to {_ms(max(seen))}"
    )


def far_from_usual(times: Sequence[int]) -> int:
    """Return how many of these times are further from the usual one than those of a machine at rest."""
    usual = median_low(times)
    return sum(abs(ns - usual) > VARY * usual for ns in times)


def _apart(
    trace: Trace,
    covered: Sequence[int],
    measured_ns: int,
    replayed_ns: int | None,
    unprofiled_ns: int,
) -> str:
    """Return how steps with and without the profiler contradict each other, empty if they do not."""
    below = measured_ns < (1 - BELOW) * unprofiled_ns
    far = replayed_ns is not None and abs(replayed_ns - unprofiled_ns) > FAR * unprofiled_ns
    if far and replayed_ns is not None and replayed_ns > unprofiled_ns and trace.text("stack"):
        far = False  # what recording Python's frames cost is not taken out
    if not (below or far) or len(_same_work(trace, covered)) < len(covered):
        return ""  # where work differs from step to step, the unprofiled steps may have done other work
    if below:
        return (
            f"steps were faster with the profiler on ({_ms(measured_ns)}) than off "
            f"({_ms(unprofiled_ns)}), which is impossible on an idle machine"
        )
    return (
        f"without the cost of recording a step would take {_ms(replayed_ns or 0)}, but those timed without "
        f"a profiler took {_ms(unprofiled_ns)}"
    )


def _same_work(trace: Trace, steps: Sequence[int]) -> list[int]:
    """Return the steps with the calls, on the shapes, that the step of the usual time has."""
    times = {number: int(trace.metadata["steps"][number]["measured_ns"]) for number in steps}
    middle = median_low(times.values())
    usual = next(number for number, ns in times.items() if ns == middle)
    place = np.full(len(trace.metadata["steps"]) + 1, -1)
    place[list(steps)] = np.arange(len(steps))
    of_step = place[np.asarray(trace["step"], np.int64)]
    rows = np.flatnonzero(of_step >= 0)
    shapes = np.asarray(trace["shapes"], np.int64)[rows]  # -1 where unknown
    call = np.asarray(trace["name"], np.int64)[rows] * (len(trace.text("shapes")) + 1) + shapes + 1
    calls, which = places(call)
    counts = np.bincount(
        of_step[rows] * len(calls) + which, minlength=len(steps) * len(calls)
    ).reshape(len(steps), -1)
    mine = counts[list(steps).index(usual)]
    differing = np.abs(counts - mine).sum(axis=1)
    return [
        steps[at] for at in np.flatnonzero(differing <= OTHER_WORK * max(mine.sum(), 1)).tolist()
    ]


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.{1 if ns >= 10_000_000 else 3}f} ms"


CLASSES = ("forward", "backward", "optimizer")  # of operators
RANGES = ("annotation", "module")  # ranges opened by Python code; each kind is a class of its own
LONGEST_HEAD_NS = 10_000  # in a longer one the thread was interrupted


def recorded_events(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of operators, and the class of each as a number.

    What is in neither the backward pass nor the optimizer (the loss, data, what has no phase)
    is recorded like the forward pass.
    """
    rows = np.flatnonzero(trace.is_kind("operator"))
    phase = trace["phase"][rows]
    of_class = np.zeros(len(rows), np.int64)
    for number, name in enumerate(CLASSES):
        of_class[phase == trace.code("phase", name)] = number
    return rows, of_class


def recorded_ranges(trace: Trace) -> dict[str, np.ndarray]:
    """Return the rows of each kind of range that lies on a CPU thread."""
    return {kind: np.flatnonzero(trace.is_kind(kind) & (trace["tid"] >= 0)) for kind in RANGES}


def inputs_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return how many inputs were recorded with each row; the tensors of a list count one by one."""
    shapes: list[Any] = [json.loads(text) for text in trace.text("shapes")]
    counts = [
        sum(len(one) if one and isinstance(one[0], list) else 1 for one in each) for each in shapes
    ]
    return np.array([*counts, 0], np.int64)[trace["shapes"][rows]]


def heads(trace: Trace) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Return, by (class, operator, first operator inside), how many heads there are and their mean in ns."""
    rows, of_class = recorded_events(trace)
    parent = trace["parent"][rows]
    nested = np.flatnonzero(parent >= 0)
    outer, place = places(parent[nested])
    first = nested[first_of(place, len(outer))]  # rows are in the order of their starts
    kept = trace.is_kind("operator")[outer]
    outer = outer[kept]
    first = first[kept]
    rows = rows[first]
    start = trace["start_ns"]
    length = np.minimum(start[rows] - start[outer], LONGEST_HEAD_NS)
    group, keys = combinations([of_class[first], trace["name"][outer], trace["name"][rows]])
    counts = np.bincount(group, minlength=len(keys))
    means = np.bincount(group, weights=length, minlength=len(keys)) / counts
    texts = trace.text("name")
    return {
        (CLASSES[which], texts[one], texts[other]): (count, mean)
        for (which, one, other), count, mean in zip(
            keys, counts.tolist(), means.tolist(), strict=True
        )
    }


def _typical_heads() -> list[list[Any]]:
    """Return class, operator, first operator inside, how many were met and ns, as a trace's file has them."""
    lines = Path(__file__).with_name("heads.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [[*names, int(count), int(ns)] for *names, count, ns in rows]


# Medians of four measurements by `daydream collect` on one machine (a Xeon beside an H200, torch 2.11).
# Their traces are validation/h200/train_gpt*.parquet. Other machines' costs in ns differ by a factor of two,
# and by less once they are scaled by their heads.
TYPICAL: Mapping[str, Any] = {
    "event_ns": {"forward": 1390, "backward": 1192, "optimizer": 831},
    "input_ns": 66,
    "annotation_ns": 4076,
    "module_ns": 4320,
    "memory_ns": 0,
    "inside_ns": 180,
    "before_share": 0.72,
    "heads": _typical_heads(),
}
