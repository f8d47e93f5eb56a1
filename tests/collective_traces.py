"""Traces of collectives and nothing else, small enough to write down; times in microseconds."""

import numpy as np

from daydream import Trace
from daydream.trace.schema import FIELDS


def collective(
    start,
    end,
    nbytes=4096,
    *,
    rank=0,
    operation="all_reduce",
    **more,
):
    """Return the row of one rank's kernel."""
    return {
        "kind": "collective", "name": f"nccl_{operation}", "collective": operation, "bytes": nbytes,
        "rank": rank, "device": 0, "stream": 7, "start_ns": round(1000 * start),
        "duration_ns": round(1000 * (end - start)), **more,
    }  # fmt: skip


def trace_of(*rows, **metadata):
    """Return a trace of these rows, of each rank in order of start."""
    listed = sorted(rows, key=lambda row: (row["rank"], row["start_ns"]))
    columns, texts = {}, {}
    for name in {name for row in listed for name in row}:
        values = [row.get(name) for row in listed]
        if FIELDS[name].type == "text":
            texts[name] = sorted({value for value in values if value is not None})
            columns[name] = np.array(
                [texts[name].index(v) if v is not None else -1 for v in values], np.int32
            )
        else:
            columns[name] = np.array([FIELDS[name].null if v is None else v for v in values], np.int64)
    return Trace(columns, texts, {"steps": [], "vendor": "cuda", "step_source": "none", **metadata})
