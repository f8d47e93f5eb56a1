"""The profilers that a script runs itself: two at once would leave one with nothing, without an error."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from daydream.collect.live.torch_private import profiler_runs, watch_profilers


class OwnProfilers:
    """Knows which profilers of the script are running.

    `on_start` is called when one is about to start, so that a recording can give way.
    Those that start inside `not_theirs` are not the script's.
    """

    def __init__(self, on_start: Callable[[], None]) -> None:
        self._on_start = on_start
        self._unwatch: Callable[[], None] = lambda: None
        self._not_theirs = False
        self.forget()

    def forget(self) -> None:
        """Begin anew, in this process."""
        self._pid = os.getpid()
        self._running: list[Any] = []
        self.seen = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def any_runs(self) -> bool:
        """Whether any profiler records at present, also one that did not begin as torch's own class."""
        return bool(self._running) or profiler_runs()

    def watch(self) -> None:
        """Begin to notice starts and stops."""
        self._unwatch = watch_profilers(self._starts, self._stopped)

    def unwatch(self) -> None:
        """Notice nothing any more."""
        self._unwatch()
        self._running = []

    @contextmanager
    def not_theirs(self) -> Iterator[None]:
        """Take profilers that start meanwhile for ours."""
        self._not_theirs = True
        try:
            yield
        finally:
            self._not_theirs = False

    @property
    def ours_starts(self) -> bool:
        """Whether a profiler of ours is being started or stopped at present."""
        return self._not_theirs

    def _starts(self, profiler: Any) -> None:
        if self._not_theirs or os.getpid() != self._pid:
            return
        self._running.append(profiler)
        if not self.seen:
            self.seen = True
            warnings.warn(
                "the script runs torch.profiler itself; `daydream collect` records while it does not, "
                "so that neither recording is lost", stacklevel=2,
            )  # fmt: skip
        self._on_start()

    def _stopped(self, profiler: Any) -> None:
        self._running = [one for one in self._running if one is not profiler]
