"""A busy machine is noticed before the capture, and one whose steps disagree there is made once more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from daydream.collect.live.cpu_times import delay_ns

if TYPE_CHECKING:
    from daydream.collect.live.captured_steps import CapturedSteps


BUSY = 0.2  # of the time; on a machine at rest a thread waits for a CPU in a few hundredths
LEAST_NS = 300_000_000  # one turn of another program may take some ms


class BusyMachine:
    """Watches how long this thread waits for a CPU, and tells of it where it is `watched`.

    Known on Linux; elsewhere nothing is said. Only a process that is `alone` captures once more: ranks that
    did so each for itself would hold different steps.
    """

    def __init__(
        self,
        tell: Callable[[str], None] = lambda _: None,
        alone: Callable[[], bool] = lambda: True,
        *,
        watched: bool = True,
    ) -> None:
        self._tell = tell
        self._alone = alone
        self._watched = watched
        self.begin()

    def begin(self) -> None:
        """Begin to watch, or begin anew in a forked process."""
        self._looks: list[tuple[int, int]] = []  # at a time, how long it had waited by then
        self._most = 0.0  # share of the time that it waited, where it was much
        self.repeated = False  # whether steps were captured once more

    def look(self) -> None:
        """Begin a span of time."""
        with suppress(OSError, IndexError):
            self._looks.append((time.perf_counter_ns(), delay_ns(threading.get_native_id())))

    def before_capture(self) -> None:
        """Notice how long it waited, and say so if that is long."""
        if self._noticed() and not self.repeated:
            self._tell(f"the machine is busy: {self._waited()}, and recorded steps will vary with that")

    def repeats(self, captured: CapturedSteps) -> bool:
        """Return whether to capture once more: it waited long, and the steps disagree. True but once."""
        self._noticed()
        if not self._most or self.repeated or not captured.disagree or not self._alone():
            return False
        self.repeated = True
        self._tell("the captured steps disagree on this busy machine; capturing once more")
        return True

    def notes(self) -> list[str]:
        """Return what a reader of the trace should know."""
        if not self._most:
            return []
        again = " The captured steps disagreed; they were captured once more." if self.repeated else ""
        return [f"The machine was busy while this was recorded: {self._waited()}.{again}"]

    def _waited(self) -> str:
        return f"the script waited for a CPU in {100 * self._most:.0f}% of the time"

    def _noticed(self) -> bool:
        self.look()
        share = self.share() if self._watched else 0.0
        self._most = max(self._most, share if share > BUSY else 0.0)
        return share > BUSY

    def share(self) -> float:
        """Return in what share of the time this thread waited for a CPU since the last look not too near."""
        *earlier, (now, waited) = self._looks or [(0, 0)]
        spans = [(now - at, waited - before) for at, before in reversed(earlier) if now - at >= LEAST_NS]
        return spans[0][1] / spans[0][0] if spans else 0.0
