"""What the recording of an allocation or a free costs: the same steps with it and without, in turns.

It cannot be switched while a profiler runs, as the recording of operators can. But it is of the thread that
started the profiler alone: on another thread nothing is recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np


class MemoryCost:
    """Runs programs in turns on the thread that is recorded and, with tensors of their own, on another.

    Times are the thread's own: one that was just woken is interrupted less than one that has run on. `run`
    runs a program once.
    """

    def __init__(self, programs: Sequence[Any], others: Sequence[Any], run: Callable[[Any], object]) -> None:
        self._programs, self._others, self._run = programs, others, run
        self._elsewhere = ThreadPoolExecutor(1, initializer=_compute_alone)
        self._longer: list[list[int]] = [[] for _ in programs]  # ns, one a turn

    def turn(self, number: int) -> None:
        """Run a program with memory recorded and without, each right behind itself."""
        here = self._time(self._programs[number])
        self._longer[number].append(here - self._elsewhere.submit(self._time, self._others[number]).result())

    def _time(self, program: Any) -> int:
        self._run(program)
        begin = time.thread_time_ns()
        self._run(program)
        return time.thread_time_ns() - begin

    def per_event(self, times_ns: Sequence[int], windows: Mapping[int, tuple[int, int]]) -> float:
        """Return the cost of one event in ns.

        `times_ns` are those of all events, `windows` the begin and the end of a run of each program.
        """
        times = np.sort(np.array(times_ns, np.int64))
        events = sum(int(np.diff(np.searchsorted(times, window))[0]) for window in windows.values())
        longer = sum(median(self._longer[number]) for number in windows)
        return max(longer, 0) / max(events, 1)

    def close(self) -> None:
        """End the thread."""
        self._elsewhere.shutdown()


def _compute_alone() -> None:
    """Let operators of this thread use no other threads; OpenMP's setting is the thread's own."""
    import torch

    torch.get_num_threads()  # torch sets it when a thread first asks
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).omp_set_num_threads(1)
