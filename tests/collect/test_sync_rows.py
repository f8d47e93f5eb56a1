"""Waits that an earlier `collect` wrote as kernels are waits again when the trace is read."""

from __future__ import annotations

import json

import numpy as np

import daydream
from daydream.trace.trace import Trace


def as_kernels(trace: Trace) -> Trace:
    """Return the trace as `collect` wrote it up to November 2026 with torch 2.11: no row is a sync."""
    kinds = trace.texts["kind"]
    waits = trace["kind"] == kinds.index("sync")
    changed = {"kind": np.where(waits, kinds.index("kernel"), trace["kind"]).astype(trace["kind"].dtype)}
    for name in ("op", "phase"):
        changed[name] = np.where(waits, 0, trace[name]).astype(trace[name].dtype)
    return Trace({**trace.columns, **changed}, trace.texts, trace.metadata)


def test_a_wait_that_was_written_as_a_kernel_is_a_wait(tmp_path):
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 1, "tid": 1, "ts": 0, "dur": 100},
        {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1,
            "dur": 2, "args": {"correlation": 1},
        },
        {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 1, "tid": 1, "ts": 10,
            "dur": 80, "args": {"correlation": 2},
        },
        {
            "ph": "X", "cat": "kernel", "name": "work", "pid": 0, "tid": 7, "ts": 5, "dur": 80,
            "args": {"correlation": 1, "stream": 7, "device": 0},
        },
        {
            "ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": 11, "dur": 78,
            "args": {"correlation": 2, "stream": 7, "device": 0},
        },
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    right = daydream.load(path)
    assert right.is_kind("sync").sum() == 1
    as_kernels(right).save(tmp_path / "wrong.parquet")

    found = daydream.load(tmp_path / "wrong.parquet")

    assert found.is_kind("sync").tolist() == right.is_kind("sync").tolist()
    for name in ("op", "phase", "stream", "start_ns", "duration_ns"):
        assert found.values(name, range(len(found))) == right.values(name, range(len(right)))
