"""How long threads ran, read now and then: a pause longer than that was time off the CPU.

What a thread waits for a CPU counts as if it ran: a machine of its own would have given it one.
The system counts both for each thread. Known on Linux; elsewhere nothing is recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np

from daydream.trace.schema import BY_CLOCK, FIELDS, Columns, Texts

THREADS = "/proc/self/task"
SHARE = 100  # looks take at most this part of the time: 0.05 ms each where 20 threads sleep
Look = tuple[int, dict[int, int]]


class CpuTimes:
    """When it was looked, in ns since 1970, and how long each thread had run by then or been ready, in ns."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._known: dict[int, tuple[int, int]] = {}  # CPU time of each thread, and that with its delays
        self._since_ns = time.perf_counter_ns()
        self._spent_ns = 0

    def look(self) -> None:
        """Read the times of each thread; does nothing where looks took too much of the time so far."""
        if SHARE * self._spent_ns > time.perf_counter_ns() - self._since_ns:
            return
        began = time.thread_time_ns()
        at = time.time_ns()
        known = self._known
        with suppress(OSError, ValueError, IndexError):
            for thread in map(int, os.listdir(THREADS)):  # noqa: PTH208 - paths take longer
                ran = time.clock_gettime_ns(~thread << 3 | 6)  # the clock of a thread, to Linux
                if known.get(thread, (-1, 0))[0] != ran:
                    known[thread] = ran, ran + delay_ns(thread)
            self.looks.append((at, {thread: ready for thread, (_, ready) in known.items()}))
        self._spent_ns += time.thread_time_ns() - began


def delay_ns(thread: int) -> int:
    """Return how long a thread of this process has been ready and waited for a CPU, in ns."""
    with open(f"{THREADS}/{thread}/schedstat", "rb", 0) as file:
        return int(file.read().split()[1])


def add_cpu_times(
    columns: Columns,
    texts: Texts,
    looks: Sequence[Look],
) -> None:
    """Add a row of kind `blocked` for each thread between two looks, with its CPU time."""
    spans = [
        (at, until - at, thread, used - before[thread])
        for (at, before), (until, after) in pairwise(looks)
        for thread, used in after.items()
        if used >= before.get(thread, used + 1)
    ]
    if not spans:
        return
    given = dict(zip(("start_ns", "duration_ns", "tid", "cpu_ns"), np.array(spans).T, strict=True))
    given |= {
        "pid": np.full(len(spans), os.getpid()),
        "kind": np.full(len(spans), texts["kind"].index("blocked")),
        "name": np.full(len(spans), len(texts["name"])),
    }
    texts["name"].append(BY_CLOCK)
    columns["cpu_ns"] = np.full(len(columns["kind"]), FIELDS["cpu_ns"].null)
    for name, column in columns.items():
        columns[name] = np.append(column, given.get(name, np.full(len(spans), FIELDS[name].null)))
