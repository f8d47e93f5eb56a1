"""Steps recorded with a change in place, behind those that were timed: what `confirm` compares with.

They go into a trace of their own beside that of the unchanged steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

from daydream.collect.live.capture import Capture
from daydream.trace.trace import Trace

SETTLING = 3  # steps with the change before the recording: what it builds on first use is not recorded
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
        ranges = [(f"step {number}", begin, end) for number, (begin, end) in enumerate(pairwise(ends), 1)]
        captured.recording.metadata["source"] = self._path.name
        if callable(self._operators):
            captured.recording.metadata["changed_operators"] = self._operators()
        trace: Trace = captured.trace((ranges, SOURCE))
        trace.save(self._path, force=True)
