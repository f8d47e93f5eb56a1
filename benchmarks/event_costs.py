"""What recording costs per event: the profiler's and the layer hooks' own time.

    OMP_NUM_THREADS=1 python benchmarks/event_costs.py     ten seconds; quieter is better

The typical cost (`daydream/collect/live/recording_cost.py`) was measured so. Small training steps run with
recording off and on in turns, within profilers of the same settings as the capture's: one after the other,
as each holds 1 to 2 kB an event. The difference of their times, divided by the events recorded, is the cost;
it is taken apart by forward, backward and optimizer, as they differ by a factor of two. The recording of
memory cannot be switched: what an allocation or a free costs is told by the same steps on a thread that is
not recorded. Times are the thread's own, which other programs on the machine do not make longer. Printed are
the medians of four measurements, as a document, and how far these are apart.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from event_programs import IDLE, Program, annotation, identities, joined, nothing, programs

from daydream.collect.derive.build import derive
from daydream.collect.live.capture import MARKER_NAME, prepared_profiler, read_profile, warm_memory
from daydream.collect.live.layer_hooks import LayerHooks
from daydream.collect.live.recording_cost import (
    CLASSES,
    RANGES,
    heads,
    inputs_of,
    recorded_events,
    recorded_ranges,
)
from daydream.collect.live.torch_private import let_go, range_type, write_profile
from daydream.trace.trace import Trace

MOST_SECONDS = 0.6  # of measuring; reading what was recorded takes as much again
MOST_ROUNDS, FEWEST_ROUNDS = 15, 4
REPEATS = 20  # calls of a single operator in a row
TENSORS, MODULES = 32, 32
HEADS_KEPT = 10  # fewer heads of a kind say little
VIEWS = ("aten::t", "aten::transpose")  # they do nothing but call the operator inside
# Rounds that one profiler records: what it holds takes 30 MB a round. Those of the first one are read, the
# others are like them, and reading takes time.
ROUNDS_AT_A_TIME = 2
WARM_BYTES = 32 << 20

Times = dict[str, list[int]]  # by class, one a round


def measure_profiler_cost(
    make_profiler: Callable[[], Any], *, seconds: float = MOST_SECONDS
) -> dict[str, Any]:
    """Return the cost per recorded event in ns, as the metadata of a trace holds it.

    `make_profiler` makes a profiler with the settings of the capture. Takes about twice `seconds`.
    """
    import torch

    # Switches the recording of operators off and on in a running profiler, for this thread alone.
    switch: Callable[[bool], None] = torch._C._autograd._enable_record_function  # noqa: SLF001
    return _Calibration(switch, seconds).run(make_profiler)


class _Calibration:
    """Runs the programs in turns, and divides."""

    def __init__(self, switch: Callable[[bool], None], seconds: float) -> None:
        self._switch, self._seconds = switch, seconds
        self._range = range_type()
        self._hooks = LayerHooks()
        self._memory: MemoryCost | None = None
        self._windows: list[tuple[int, int]] = []  # program and number of a marker pair

    def run(self, make_profiler: Callable[[], Any]) -> dict[str, Any]:
        """Return the document."""
        import torch

        steps = programs()
        calls = {"module": identities(MODULES), "annotation": annotation()}
        calls |= {"one": joined(1), "many": joined(TENSORS), "nothing": nothing()}
        off: list[Times] = [_no_times() for _ in steps]
        on: list[Times] = [_no_times() for _ in steps]
        singles: dict[str, list[int]] = {name: [] for name in calls}
        control: list[float] = []
        for step in steps:
            for _ in range(2):
                _run(step)
            step.optimizer.zero_grad()  # else torch warns that memory of before the recording is freed
        began, rounds = time.perf_counter(), 0
        read: tuple[Trace, dict[int, int], list[int]] | None = None
        with contextlib.ExitStack() as stack:
            while rounds < FEWEST_ROUNDS or (
                rounds < MOST_ROUNDS and time.perf_counter() - began < self._seconds
            ):
                profiler = make_profiler()
                if profiler.profile_memory and self._memory is None:
                    self._memory = MemoryCost(steps, programs(), _run)
                    stack.callback(self._memory.close)
                warm = warm_memory(WARM_BYTES)
                profiler.start_trace()
                try:
                    for _ in range(ROUNDS_AT_A_TIME):
                        for number, step in enumerate(steps):
                            self._turn(number, step, off[number], on[number], rounds, control)
                        for name, call in calls.items():
                            work = steps[-1] if name in RANGES else None
                            singles[name].append(self._single(call, work, rounds))
                        rounds += 1
                finally:
                    self._switch(True)
                    self._hooks.remove()
                    profiler.stop_trace()
                if read is None:
                    read = self._read(profiler)
                let_go(profiler)
                del warm
        assert read is not None
        trace, markers, memory_ns = read
        costs = {name: max(median(values), 0) for name, values in singles.items()}
        costs["module"] /= MODULES + 1  # the one that holds them is called too
        input_ns = max(costs["many"] - costs["one"], 0) / (TENSORS - 1)
        inside, before = _where(trace)
        return {
            "event_ns": self._per_event(trace, markers, off, on, {"input": input_ns, **costs}),
            "input_ns": round(input_ns, 1),
            **{f"{kind}_ns": round(costs[kind], 1) for kind in RANGES},
            **self._of_memory(memory_ns, markers, most_ns=costs["nothing"]),
            "inside_ns": round(inside, 1),
            "before_share": round(before, 3),
            "heads": [
                [*key, count, round(mean, 1)]
                for key, (count, mean) in heads(trace).items() if count >= HEADS_KEPT
            ],
            "rounds": rounds,
            "control": round(median(control), 4),
            "versions": {"torch": str(torch.__version__)},
        }  # fmt: skip

    def _turn(
        self, number: int, step: Program, off: Times, on: Times, rounds: int, control: list[float]
    ) -> None:
        """Run a program without and with recording, every other time in the other order.

        What it takes is as in the script: with layer hooks where it is recorded.
        """
        read = rounds < ROUNDS_AT_A_TIME
        for recording in (False, True) if rounds % 2 else (True, False):
            self._set(recording=recording)
            _run(step)
            mark = len(self._windows)
            if recording and read:
                self._windows.append((number, mark))
                with self._range(MARKER_NAME.format(2 * mark)):
                    pass
            times = _run(step)
            if recording and read:
                with self._range(MARKER_NAME.format(2 * mark + 1)):
                    pass
            for name, ns in times.items():
                (on if recording else off)[name].append(ns)
            if not recording:
                control.append(sum(_run(step).values()) / sum(times.values()))
                if self._memory is not None:
                    self._memory.turn(number)

    def _set(self, *, recording: bool) -> None:
        """Record from now on, with layer hooks, or do not."""
        self._switch(recording)
        if recording and not self._hooks.installed:
            self._hooks.install()
        elif not recording:
            self._hooks.remove()

    def _single(self, call: Callable[[], Any], work: Program | None, rounds: int) -> int:
        """Return how much longer a call takes when it is recorded, in ns.

        With `work` it is called once, right behind that work, as in a training step: ranges are
        opened by Python, and what they cost depends on what ran before.
        """
        taken = {}
        repeats = REPEATS if work is None else 1
        for recording in (False, True) if rounds % 2 else (True, False):
            self._set(recording=recording)
            if work is None:
                call()
            else:
                _run(work)
            begin = time.thread_time_ns()
            for _ in range(repeats):
                call()
            taken[recording] = time.thread_time_ns() - begin
        return (taken[True] - taken[False]) // repeats

    def _read(self, profiler: Any) -> tuple[Trace, dict[int, int], list[int]]:
        """Return a trace of the rounds that are read, the times of markers and of memory events, in ns."""
        with TemporaryDirectory(prefix="daydream-benchmark-") as folder:
            path = Path(folder, "profile.json")
            write_profile(profiler, path)
            layers = dict.fromkeys(range(len(self._hooks.modules)), "calibration")
            recording, markers, _ = read_profile(path, layers)
        times = dict(markers)
        if times:
            windows = np.array(sorted(times.values()), np.int64).reshape(-1, 2)
            starts = recording["start_ns"]
            at = np.searchsorted(windows[:, 0], starts, side="right") - 1
            keep = (at >= 0) & (starts <= windows[np.maximum(at, 0), 1])
            keep |= recording.whose_name(lambda name: name == IDLE)
            recording.columns = {name: column[keep] for name, column in recording.columns.items()}
        memory = [] if recording.memory is None else recording.memory["time_ns"].tolist()
        last = int(recording["start_ns"].max(initial=0)) + 1
        return derive(recording, ranges=([("calibration", 0, last)], "markers")), times, memory

    def _of_memory(self, times_ns: list[int], markers: dict[int, int], *, most_ns: float) -> dict[str, float]:
        """Return the cost of an allocation or a free, if they were recorded: no more than an operator's.

        The profiler notes less of it than of an operator without inputs (`most_ns`).
        """
        if self._memory is None:
            return {}
        windows = {number: (markers[2 * mark], markers[2 * mark + 1]) for number, mark in self._windows}
        return {"memory_ns": round(min(self._memory.per_event(times_ns, windows), most_ns), 1)}

    def _per_event(
        self,
        trace: Trace,
        markers: dict[int, int],
        off: list[Times],
        on: list[Times],
        known: Mapping[str, float],
    ) -> dict[str, float]:
        """Return the cost of an operator by class, without its inputs and without that of ranges."""
        rows, of_class = recorded_events(trace)
        start = trace["start_ns"]
        inputs = inputs_of(trace, rows)
        ranges = recorded_ranges(trace)
        cost, events = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0)
        for number, mark in self._windows[: len(off)]:
            window = markers[2 * mark], markers[2 * mark + 1]
            within = (start >= window[0]) & (start <= window[1])
            for which, name in enumerate(CLASSES):
                mine = within[rows] & (of_class == which)
                longer = [a - b for a, b in zip(on[number][name], off[number][name], strict=True)]
                cost[name] += median(longer) - known["input"] * inputs[mine].sum()
                events[name] += int(mine.sum())
            cost["forward"] -= known["module"] * within[ranges["module"]].sum()
            cost["optimizer"] -= known["annotation"]  # around its step; the other one is not timed
        return {name: round(max(float(cost[name]), 0.0) / max(events[name], 1), 1) for name in CLASSES}


def _where(trace: Trace) -> tuple[float, float]:
    """Return how much of an event's cost is in its own duration, in ns, and which part of the rest before it.

    An operator that does nothing shows the first; views, which do nothing but call another, the second.
    """
    names = np.array([*trace.text("name"), ""], object)[trace["name"]]
    idle = trace["duration_ns"][names == IDLE]
    inside = float(np.median(idle)) if len(idle) else 0.0
    start = np.asarray(trace["start_ns"], np.int64)
    end = start + trace["duration_ns"]
    parent = np.asarray(trace["parent"], np.int64)
    inner = np.flatnonzero(parent >= 0)
    inner = inner[np.isin(names[parent[inner]], VIEWS)]
    before = float(np.median(start[inner] - start[parent[inner]])) if len(inner) else 1.0
    after = float(np.median(end[parent[inner]] - end[inner])) if len(inner) else 0.0
    return inside, before / max(before + after, 1.0)


def _no_times() -> Times:
    return {name: [] for name in CLASSES}


def _run(step: Program) -> dict[str, int]:
    """Run a step and return the time of its parts."""
    step.optimizer.zero_grad()
    times = [time.thread_time_ns()]
    loss = step.forward()
    times.append(time.thread_time_ns())
    loss.backward()
    times.append(time.thread_time_ns())
    step.optimizer.step()
    times.append(time.thread_time_ns())
    return dict(zip(CLASSES, np.diff(times).tolist(), strict=True))


def main() -> None:
    """Measure a few times; print the medians, and the spread on stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=4)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found = [measure_profiler_cost(partial(prepared_profiler, memory=True)) for _ in range(options.times)]
    document = {**found[0], "event_ns": {}}
    for kind in CLASSES:
        document["event_ns"][kind] = _median(kind, [one["event_ns"][kind] for one in found])
    for key in ("input_ns", "annotation_ns", "module_ns", "memory_ns", "inside_ns"):
        document[key] = _median(key, [one[key] for one in found])
    print(json.dumps(document))


