"""Work that a GPU counted: instruction counters of a profiler, where a trace has them.

They stand in `trace.metadata["counters"]`: a list of `{"name": kernel, "flop": int or None, "bytes": int or
None}` in launch order. The n-th kernel of a name has the n-th entry of that name, if there are as
many of both. `kineto_counters.py` reads such a list from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace


def counted_work(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return FLOP and bytes that were counted for each row, -1 where nothing was."""
    flop, nbytes = np.full((2, len(trace)), UNKNOWN, np.int64)
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in trace.metadata.get("counters") or []:
        entries.setdefault(entry["name"], []).append(entry)
    if not entries:
        return flop, nbytes
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]  # numbered as they are launched
    code_of = {text: code for code, text in enumerate(trace.text("name"))}
    for name, counted in entries.items():
        mine = rows[trace["name"][rows] == code_of[name]] if name in code_of else rows[:0]
        if len(mine) == len(counted):
            for column, key in ((flop, "flop"), (nbytes, "bytes")):
                column[mine] = [UNKNOWN if one.get(key) is None else one[key] for one in counted]
    return flop, nbytes
