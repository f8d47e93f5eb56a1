"""What an emulated GPU makes of a recording: times of the CPU by a model, launches, kernels, copies, allocations.

The program ran on fake tensors, and how long that took says nothing. Its rows keep their order and nesting; each
gets a time of a clock that a CPU model advances, kernels start when they are launched and the one before is over.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Any, NamedTuple

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
NUMBERS = ("start_ns", "duration_ns", "device", "stream", "correlation", "bytes")


class Cpu(NamedTuple):
    """What a CPU takes of rows of a kind, ns: an operator, the Python of a module, of an optimizer; a launch."""

    operator: int
    module: int
    range: int
    launch: int


CPUS = {
    # To steps of MobileNet on an H100 and a small GPT on an H200 whose CPUs launched too slowly.
    "slow": Cpu(6_000, 60_000, 4_000, 6_000),
    "typical": Cpu(3_000, 25_000, 2_000, 4_500),
    "fast": Cpu(1_500, 10_000, 1_000, 2_500),
}


def emulate(recording: Any, markers: list[Any], gpu: Emulation, cpu: str) -> list[Any]:
    """Turn a recording of fake tensors into one of the emulated GPU; return the markers at their new times."""
    if not gpu.calls:
        raise DaydreamError(NOTHING_RAN)
    clock = _Clock(gpu, CPUS[cpu])
    ours = recording.whose_name(lambda name: name == MODE)
    keep = ~recording.is_kind("blocked") & ~ours
    recording.columns = {name: column[keep] for name, column in recording.columns.items()}
    start = np.asarray(recording["start_ns"], np.int64)
    end = start + recording["duration_ns"]
    rows = np.arange(len(start))
    kinds = recording.texts_of("kind", rows)
    called = recording.named(CALL, "annotation")
    numbers = {
        row: int(str(name).rpartition(" ")[2])
        for row, name in zip(
            rows[called].tolist(), recording.texts_of("name", rows[called]), strict=True
        )
    }
    new = np.zeros((2, len(start)), np.int64)
    times = np.concatenate([start, end])
    inner_first = np.concatenate([rows, -rows])
    order = np.lexsort([inner_first, np.repeat([1, 0], len(rows)), times])
    known: list[tuple[int, int]] = []
    around: list[int] = []  # operators that run
    operator_of: dict[int, Call] = {}
    lengths = end - start
    for at in order.tolist():
        row, ends = at % len(rows), at >= len(rows)
        if ends and not lengths[row]:
            continue
        if kinds[row] == "operator" and lengths[row]:
            around[:] = around[:-1] if ends else [*around, row]
        if not ends:
            clock.begin(kinds[row] or "", numbers.get(row))
            if row in numbers and around:
                operator_of[around[-1]] = gpu.calls[numbers[row]]
        new[int(ends), row] = clock.now
        if not lengths[row]:
            new[1, row] = clock.now
        known.append((int(times[at]), clock.now))
    recording.columns["start_ns"] = new[0]
    recording.columns["duration_ns"] = new[1] - new[0]
    _name(recording, operator_of)
    first = int(rows[called][0]) if called.any() else 0
    place = {name: int(recording[name][first]) for name in ("pid", "tid")}
    recording.columns = {name: column[~called] for name, column in recording.columns.items()}
    _append(recording, clock.rows, place)
    recording.memory = clock.memory(**place)
    _tell(recording, gpu, cpu, clock.measured_ns / max(clock.busy_ns, 1))
    olds = [old for old, _ in known]
    return [
        (number, known[max(bisect_right(olds, at) - 1, 0)][1] if known else 0)
        for number, at in markers
    ]


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
    facts = {"read": gpu.read, "compiled": gpu.compiled}
    recording.metadata["emulated"] = {"device": device.name, "cpu": cpu, **facts}
    recording.note(
        f"Emulated: no {device.name} ran this. Its script ran on tensors without values; kernels take what a "
        f"model of the GPU says, launches what one of a {cpu} CPU says, Python outside layers and "
        "loading data take no time."
    )
    if measured:
        recording.note(
            f"Of the time of kernels {measured:.0%} is of operators of nearly these sizes that others measured."
        )
    if gpu.left_out:
        recording.note(f"Not emulated: {'; '.join(gpu.left_out)}.")


class _Clock:
    """The CPU's time and the GPU's, and the rows of what is launched."""

    def __init__(self, gpu: Emulation, cpu: Cpu) -> None:
        self.gpu, self.cpu = gpu, cpu
        self.now = self.free = self.busy_ns = self.measured_ns = 0
        self.rows: list[dict[str, Any]] = []
        self.begun: list[int] = []  # when kernels begin
        self.at: dict[int, int] = {}  # when calls begin

    def begin(self, kind: str, number: int | None) -> None:
        """Take in that a row begins."""
        if number is not None:
            self.call(number, self.gpu.calls[number])
        elif kind == "operator":
            self.now += self.cpu.operator
        elif kind == "module":
            self.now += self.cpu.module
        else:
            self.now += self.cpu.range if kind == "annotation" else 0

    def call(self, number: int, call: Call) -> None:
        """Launch what a call runs; wait for a copy to the CPU."""
        self.at[number] = self.now
        for kernel in kernels_of(call, self.gpu.device):
            if len(self.begun) >= QUEUE:
                self.now = max(self.now, self.begun[-QUEUE])
            begin = max(self.now + LATENCY_NS, self.free)
            self.free = begin + kernel.duration_ns
            self.busy_ns += kernel.duration_ns
            self.measured_ns += kernel.duration_ns * kernel.measured
            self.begun.append(begin)
            copies = kernel.kind == "memcpy"
            launch = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
            number = len(self.begun)
            self.add("runtime", launch, self.now, self.cpu.launch, correlation=number)
            row = {"correlation": number, "device": 0, "stream": STREAM}
            row |= {"bytes": call.nbytes // 2} if copies else {}
            dtype = next(iter(call.dtypes), None)
            self.add(kernel.kind, kernel.name, begin, kernel.duration_ns, **row, dtype=dtype)
            self.now += self.cpu.launch
        if call.copies in ("DtoH", "sync"):
            name = "cudaStreamSynchronize" if call.copies == "DtoH" else "cudaDeviceSynchronize"
            until = max(self.free, self.now)
            self.add("runtime", name, self.now, until - self.now)
            self.now = until

    def add(self, kind: str, name: str, start: int, duration: int, **others: Any) -> None:
        """Add a row."""
        times = {"start_ns": start, "duration_ns": duration}
        self.rows.append({"kind": kind, "name": name, **times, **others})

    def memory(self, **thread: int) -> MemoryEvents | None:
        """Return what was allocated and freed while calls were noted, on this thread (`pid`, `tid`)."""
        events = self.gpu.memory
        if not events:
            return None
        number, nbytes, key = np.array(events, np.int64).T
        last = 0
        times = [last := self.at.get(one, last) for one in range(int(number.max()) + 1)]
        held = self.gpu.held_bytes - nbytes.sum() + np.cumsum(nbytes)
        return MemoryEvents(
            {
                "time_ns": np.array(times, np.int64)[number],
                "device": np.zeros(len(number), np.int64),
                "address": key,
                "bytes": nbytes,
                "allocated_bytes": held,
                **{name: np.full(len(number), one, np.int64) for name, one in thread.items()},
            }
        )


def _append(recording: Any, rows: list[dict[str, Any]], place: dict[str, int]) -> None:
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
    on_cpu = there[np.array([row["kind"] == "runtime" for row in rows], bool)]
    for name, number in place.items():
        recording.set_numbers(name, on_cpu, np.full(len(on_cpu), number))
    vars(recording).pop("threads", None)
