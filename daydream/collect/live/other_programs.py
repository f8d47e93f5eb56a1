"""How much of the machine other programs take: steps that are recorded beside them vary with them.

The system counts the time that each CPU worked and the time that each process did; what is left of the
one without those of this run is others'. Known on Linux; elsewhere nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
WORKING = (
    0,
    1,
    2,
    5,
    6,
    7,
)  # columns of /proc/stat that are no idling: user ... softirq, other machines' (steal)
BUSY = 0.2  # of the CPUs; the system's own services take a few hundredths
LEAST_S = 0.3  # the counts go in hundredths of a second


@dataclass(frozen=True)
class Taken:
    """How many CPUs others took, of how many."""

    cpus: float
    of: int

    @property
    def much(self) -> bool:
        """Whether steps vary with it."""
        return self.cpus > BUSY * self.of

    def __str__(self) -> str:
        return f"other programs take {self.cpus:.1f} of {self.of} CPUs"


@dataclass(frozen=True)
class _Counts:
    at_s: float
    all_s: float  # CPU time of everything
    ours_s: float


class OtherPrograms:
    """Counts what is not this run's: not the process `root` nor any below it."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._counts: list[_Counts] = []

    def look(self) -> None:
        """Begin a span of time."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._counts.append(self._now())

    def taken(self) -> Taken | None:
        """Return what they took since the last `look` that is not too near; None where that is unknown."""
        try:
            now = self._now()
        except (OSError, ValueError, IndexError):
            return None
        for before in reversed(self._counts):
            span = now.at_s - before.at_s
            if span >= LEAST_S:
                others = (now.all_s - before.all_s) - (now.ours_s - before.ours_s)
                return Taken(max(others, 0.0) / span, len(os.sched_getaffinity(0)))
        return None

    def _now(self) -> _Counts:
        lines = (PROC / "stat").read_text().splitlines()  # first: elsewhere than on Linux there is none
        tick = os.sysconf("SC_CLK_TCK")
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = (line.split() for line in lines)
        worked = sum(int(row[1 + column]) for row in rows if row[0] in mine for column in WORKING)
        return _Counts(time.monotonic(), worked / tick, sum(self._times()) / tick)

    def _times(self) -> Iterator[int]:
        """Return the CPU time of each process of this run, with its children that have ended."""
        above, times = {}, {}
        for entry in PROC.iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # it has just ended
                # The name, in brackets, may hold anything; parent and times are the 2nd and the 12th to
                # 15th word behind it (proc_pid_stat(5)).
                words = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                above[int(entry.name)] = int(words[1])
                times[int(entry.name)] = sum(map(int, words[11:15]))
        for process, its_time in times.items():
            parent, steps = process, 0
            while parent not in {self._root, 0, 1} and steps < len(above):
                parent, steps = above.get(parent, 0), steps + 1
            if parent == self._root:
                yield its_time
