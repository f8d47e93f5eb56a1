"""What is said while a step takes long, as first steps do that compile or load: not nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

FIRST_S = 10.0  # of silence; then after twice as long, and so on
BEFORE = "waiting for training steps"
WARMING_UP = re.compile(r"warming up: step (\d+)")
CAPTURING = "capturing"


class LongSteps:
    """Says how long the step that runs has taken. It hears what the recorded process tells."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._step: str | None = None  # the one that runs; None where no step is waited for
        self._before_any = False
        self._compiling = False
        self._begin = 0.0
        self._next_s = FIRST_S

    def heard(self, text: str) -> None:
        """Take in the progress that a process tells, at the end of each step."""
        warming_up = WARMING_UP.match(text)
        self._before_any = text == BEFORE
        if self._before_any:
            self._step = "step 1"
        elif warming_up is not None:
            self._step = f"step {int(warming_up.group(1)) + 1}"
        else:
            self._step = "the step that is captured" if text.startswith(CAPTURING) else None
        self._restart()

    def compiles(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Take in that the process begins to compile, or has done so. The first time that begins step 1."""
        self._compiling = on
        if on and self._before_any:
            self._before_any = False
            self._restart()

    def look(self) -> None:
        """Say how long it has taken, if it is time to."""
        took = self._clock() - self._begin
        if self._step is None or took < self._next_s:
            return
        while took >= self._next_s:
            self._next_s *= 2
        if self._before_any:
            self._say(f"no training step yet after {took:.0f} s")
        else:
            self._say(f"{'compiling: ' if self._compiling else ''}{self._step} has taken {took:.0f} s")

    def _restart(self) -> None:
        self._begin = self._clock()
        self._next_s = FIRST_S
