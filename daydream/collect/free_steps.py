"""Steps behind the capture, without a profiler: timed as they are, then in turns with a real change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daydream.collect.alternating import Alternating
from daydream.collect.unprofiled import UnprofiledSteps


class FreeSteps:
    """Times `wanted` steps, then, with `alternate`, blocks of steps that it makes.

    `on_timed` is called between the two. A change that cannot be made ends it; why is kept.
    """

    def __init__(
        self, wanted: int, alternate: Callable[[], Alternating] | None, on_timed: Callable[[], None]
    ) -> None:
        self._timed = UnprofiledSteps(wanted)
        self._alternate, self._on_timed = alternate, on_timed
        self._blocks: Alternating | None = None
        self._failed: str | None = None

    def leave_out(self) -> None:
        """Do not count the step that runs now."""
        (self._blocks or self._timed).leave_out()

    def end_step(self) -> bool:
        """Take the time; return whether that was the last step."""
        if self._blocks is None:
            self._timed.end_step()
            if not self._timed.enough:
                return False
            self._on_timed()
        try:
            if self._blocks is not None:
                self._blocks.end_step()
            elif self._alternate is not None:
                self._blocks = self._alternate()
        except Exception as error:  # noqa: BLE001 - the user's own change; the recording is worth keeping
            self._failed = f"{type(error).__name__}: {error}"
            return True
        return self._blocks is None or self._blocks.enough

    def close(self) -> None:
        """Undo the change if it is made."""
        if self._blocks is not None:
            self._blocks.close()

    def document(self) -> dict[str, Any]:
        """Return what was found, for the trace's metadata."""
        found: dict[str, Any] = {}
        if times := self._timed.durations_ns():
            found["unprofiled_step_ns"] = times
        if self._failed is not None:
            found["confirmed"] = {"failed": self._failed}
        elif self._blocks is not None:
            found["confirmed"] = self._blocks.result()
        return found
