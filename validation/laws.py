"""Laws that answers about a trace cannot break, whatever a change would really give.

`sanity.py` holds every trace against them, `falsify.py` mutations of traces. A law that yields something is broken:
what was asked, and what was said.

How much a device at another speed may change a step follows from what was recorded alone. Whatever waits for
whatever, a step is as long as a chain of causes, one behind the other, each as long as it was recorded.

- *idle device*: of that chain at most what the device was busy gets shorter.
- *busy device*: a chain runs on the device where the device works and every thread stands in a call that waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import daydream
from daydream.errors import DaydreamError
from daydream.graph.calls import Coverage
from daydream.graph.graph import Graph
from daydream.graph.rules.synchronization import is_sync
from daydream.predict.basis import waited_for_ns
from daydream.predict.breakdown import trace_back
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay
from daydream.simulate.critical_path import ON_CPU
from daydream.trace.schema import DEVICE_KINDS
from daydream.trace.trace import Trace

ROUNDING = 0.005  # of the step: what settles to 0.1 %, boundaries that shift
MISSED = 0.01  # of the step: an interval that is so far from what is allowed misses it
BUSY, GAIN = 0.97, 1.7
ENGINE = re.compile("^autograd::engine")
PAUSE_NS = 1_000_000  # of an autograd thread, which stands in longer ones
WORD_BYTES = 1 << 20  # a copy of no more to the host takes no CPU time that counts


@dataclass(frozen=True)
class Bounds:
    """What was recorded of a step, in ns; means over the covered steps.

    Attributes:
        step_ns: it, measured.
        busy_ns: how long any device works.
        stream_ns: how long its busiest stream works, without collectives, which may wait for their peers.
        alone_ns: how long a device works while every thread stands in a call of the step that waits for it.
    """

    step_ns: float
    busy_ns: float
    stream_ns: float
    alone_ns: float

    def allowed(self, on: str, factor: float, now_ns: float) -> tuple[float, float]:
        """Return the least and the most that a step of `now_ns` may take with work scaled on one side, in ns."""
        if on == "cpu":
            ends = self.stream_ns, now_ns
        elif factor > 1:
            ends = max(now_ns, factor * self.stream_ns), now_ns + (factor - 1) * self.busy_ns
        else:
            most = factor * now_ns + (1 - factor) * max(max(self.step_ns, now_ns) - self.alone_ns, 0)
            ends = now_ns - (1 - factor) * self.busy_ns, min(most, now_ns)
        return min(ends[0], now_ns) if factor < 1 else ends[0], ends[1]


def bounds(trace: Trace, steps: Sequence[Mapping[str, Any]]) -> Bounds | None:
    """Return what a trace says of its covered steps, `Graph.steps`; None where it has no device work in them."""
    covered = [step for step in steps if step.get("covered")]
    ends = np.array([step["completion_ns"] for step in covered], np.int64)
    lasting = np.array([step["measured_ns"] for step in covered], np.int64)
    windows = Coverage(ends - lasting, ends)
    count = len(covered) / max(len({step.get("rank", 0) for step in covered}), 1)
    start = np.asarray(trace["start_ns"], np.int64)
    end = start + trace["duration_ns"]
    device = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    first, last = _with_holes(_calls(trace)[device], start[device], end[device])
    place = np.stack([trace[name][device] for name in ("rank", "device", "stream")])
    _, stream = np.unique(place, axis=1, return_inverse=True)
    busy = [windows_of(Coverage(first, last), windows)]
    alone = ~trace.is_kind("collective")[device]
    for each in range(int(stream.max(initial=-1)) + 1):
        mine = alone & (stream == each)
        busy.append(windows_of(Coverage(first[mine], last[mine]), windows))
    if not busy[0] or not count:
        return None
    ran = Coverage(*(np.array([step[what] for step in covered], np.int64) for what in ("start_ns", "end_ns")))
    standing = [*_standing(trace, start, end)]  # of no thread that was not recorded is known that it stands
    together = _together([windows, ran, Coverage(first, last), *standing]) if standing else 0
    return Bounds(*(float(ns) / count for ns in (windows.before_ns[-1], busy[0], max(busy[1:]), together)))


def windows_of(coverage: Coverage, windows: Coverage) -> int:
    """Return how much of some windows is covered, in ns."""
    return int(coverage.within(windows.start_ns, windows.end_ns).sum())


def _calls(trace: Trace) -> np.ndarray:
    """Return a number for the call of each row, -1 for none; ranks number theirs alike."""
    call = np.asarray(trace["correlation"], np.int64)
    return np.where(call < 0, -1, (np.asarray(trace["rank"], np.int64) << 40) + call)


def _with_holes(call: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of device work; nodes of a replayed graph work until the last one ends."""
    known = np.flatnonzero(call >= 0)
    _, number = np.unique(call[known], return_inverse=True)
    first, last = start.copy(), end.copy()
    least, most = np.full(len(known), np.iinfo(np.int64).max), np.zeros(len(known), np.int64)
    np.minimum.at(least, number, start[known])
    np.maximum.at(most, number, end[known])
    first[known], last[known] = least[number], most[number]
    return first, last


