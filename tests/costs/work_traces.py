"""Traces of a few operator calls, written down call by call, for tests of what they cost."""

import json
from dataclasses import dataclass, field
from typing import Any

from graph.small_traces import columns_of, dims

from daydream.graph.build import build
from daydream.trace.trace import Trace

V100 = "Tesla V100-SXM2-16GB"
CALL_NS = 20_000


@dataclass
class Kernel:
    name: str
    duration_ns: int
    grid: str | None = None


@dataclass
class Call:
    """An operator call, what it calls and the kernels it launches itself, maybe as `gemm 900, add 40`.

    `tail_ns` is its own CPU time.
    """

    op: str
    shapes: list[Any] | str
    kernels: list[Kernel] | str = field(default_factory=list)
    inner: list = field(default_factory=list)
    dtype: str | None = "float32"
    tail_ns: int = 0

    def __post_init__(self):
        if isinstance(self.kernels, str):
            named = (kernel.rsplit(" ", 1) for kernel in self.kernels.split(", "))
            self.kernels = [Kernel(name, int(ns)) for name, ns in named]


class _Recorder:
    def __init__(self):
        self.rows = []
        self.kernels = []
        self.clock = self.device_clock = 0

    def record(self, call, parent=-1):
        row = len(self.rows)
        self.rows.append(
            {
                "kind": "operator", "name": call.op, "op": call.op, "pid": 1, "tid": 1, "parent": parent,
                "start_ns": self.clock, "shapes": json.dumps(dims(call.shapes), separators=(",", ":")),
                "dtype": call.dtype,
            }
        )  # fmt: skip
        begun = self.clock
        for inner in call.inner:
            self.record(inner, row)
        for kernel in call.kernels:
            correlation = len(self.kernels) + 1
            self.rows.append(
                {
                    "kind": "runtime", "name": "cudaLaunchKernel", "op": call.op, "pid": 1, "tid": 1,
                    "parent": row, "start_ns": self.clock, "duration_ns": CALL_NS // 4,
                    "correlation": correlation,
                }
            )  # fmt: skip
            self.device_clock = max(self.device_clock, self.clock)
            launch = {"op": call.op, "parent": len(self.rows) - 1}
            self.run(kernel, correlation=correlation, dtype=call.dtype, **launch)
            self.clock += CALL_NS // 4
        self.clock += call.tail_ns or (0 if call.inner or call.kernels else CALL_NS)
        self.rows[row]["duration_ns"] = self.clock - begun

    def run(self, kernel, **columns):
        """Run a kernel behind the one before."""
        self.kernels.append(
            {
                "kind": "kernel", "name": kernel.name, "device": 0, "stream": 7, "grid": kernel.grid,
                "block": "256,1,1", "start_ns": self.device_clock, "duration_ns": kernel.duration_ns,
                **columns,
            }
        )  # fmt: skip
        self.device_clock += kernel.duration_ns


def trace_of(*calls, device=V100, orphans=None):
    """Return the trace of these calls; `orphans` are kernels whose launch was not recorded."""
    recorder = _Recorder()
    for call in calls:
        recorder.record(call)
    for kernel in orphans or []:
        recorder.run(kernel, correlation=900, dtype="float32", parent=-1)
    rows = recorder.rows + recorder.kernels
    columns, texts = columns_of(rows)
    devices = [{"id": 0, "name": device, "multiprocessors": 80}] if device else []
    return Trace(columns, texts, {"steps": [], "vendor": "cuda" if device else "cpu", "devices": devices})


def graph_of(*calls, device=V100, orphans=None):
    """Return the graph of these calls."""
    return build(trace_of(*calls, device=device, orphans=orphans))
