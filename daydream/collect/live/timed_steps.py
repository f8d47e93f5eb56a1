"""Durations of steps that run without a profiler: as they are, and in blocks with a change and without.

    round 1   base   again  changed      `again` is the unchanged step once more: the A/A control
    round 2   changed again  base        every other round backwards: drift hits all alike

A machine's speed drifts by more than many changes give, so blocks of few steps take turns, and
only blocks of one round are compared. The first step of a block runs on what the other one left
behind and does not count; nor does the second one with a tool, which looks at all operators in the
first and only then settles. A script runs ahead of its device, so that is waited for where the
steps that count begin and where they end: what is measured is their mean. Blocks end after a number
of steps, not after a time, so that ranks which meet in collectives make the change at the same step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import fmean
from typing import Any

BASE = "base"
AGAIN = "again"
CHANGED = "changed"
WARM_UP = (
    3  # steps with the change before the first round: what it builds on first use does not count
)


def settle_device() -> bool:
    """Wait for the work that was launched on the device; return whether this process uses one."""
    torch: Any = sys.modules["torch"]
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_available() and device.is_initialized():
            device.synchronize()
            return True
    return False


class UnprofiledSteps:
    """Takes the time at every end of a step until `wanted` ordinary steps are known.

    The first step runs on cold caches and is left out; so are steps without an update. `settle` waits for
    the device and returns whether there is one. A script runs ahead of it, and catches up where it reads a
    loss: when its steps end then says nothing of each. So the device is waited for behind the first step
    and the last one alone, and each step has its share of the time between.
    """

    def __init__(
        self,
        wanted: int,
        clock: Callable[[], int] = time.perf_counter_ns,
        settle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._wanted = wanted
        self._clock = clock
        self._settle = settle
        self._times: list[int] = []
        self._counts = False  # whether the step that runs now does
        self._warm = False  # whether a step is over
        self._on_device = False
        self._began = clock()

    @property
    def enough(self) -> bool:
        """Whether as many are known as were wanted."""
        return len(self._times) >= self._wanted

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        self._counts = False

    def end_step(self) -> None:
        """Take the time."""
        last = self._counts and len(self._times) + 1 >= self._wanted
        if not self._warm or last:
            self._on_device = self._settle()
        now = self._clock()
        if self._counts:
            self._times.append(now - self._began)
        self._began = now
        self._counts = self._warm = True

    def durations_ns(self, hooks_ns: int = 0) -> list[int]:
        """Return the durations of the ordinary steps without our hooks'; with a device, their mean for each.

        A device works while the hooks run, so there they are not taken out.
        """
        if self._on_device and self._times:
            return [round(fmean(self._times))] * len(self._times)
        return [max(time - hooks_ns, 0) for time in self._times]


def steps_needed(rounds: int, block_steps: int) -> int:
    """Return how many steps it takes to make and undo a change so often; a block's first does not count."""
    return WARM_UP + 1 + 3 * rounds * (block_steps + 1)


class Alternating:
    """Makes a change in turns for `rounds` rounds of blocks of `steps` steps that count."""

    def __init__(
        self,
        change: Callable[[], AbstractContextManager[Any]],
        *,
        rounds: int,
        steps: int,
        clock: Callable[[], int] = time.perf_counter_ns,
        settle: Callable[[], bool] = lambda: False,
    ) -> None:
        self.change = change
        self._clock = clock
        self._settle = settle
        self._blocks: list[tuple[str, int, list[int]]] = [
            (CHANGED, WARM_UP, [])
        ]  # with their times
        for number in range(rounds):
            order = (BASE, AGAIN, CHANGED) if number % 2 == 0 else (CHANGED, AGAIN, BASE)
            self._blocks += [(kind, steps, []) for kind in order]
        self._at = 0  # the block that runs
        self._made: AbstractContextManager[Any] | None = None
        self._began = 0
        self._skip = 1  # so many steps from now on do not count, the one that runs included
        self._begin()

    @property
    def enough(self) -> bool:
        """Whether all rounds are over."""
        return self._at == len(self._blocks)

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return max(self._at - 1, 0) // 3

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        self._skip = max(self._skip, 1)

    def end_step(self) -> None:
        """Take the time, and make or undo the change where a block ends."""
        _, wanted, times = self._blocks[self._at]
        if self._skip == 1 or (not self._skip and len(times) + 1 == wanted):
            self._settle()
        taken = self._clock() - self._began
        if self._skip:
            self._skip -= 1
        else:
            times.append(taken)
        if len(times) == wanted:
            self._at += 1
            self._begin()
        self._began = self._clock()

    def close(self) -> None:
        """Undo the change if it is made."""
        made = self._made
        self._made = None
        if made is not None:
            made.__exit__(None, None, None)

    def result(self) -> dict[str, list[float]]:
        """Return the mean step of every block of the complete rounds, in ns, by kind."""
        whole = self._blocks[1 : 1 + 3 * self.rounds]
        return {
            kind: [fmean(times) for of, _, times in whole if of == kind]
            for kind in (BASE, AGAIN, CHANGED)
        }

    def _begin(self) -> None:
        """Make or undo the change for the block that comes."""
        self._skip = 1
        if self.enough or self._blocks[self._at][0] != CHANGED:
            self.close()
        elif self._made is None:
            made = self.change()
            by_tool = made.__enter__() is not None
            self._made = made
            self._skip = 2 if by_tool else 1
        self._began = self._clock()