def _standing(trace: Trace, start: np.ndarray, end: np.ndarray) -> Iterator[Coverage]:
    """Yield when each thread waits for the device, or for others that are recorded, as far as rows tell."""
    host = trace.is_kind("operator", "annotation", "runtime", "module")
    names = trace.text("name")
    waits = trace.is_kind("runtime") & _named(trace, [is_sync(name) for name in names])
    words = trace.is_kind("memcpy") & _named(trace, ["DtoH" in name or "D2H" in name for name in names])
    call = _calls(trace)
    small = words & (trace["bytes"] >= 0) & (trace["bytes"] <= WORD_BYTES) & (call >= 0)
    waits |= trace.is_kind("runtime") & np.isin(call, call[small])
    engine = _named(trace, [ENGINE.search(name) is not None for name in names])
    marks = {step["name"] for step in trace.metadata.get("steps", ())}
    marked = trace.is_kind("annotation") & _named(trace, [name in marks for name in names])
    blocked = trace.is_kind("blocked")
    place = np.stack([trace["rank"], trace["pid"], trace["tid"]])
    threads, of = np.unique(place[:, host], axis=1, return_inverse=True)
    thread = np.full(len(trace), -1)
    thread[host] = of
    for number in range(threads.shape[1]):
        mine = thread == number
        stands = mine & waits
        starts, ends = [start[stands]], [end[stands]]
        if not marked[mine].any() and (marked.any() or engine[mine].any()):
            off = blocked & (place == threads[:, [number]]).all(axis=0)
            starts.append(start[off])
            ends.append(end[off])
        if engine[mine].any():
            rows = Coverage(start[mine], end[mine])
            left = np.append(np.iinfo(np.int64).min // 2, rows.end_ns)
            until = np.append(rows.start_ns, np.iinfo(np.int64).max // 2)
            long = until - left > PAUSE_NS
            starts.append(left[long])
            ends.append(until[long])
        yield Coverage(np.concatenate(starts), np.concatenate(ends))


def _named(trace: Trace, fits: Sequence[bool]) -> np.ndarray:
    return np.asarray(np.array([*fits, False])[trace["name"]])


def _together(coverages: Sequence[Coverage]) -> int:
    """Return for how long all of some coverages cover, in ns."""
    times = np.concatenate([part for each in coverages for part in (each.start_ns, each.end_ns)])
    change = np.concatenate([np.repeat([1, -1], len(each.start_ns)) for each in coverages])
    order = np.argsort(times, kind="stable")
    all_of_them = np.cumsum(change[order])[:-1] == len(coverages)
    return int(np.diff(times[order])[all_of_them].sum())


def misses(answer: Prediction, least_ns: float, most_ns: float) -> str:
    """Tell how the interval of an answer misses what is allowed; empty if it does not, or there is none."""
    low, high, now = answer.predicted_low_ns, answer.predicted_high_ns, answer.replayed_ns
    if low is None or high is None:
        return ""
    slack = MISSED * now
    if low <= most_ns + slack and high >= least_ns - slack:
        return ""
    said, allowed = (f"{one / now:.3f} to {two / now:.3f}" for one, two in ((low, high), (least_ns, most_ns)))
    return f"{said} of the step, and {allowed} is possible"


def a_factor_of_one_changes_nothing(replay: Replay, _path: Path) -> Iterator[tuple[str, str]]:
    """Scaling by one leaves the step as it is."""
    same = daydream.whatif(replay, lambda graph: graph.select().scale(1.0))
    if same.simulated_ns != same.replayed_ns:
        yield "scale by 1", f"{_ms(same.replayed_ns)} became {_ms(same.simulated_ns)}"


def a_faster_device_is_never_slower(replay: Replay, _path: Path) -> Iterator[tuple[str, str]]:
    """Less work on lanes of fixed order never makes the step longer."""
    last = replay.settled.step_ns
    for factor in (0.75, 0.5, 0.25, 0.0):
        try:
            then = daydream.whatif(replay, "scale", on="gpu", factor=factor, contention="off").simulated_ns
        except DaydreamError:
            return
        if then > last * (1 + ROUNDING):
            yield f"scale on gpu {factor}", f"{_ms(last)} became {_ms(then)}"
        last = then


def a_busy_device_gains_from_faster_kernels(replay: Replay, _path: Path) -> Iterator[tuple[str, str]]:
    """A device that is busy all the time makes the step shorter, or traced work takes over, and then that."""
    chain = trace_back(replay.settled)
    busy = chain.busy_ns()
    if busy is None or busy < BUSY * chain.step_ns:
        return
    try:
        half = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    except DaydreamError as error:
        yield "scale on gpu 0.5", f"refused: {error}"
        return
    times = half.replayed_ns / half.simulated_ns
    if times >= GAIN:
        return
    taking = waited_for_ns(half.after)
    most = max(taking, key=lambda what: taking[what])
    busy /= chain.step_ns
    if most not in ON_CPU:  # all device work is halved already
        yield "scale on gpu 0.5", f"busy {busy:.0%}, {times:.2f}x, and it still waits for {most}"
        return

    def both(graph: Graph) -> None:
        graph.select().scale(0.5)  # traced work alone: not what lies untraced between

    again = daydream.whatif(replay, both)
    then = again.replayed_ns / again.simulated_ns
    if then < GAIN:
        said = f"busy {busy:.0%}, {times:.2f}x; {most} takes over, and halving that too gives {then:.2f}x"
        yield "scale on gpu 0.5", said


def a_device_gains_what_it_was_busy(replay: Replay, _path: Path) -> Iterator[tuple[str, str]]:
    """A faster device takes at most its share of the time that it was busy, and that where all else waits for it."""
    trace = replay.graph.trace
    found = None if trace is None else bounds(trace, replay.graph.steps)
    if found is None:
        return
    for on, factor in (("gpu", 0.5), ("gpu", 2.0), ("cpu", 0.0)):
        try:
            answer = daydream.whatif(replay, "scale", on=on, factor=factor)
        except DaydreamError:
            continue
        if said := misses(answer, *found.allowed(on, factor, answer.replayed_ns)):
            yield f"scale on {on} {factor}", said


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f} ms"
