"""What an emulated GPU makes of a recording: times of the CPU by a model, launches, kernels, copies, allocations.

The program ran on fake tensors, and how long that took says nothing. Its rows keep their order and nesting; each
gets a time of a clock that a CPU model advances, kernels start when they are launched and the one before is over.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import FIELDS
from daydream.world.emulate import Call, Emulation
from daydream.world.emulate_costs import kernels_of

CALL = regex(r"^emulated \d+$")
MODE = "PythonDispatchMode"  # what torch calls an operator without a range of its own
STREAM = 7  # torch's default stream, as CUPTI numbers it
LATENCY_NS = 2_000  # from a launch's begin to its kernel's
NOTHING_RAN = (
    'the recorded steps ran nothing on the emulated GPU: does the script move its model and data to "cuda"?\n'
    "A script for the CPU is recorded as it is: leave --emulate out."
)
QUEUE = 1_024  # kernels that are launched and have not begun, at most
NUMBERS = ("start_ns", "duration_ns", "device", "stream", "correlation", "bytes", "pid", "tid")
# What a CPU takes, ns: of an operator, of the Python of a module and of an optimizer, of a launch.
CPUS = {
    # To steps of MobileNet on an H100 and a small GPT on an H200 whose CPUs launched too slowly.
    "slow": {"operator": 6_000, "module": 60_000, "annotation": 4_000, "launch": 6_000},
    "typical": {"operator": 3_000, "module": 25_000, "annotation": 2_000, "launch": 4_500},
    "fast": {"operator": 1_500, "module": 10_000, "annotation": 1_000, "launch": 2_500},
}


def emulate(recording: Any, markers: list[Any], gpu: Emulation, cpu: str) -> list[Any]:
    """Turn a recording of fake tensors into one of the emulated GPU; return the markers at their new times."""
    if not gpu.calls:
        raise DaydreamError(NOTHING_RAN)
    ours = recording.whose_name(lambda name: name == MODE)
    _keep(recording, ~recording.is_kind("blocked") & ~ours)
    count = len(recording)
    start = np.asarray(recording["start_ns"], np.int64)
    lengths = np.asarray(recording["duration_ns"], np.int64)
    rows = np.arange(count)
    kinds = recording.texts_of("kind", rows)
    called = recording.named(CALL, "annotation")
    calls = rows[called].tolist()
    names = recording.texts_of("name", calls)
    numbers = {
        row: int(str(name).rpartition(" ")[2]) for row, name in zip(calls, names, strict=True)
    }
    first = calls[0] if calls else 0
    place = {name: int(recording[name][first]) for name in ("pid", "tid")}
    clock = _Clock(gpu, CPUS[cpu], place)
    # Begins, then ends; of those at one time ends come first, inner ones before outer ones.
    times = np.concatenate([start, start + lengths])
    order = np.lexsort([np.concatenate([rows, -rows]), np.arange(2 * count) < count, times])
    new = np.zeros(2 * count, np.int64)
    around: list[int] = []  # operators that run
    operator_of: dict[int, Call] = {}
    for at in order.tolist():
        row = at % count
        spans = lengths[row] > 0
        operates = spans and kinds[row] == "operator"
        if at >= count:
            if operates:
                around.pop()
            if spans:
                new[at] = clock.now
            continue
        if operates:
            around.append(row)
        number = numbers.get(row)
        if number is None:
            clock.now += clock.cpu.get(kinds[row] or "", 0)
        else:
            clock.call(number)
            if around:
                operator_of[around[-1]] = gpu.calls[number]
        new[at] = new[at + count] = clock.now
    recording.columns["start_ns"] = new[:count]
    recording.columns["duration_ns"] = new[count:] - new[:count]
    _name(recording, operator_of)
    _keep(recording, ~called)
    _append(recording, clock.rows)
    recording.memory = clock.memory()
    _tell(recording, gpu, cpu, clock.measured_ns / max(clock.busy_ns, 1))
    olds, news = times[order], new[order]
    after = np.searchsorted(olds, [at for _, at in markers], side="right")
    return [
        (number, int(news[max(at - 1, 0)]) if count else 0)
        for (number, _), at in zip(markers, after.tolist(), strict=True)
    ]


def _keep(recording: Any, kept: np.ndarray) -> None:
    recording.columns = {name: column[kept] for name, column in recording.columns.items()}


def _name(recording: Any, operator_of: dict[int, Call]) -> None:
    """Give operators of the emulated GPU, by their rows, sizes and types of what they were called with."""
    holders = np.array([*operator_of], np.int64)
    calls = np.array([*operator_of.values()], object)
    recording.set_texts("shapes", holders, [json.dumps(call.arguments) for call in calls])
    recording.set_texts("dtype", holders, [next(iter(call.dtypes), None) for call in calls])
    nameless = np.array([name == MODE for name in recording.texts_of("name", holders)], bool)
    recording.set_texts("name", holders[nameless], [call.name for call in calls[nameless]])


def _tell(recording: Any, gpu: Emulation, cpu: str, measured: float) -> None:
    """Let a recording say that it is emulated, what is not, and which part of its kernels others measured."""
    device = gpu.device
    recording.metadata["devices"] = [
        {
            "id": 0,
            "name": f"NVIDIA {device.name}",
            "memory_bytes": device.memory * 10**9,
            "multiprocessors": device.units,
        }
    ]
    recording.metadata["emulated"] = {
        "device": device.name,
        "cpu": cpu,
        "read": gpu.read,
        "compiled": gpu.compiled,
    }
    recording.note(
        f"Emulated: no {device.name} ran this. Its script ran on tensors without values; kernels take what a "
        f"model of the GPU says, launches what one of a {cpu} CPU says, Python outside layers and "
        "loading data take no time. A step that waits for its CPU took up to twice as long on slow ones, outside "
        "the interval: ask with each --cpu."
    )
    if measured:
        recording.note(
            f"Of the time of kernels {measured:.0%} is of operators of nearly these sizes that others measured."
        )
    if gpu.left_out:
        recording.note(f"Not emulated: {'; '.join(gpu.left_out)}.")


class _Clock:
    """The CPU's time and the GPU's, and the rows of what is launched."""

    def __init__(self, gpu: Emulation, cpu: dict[str, int], place: dict[str, int]) -> None:
        self.gpu = gpu
        self.cpu = cpu
        self.place = place
        self.now = self.free = self.busy_ns = self.measured_ns = 0
        self.rows: list[dict[str, Any]] = []
        self.begun: list[int] = []  # when kernels begin
        self.at: dict[int, int] = {}  # when calls begin

    def call(self, number: int) -> None:
        """Launch what a call runs; wait for a copy to the CPU."""
        call = self.gpu.calls[number]
        took = self.cpu["launch"]
        self.at[number] = self.now
        for kernel in kernels_of(call, self.gpu.device):
            if len(self.begun) >= QUEUE:
                self.now = max(self.now, self.begun[-QUEUE])
            begin = max(self.now + LATENCY_NS, self.free)
            self.free = begin + kernel.duration_ns
            self.busy_ns += kernel.duration_ns
            self.measured_ns += kernel.duration_ns * kernel.measured
            self.begun.append(begin)
            row = {"correlation": len(self.begun)}
            launch = "cudaLaunchKernel"
            on_gpu = {"device": 0, "stream": STREAM, "dtype": next(iter(call.dtypes), None)}
            if kernel.kind == "memcpy":
                launch = "cudaMemcpyAsync"
                on_gpu["bytes"] = call.nbytes // 2
            self.add("runtime", launch, self.now, took, **row, **self.place)
            self.add(kernel.kind, kernel.name, begin, kernel.duration_ns, **row, **on_gpu)
            self.now += took
        if call.copies in ("DtoH", "sync"):
            name = "cudaStreamSynchronize" if call.copies == "DtoH" else "cudaDeviceSynchronize"
            until = max(self.free, self.now)
            self.add("runtime", name, self.now, until - self.now, **self.place)
            self.now = until

    def add(self, kind: str, name: str, start: int, duration: int, **others: Any) -> None:
        """Add a row."""
        times = {"start_ns": start, "duration_ns": duration}
        self.rows.append({"kind": kind, "name": name, **times, **others})

    def memory(self) -> MemoryEvents | None:
        """Return what was allocated and freed while calls were noted."""
        events = self.gpu.memory
        if not events:
            return None
        number, nbytes, key = np.array(events, np.int64).T
        last = 0
        times = [last := self.at.get(one, last) for one in range(int(number.max()) + 1)]
        held = self.gpu.held_bytes - nbytes.sum() + np.cumsum(nbytes)
        same = {"device": 0, **self.place}
        return MemoryEvents(
            {
                "time_ns": np.array(times, np.int64)[number],
                "address": key,
                "bytes": nbytes,
                "allocated_bytes": held,
                **{name: np.full(len(number), one, np.int64) for name, one in same.items()},
            }
        )


def _append(recording: Any, rows: list[dict[str, Any]]) -> None:
    """Add rows of launches and of the GPU behind the others."""
    before = len(recording)
    for name, column in recording.columns.items():
        null = FIELDS[name].null
        behind = np.full(len(rows), null, np.min_scalar_type(null))
        recording.columns[name] = np.concatenate([column, behind])
    there = np.arange(before, before + len(rows))
    for name in ("kind", "name", "dtype"):
        recording.set_texts(name, there, [row.get(name) for row in rows])
    for name in NUMBERS:
        found = np.array([row.get(name, FIELDS[name].null) for row in rows], np.int64)
        recording.set_numbers(name, there, found)
    vars(recording).pop("threads", None)
