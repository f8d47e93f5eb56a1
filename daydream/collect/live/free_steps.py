"""Steps behind the capture: timed as they are, then in turns with a real change, then recorded with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daydream.collect.live.alternating import Alternating
from daydream.collect.live.changed_window import ChangedWindow
from daydream.collect.live.unprofiled import UnprofiledSteps, settle_device


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
