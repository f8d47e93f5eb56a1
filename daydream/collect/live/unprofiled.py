"""Durations of steps that run without a profiler, between the same hooks as the captured ones.

A change made and undone again between blocks of training steps, so that its effect can be measured.

    round 1   base   again  changed      `again` is the unchanged step once more: the A/A control
    round 2   changed again  base        every other round backwards: drift hits all alike

A machine's speed drifts by more than many changes give, so blocks of few steps take turns, and
only blocks of one round are compared. The first step of a block runs on what the other one left
behind and does not count; nor does the second one with a tool, which looks at all operators in the
first and only then settles. A script runs ahead of its device, so that is waited for where the
steps that count begin and where they end: what is measured is their mean. Blocks end after a number
of steps, not after a time, so that ranks which meet in collectives make the change at the same step.

Steps recorded with a change in place, behind those that were timed: what `confirm` compares with.

They go into a trace of their own beside that of the unchanged steps.

Steps behind the capture: timed as they are, then in turns with a real change, then recorded with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from daydream.collect.live.capture import Capture
from daydream.trace.trace import Trace


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


BASE = "base"
AGAIN = "again"
CHANGED = "changed"
WARM_UP = (
    3  # steps with the change before the first round: what it builds on first use does not count
)


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
        settle: Callable[[], bool] = no_device,
    ) -> None:
        self.change = change
        self._clock = clock
        self._settle = settle
        order = (BASE, AGAIN, CHANGED)
        turns = [
            kind for number in range(rounds) for kind in (order if number % 2 == 0 else order[::-1])
        ]
        self._blocks = [(CHANGED, WARM_UP), *((kind, steps) for kind in turns)]
        self._place = 0
        self._times: list[list[int]] = [[] for _ in self._blocks]
        self._made: AbstractContextManager[Any] | None = None
        self._skip = 1  # so many steps from now on do not count, the one that runs included
        self._began = 0
        self._begin()

    @property
    def enough(self) -> bool:
        """Whether all rounds are over."""
        return self._place == len(self._blocks)

    @property
    def _left(self) -> int:
        """How many steps of this block are still to be counted."""
        return self._blocks[self._place][1] - len(self._times[self._place])

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return max(self._place - 1, 0) // 3

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        self._skip = max(self._skip, 1)

    def end_step(self) -> None:
        """Take the time, and make or undo the change where a block ends."""
        if self._skip == 1 or (not self._skip and self._left == 1):
            self._settle()
        taken = self._clock() - self._began
        if self._skip:
            self._skip -= 1
        else:
            self._times[self._place].append(taken)
        if not self._left:
            self._place += 1
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
        found: dict[str, list[float]] = {BASE: [], AGAIN: [], CHANGED: []}
        for (kind, _), times in list(zip(self._blocks, self._times, strict=True))[
            1 : 1 + 3 * self.rounds
        ]:
            found[kind].append(fmean(times))
        return found

    def _begin(self) -> None:
        """Be ready for the block at this place."""
        wanted = not self.enough and self._blocks[self._place][0] == CHANGED
        by_tool = False
        if wanted and self._made is None:
            made = self.change()
            by_tool = made.__enter__() is not None
            self._made = made
        elif not wanted:
            self.close()
        self._skip = 2 if by_tool else 1
        self._began = self._clock()


SETTLING = (
    3  # steps with the change before the recording: what it builds on first use is not recorded
)
SOURCE = "steps with the change"


class ChangedWindow:
    """Makes a change, lets a few steps pass, records `steps` of them and saves their trace at `path`.

    It must be made, and hear of steps, on the thread that trains. `as_ours` calls what starts or
    stops a profiler, so that it is not taken for one of the script's.
    """

    def __init__(
        self,
        change: Callable[[], AbstractContextManager[Any]],
        path: Path,
        *,
        steps: int,
        optimizers: list[Any],
        as_ours: Callable[[Callable[[], Any]], Any],
        memory: bool = False,
    ) -> None:
        self._path = path
        self._optimizers = optimizers
        self._as_ours = as_ours
        self._left = steps + 1  # the first has no step before it, and so no step time
        self._settling = SETTLING
        self._marks = 0
        self._made: AbstractContextManager[Any] | None = change()
        self._operators = (
            self._made.__enter__()
        )  # which the change acts on; None from a change that is no tool
        self._capture: Capture | None = as_ours(lambda: Capture(memory=memory))

    @property
    def enough(self) -> bool:
        """Whether nothing is left to record."""
        return self._capture is None

    def end_step(self) -> None:
        """Go on behind a step."""
        if self._capture is None:
            return
        if self._settling:
            self._settling -= 1
            if not self._settling:
                self._as_ours(self._capture.start)
                self._mark()
            return
        self._mark()
        if self._marks > self._left:
            self.close()

    def close(self) -> None:
        """End the recording, save it if it holds a whole step behind another, and undo the change."""
        capture = self._capture
        self._capture = None
        made = self._made
        self._made = None
        try:
            if capture is not None and self._marks:
                self._save(capture)
        finally:
            if made is not None:
                made.__exit__(None, None, None)

    def _mark(self) -> None:
        assert self._capture is not None  # noqa: S101 - only while it records
        self._capture.mark(self._marks)
        self._marks += 1

    def _save(self, capture: Capture) -> None:
        captured = self._as_ours(lambda: capture.stop(self._optimizers))
        ends = [at for _, at in captured.markers]
        if len(ends) < 3:  # a step, and one before it
            return
        ranges = [
            (f"step {number}", begin, end) for number, (begin, end) in enumerate(pairwise(ends), 1)
        ]
        captured.recording.metadata["source"] = self._path.name
        if callable(self._operators):
            captured.recording.metadata["changed_operators"] = self._operators()
        trace: Trace = captured.trace((ranges, SOURCE))
        trace.save(self._path, force=True)


class FreeSteps:
    """Times `wanted` steps, then, with `alternate`, blocks of steps; `record` then records changed ones.

    A change that cannot be made ends it; why is kept.
    """

    def __init__(
        self,
        wanted: int,
        alternate: Callable[[], Alternating] | None,
        record: Callable[[Alternating], ChangedWindow] | None = None,
    ) -> None:
        self._timed = UnprofiledSteps(wanted, settle=settle_device)
        self._alternate = alternate
        self._record = record
        self._blocks: Alternating | None = None
        self._window: ChangedWindow | None = None
        self._failed: str | None = None
        self._not_recorded: str | None = None

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        if self._window is None:
            (self._blocks or self._timed).leave_out()

    def end_step(self) -> bool:
        """Take the time; return whether that was the last step."""
        if self._blocks is not None and self._blocks.enough:
            return self._go_on_recording()
        if self._blocks is None:
            self._timed.end_step()
            if not self._timed.enough:
                return False
        try:
            if self._blocks is not None:
                self._blocks.end_step()
            elif self._alternate is not None:
                self._blocks = self._alternate()
        except Exception as error:  # noqa: BLE001 - the user's own change; the recording is worth keeping
            self._failed = f"{type(error).__name__}: {error}"
            return True
        return self._blocks is None or (self._blocks.enough and self._go_on_recording())

    def _go_on_recording(self) -> bool:
        """Return whether the steps with the change are recorded, or cannot be; the blocks stay."""
        if self._record is None or self._blocks is None:
            return True
        try:
            if self._window is None:
                self._window = self._record(self._blocks)
            else:
                self._window.end_step()
        except Exception as error:  # noqa: BLE001 - see above
            self._not_recorded = f"{type(error).__name__}: {error}"
            return True
        return self._window.enough

    def close(self) -> None:
        """Undo the change if it is made, and keep what was recorded with it."""
        if self._blocks is not None:
            self._blocks.close()
        if self._window is not None:
            try:
                self._window.close()
            except Exception as error:  # noqa: BLE001 - see above
                self._not_recorded = f"{type(error).__name__}: {error}"

    def document(self, hooks_ns: int) -> dict[str, Any]:
        """Return what was found, for the trace's metadata; our hooks took `hooks_ns` of a timed step."""
        found: dict[str, Any] = {}
        if times := self._timed.durations_ns(hooks_ns):
            found["unprofiled_step_ns"] = times
        if self._failed is not None:
            found["confirmed"] = {"failed": self._failed}
        elif self._blocks is not None:
            found["confirmed"] = self._blocks.result()
        if self._not_recorded is not None:
            found["changed_not_recorded"] = self._not_recorded
        return found
