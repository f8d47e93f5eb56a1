"""Durations of steps that run without a profiler, between the same hooks as the captured ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


def no_device() -> bool:
    """Wait for no device, as there is none."""
    return False


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
        settle: Callable[[], bool] = no_device,
    ) -> None:
        self._wanted = wanted
        self._clock = clock
        self._settle = settle
        self._ends = [clock()]
        self._left_out: set[int] = {1}
        self._on_device = False

    @property
    def enough(self) -> bool:
        """Whether as many are known as were wanted."""
        return len(self._times()) >= self._wanted

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        self._left_out.add(len(self._ends))

    def end_step(self) -> None:
        """Take the time."""
        now = len(self._ends)
        last = now not in self._left_out and len(self._times()) + 1 >= self._wanted
        if now == 1 or last:
            self._on_device = self._settle()
        self._ends.append(self._clock())

    def durations_ns(self, hooks_ns: int = 0) -> list[int]:
        """Return the durations of the ordinary steps without our hooks'; with a device, their mean for each.

        A device works while the hooks run, so there they are not taken out.
        """
        times = self._times()
        if self._on_device and times:
            return [round(sum(times) / len(times))] * len(times)
        return [max(time - hooks_ns, 0) for time in times]

    def _times(self) -> list[int]:
        ends = self._ends
        return [ends[at] - ends[at - 1] for at in range(1, len(ends)) if at not in self._left_out]
