"""A change made and undone again between blocks of training steps, so that its effect can be measured.

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

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import fmean
from typing import Any

from daydream.collect.live.unprofiled import no_device

BASE = "base"
AGAIN = "again"
CHANGED = "changed"
WARM_UP = 3  # steps with the change before the first round: what it builds on first use does not count


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
        turns = [kind for number in range(rounds) for kind in (order if number % 2 == 0 else order[::-1])]
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
        for (kind, _), times in list(zip(self._blocks, self._times, strict=True))[1 : 1 + 3 * self.rounds]:
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
