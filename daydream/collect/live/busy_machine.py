"""A busy machine is noticed before the capture, and one whose steps disagree there is made once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from daydream.collect.live.other_programs import OtherPrograms, Taken

if TYPE_CHECKING:
    from daydream.collect.live.captured_steps import CapturedSteps


class BusyMachine:
    """Watches other programs than those below the process `root`, and tells of them; without it, none.

    Only a process that is `alone` captures once more: ranks that did so each for itself would hold
    different steps.
    """

    def __init__(
        self,
        root: int | None = None,
        tell: Callable[[str], None] = lambda _: None,
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._root, self._tell, self._alone = root, tell, alone
        self.begin()

    def begin(self) -> None:
        """Begin to watch, or begin anew in a forked process."""
        self._others = None if self._root is None else OtherPrograms(self._root)
        self._most: Taken | None = None  # that they took, where it was much
        self.repeated = False  # whether steps were captured once more
        self.look()

    def look(self) -> None:
        """Begin a span of time."""
        if self._others is not None:
            self._others.look()

    def before_capture(self) -> None:
        """Notice what others take, and say so if it is much."""
        if self._noticed() and not self.repeated:
            self._tell(f"the machine is busy, {self._most}: recorded steps will vary with them")
        self.look()

    def repeats(self, captured: CapturedSteps) -> bool:
        """Return whether to capture once more: others were at work, and the steps disagree. True but once."""
        self._noticed()
        if self._most is None or self.repeated or not captured.disagree or not self._alone():
            return False
        self.repeated = True
        self._tell("the captured steps disagree on this busy machine; capturing once more")
        return True

    def notes(self) -> list[str]:
        """Return what a reader of the trace should know."""
        if self._most is None:
            return []
        again = " The captured steps disagreed; they were captured once more." if self.repeated else ""
        return [f"The machine was busy while this was recorded: {self._most}.{again}"]

    def _noticed(self) -> bool:
        taken = None if self._others is None else self._others.taken()
        if taken is None or not taken.much:
            return False
        if self._most is None or taken.cpus > self._most.cpus:
            self._most = taken
        return True
