"""Captures: calls that a CUDA (or HIP) graph records instead of launching their work.

Between the begin and the end of a stream's capture a launch call puts a node into a graph and nothing on the
device; the work runs when the graph is replayed. Such a call has lost no device work.
"""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.lazy import regex

BEGIN = regex(r"StreamBeginCapture")
END = regex(r"StreamEndCapture")


def in_capture(recording: Recording) -> np.ndarray:
    """Return a mask of the rows that begin during a capture, on the thread that began it.

    A capture whose end was not recorded reaches to the end of its thread, one whose begin was not recorded
    from the begin of it.
    """
    inside = np.zeros(len(recording), bool)
    runtime = recording.is_kind("runtime")
    marks = np.flatnonzero(runtime & (recording.named(BEGIN, "runtime") | recording.named(END, "runtime")))
    if not len(marks):
        return inside
    threads, start = recording.threads, recording["start_ns"]
    begins = recording.named(BEGIN, "runtime")
    for thread in np.unique(threads[marks]).tolist():
        mine = marks[threads[marks] == thread]
        mine = mine[np.argsort(start[mine], kind="stable")]
        rows = np.flatnonzero(runtime & (threads == thread))
        before = np.searchsorted(start[mine], start[rows], side="right") - 1
        open_ = np.where(before >= 0, begins[mine][before], ~begins[mine[0]])
        inside[rows[open_]] = True
    return inside