def _median(what: str, values: list[float]) -> float:
    print(f"{what}: {min(values):g} to {max(values):g}", file=sys.stderr)
    return round(median(values))


class MemoryCost:
    """Runs programs in turns on the thread that is recorded and, with tensors of their own, on another.

    Times are the thread's own: one that was just woken is interrupted less than one that has run on. `run`
    runs a program once.
    """

    def __init__(self, programs: Sequence[Any], others: Sequence[Any], run: Callable[[Any], object]) -> None:
        self._programs, self._others, self._run = programs, others, run
        self._elsewhere = ThreadPoolExecutor(1, initializer=_compute_alone)
        self._longer: list[list[int]] = [[] for _ in programs]  # ns, one a turn

    def turn(self, number: int) -> None:
        """Run a program with memory recorded and without, each right behind itself."""
        here = self._time(self._programs[number])
        self._longer[number].append(here - self._elsewhere.submit(self._time, self._others[number]).result())

    def _time(self, program: Any) -> int:
        self._run(program)
        begin = time.thread_time_ns()
        self._run(program)
        return time.thread_time_ns() - begin

    def per_event(self, times_ns: Sequence[int], windows: Mapping[int, tuple[int, int]]) -> float:
        """Return the cost of one event in ns.

        `times_ns` are those of all events, `windows` the begin and the end of a run of each program.
        """
        times = np.sort(np.array(times_ns, np.int64))
        events = sum(int(np.diff(np.searchsorted(times, window))[0]) for window in windows.values())
        longer = sum(median(self._longer[number]) for number in windows)
        return max(longer, 0) / max(events, 1)

    def close(self) -> None:
        """End the thread."""
        self._elsewhere.shutdown()


def _compute_alone() -> None:
    """Let operators of this thread use no other threads; OpenMP's setting is the thread's own."""
    import torch

    torch.get_num_threads()  # torch sets it when a thread first asks
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).omp_set_num_threads(1)


if __name__ == "__main__":
    main()
