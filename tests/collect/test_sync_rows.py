"""Waits that an earlier `collect` wrote as kernels are waits again when the trace is read."""

import json

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import daydream
from daydream.trace.trace import Trace


def as_kernels(trace):
    """Return the trace as `collect` wrote it up to November 2026 with torch 2.11: no row is a sync."""
    kinds = trace.texts["kind"]
    waits = trace["kind"] == kinds.index("sync")
    changed = {"kind": np.where(waits, kinds.index("kernel"), trace["kind"]).astype(trace["kind"].dtype)}
    for name in ("op", "phase"):
        changed[name] = np.where(waits, 0, trace[name]).astype(trace[name].dtype)
    return Trace({**trace.columns, **changed}, trace.texts, trace.metadata)


def test_a_wait_that_was_written_as_a_kernel_is_a_wait(tmp_path):
    on_device = {"stream": 7, "device": 0}
    rows = [
        {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        for category, name, pid, tid, ts, dur, args in (
            ("cpu_op", "aten::item", 1, 1, 0, 100, {}),
            ("cuda_runtime", "cudaLaunchKernel", 1, 1, 1, 2, {"correlation": 1}),
            ("cuda_runtime", "cudaStreamSynchronize", 1, 1, 10, 80, {"correlation": 2}),
            ("kernel", "work", 0, 7, 5, 80, {"correlation": 1, **on_device}),
            ("cuda_sync", "Stream Sync", 0, 7, 11, 78, {"correlation": 2, **on_device}),
        )
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    right = daydream.load(path)
    assert right.is_kind("sync").sum() == 1
    table = pa.Table.from_batches([as_kernels(right).to_arrow()])
    about = {b"daydream": json.dumps({**right.metadata, "schema_version": 1})}
    parquet.write_table(table.replace_schema_metadata(about), tmp_path / "wrong.parquet")

    found = daydream.load(tmp_path / "wrong.parquet")

    assert found.is_kind("sync").tolist() == right.is_kind("sync").tolist()
    for name in ("op", "phase", "stream", "start_ns", "duration_ns"):
        assert found.values(name, range(len(found))) == right.values(name, range(len(right)))
