"""What an emulated GPU makes of a recording: times of the CPU by a model, launches, kernels, copies, allocations.

The program ran on fake tensors, and how long that took says nothing. Its rows keep their order and nesting; each
gets a time of a clock that a CPU model advances, kernels start when they are launched and the one before is over.
"""

from __future__ import annotations

import atexit
import json
import warnings
from functools import partial
from typing import Any

import numpy as np

from daydream.collect.live.capture import COMPLETIONS
from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import FIELDS
from daydream.world import explain_errors, write
from daydream.world.cpu import CPU_NS
from daydream.world.emulate import Emulation, emulated
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


def emulate_script(how: dict[str, Any]) -> None:
    """Emulate a GPU, `device`, with a CPU, `cpu`, for the rest of this process."""
    explain_errors()
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    whole = emulated(how["device"])
    COMPLETIONS.append(partial(emulate, gpu=whole.__enter__(), cpu=how["cpu"]))
    atexit.register(whole.__exit__, None, None, None)


def emulate(recording: Any, markers: list[Any], gpu: Emulation, cpu: dict[str, Any]) -> list[Any]:
    """Turn a recording of fake tensors into one of the emulated GPU; return the markers at their new times.

    `cpu` is one of `daydream.world.cpu`.
    """
    if not gpu.calls:
        raise DaydreamError(NOTHING_RAN)
    _keep(recording, ~recording.is_kind("blocked"))
    count = len(recording)
    rows = np.arange(count)
    start, lengths = (np.asarray(recording[name], np.int64) for name in ("start_ns", "duration_ns"))
    kinds, names = (recording.texts_of(name, rows) for name in ("kind", "name"))
    called = recording.named(CALL, "annotation")
    place = {name: int(recording[name][called.argmax()]) for name in ("pid", "tid")}
    clock = _Clock(gpu, {kind: round(ns * cpu["times"]) for kind, ns in CPU_NS.items()}, place)
    # Begins, then ends; of those at one time ends come first, inner ones before outer ones.
    times = np.concatenate([start, start + lengths])
    order = np.lexsort([np.concatenate([rows, -rows]), np.arange(2 * count) < count, times])
    new = np.zeros(2 * count, np.int64)
    around: list[int] = []  # operators that run
    written: dict[int, dict[str, Any]] = {}  # values by row and column
    for at in order.tolist():
        row = at % count
        operates = lengths[row] > 0 and kinds[row] == "operator"
        if at >= count:
            if operates:
                around.pop()
            new[at] = clock.now
            continue
        if operates:
            around.append(row)
        if called[row]:
            number = int(str(names[row]).split()[1])
            inner, *outer = around[-1:-3:-1] or [-1]
            if inner >= 0 and names[inner] == MODE:
                if outer and names[outer[0]] == gpu.calls[number].name:
                    inner = outer[0]
                else:  # an operator without a range of its own
                    clock.now += clock.cpu["operator"]
            if inner >= 0:
                call = gpu.calls[number]
                written[inner] = {
                    "name": call.name,
                    "shapes": json.dumps(call.arguments),
                    "dtype": next(iter(call.dtypes), None),
                }
            clock.call(number)
        elif names[row] != MODE:
            clock.now += clock.cpu.get(kinds[row] or "", 0)
        new[at] = new[at + count] = clock.now
    recording.columns["start_ns"] = new[:count]
    recording.columns["duration_ns"] = new[count:] - new[:count]
    _make_room(recording, len(clock.rows))
    write(recording, {**written, **dict(enumerate(clock.rows, count))})
    _keep(
        recording,
        ~np.pad(called, (0, len(clock.rows))) & ~recording.whose_name(lambda name: name == MODE),
    )
    vars(recording).pop("threads", None)
    recording.memory = clock.memory()
    _tell(recording, gpu, cpu, clock.measured_ns / max(clock.busy_ns, 1))
    news = new[order]
    after = np.searchsorted(times[order], [at for _, at in markers], side="right")
    return [
        (number, int(news[max(at - 1, 0)]))
        for (number, _), at in zip(markers, after.tolist(), strict=True)
    ]


def _keep(recording: Any, kept: np.ndarray) -> None:
    recording.keep(kept)


def _make_room(recording: Any, count: int) -> None:
    """Add empty rows behind the others."""
    for name, column in recording.columns.items():
        null = FIELDS[name].null
        behind = np.full(count, null, np.min_scalar_type(null))
        recording.columns[name] = np.concatenate([column, behind])


def _tell(recording: Any, gpu: Emulation, cpu: dict[str, Any], measured: float) -> None:
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
        "cpu": cpu["cpu"],
        "other_cpus": cpu["other_cpus"],
        "read": gpu.read,
        "compiled": gpu.compiled,
    }
    recording.note(
        f"Emulated: no {device.name} ran this. Its script ran on tensors without values; kernels take what a "
        f"model of the GPU says, launches what one of a {cpu['cpu']} CPU says, Python outside layers "
        "and loading data take no time. Intervals of steps that wait for the CPU cover others that it may be."
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
        self.at[number] = self.now
        for kernel in kernels_of(call, self.gpu.device):
            took = self.cpu["launch"]
            if len(self.begun) >= QUEUE:  # the launch returns when there is a place
                took += max(self.begun[-QUEUE] - self.now, 0)
            begin = max(self.now + LATENCY_NS, self.free)
            self.free = begin + kernel.duration_ns
            self.busy_ns += kernel.duration_ns
            self.measured_ns += kernel.duration_ns * kernel.measured
            self.begun.append(begin)
            row = {"correlation": len(self.begun)}
            on_gpu = {"device": 0, "stream": STREAM, "dtype": next(iter(call.dtypes), None)}
            launch = "cudaLaunchKernel"
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
