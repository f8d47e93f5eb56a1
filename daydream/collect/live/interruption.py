"""Ctrl-C while we are at work in the script's process: it comes when nothing of ours is half done.

In the midst it would leave a profiler half started or a trace half written, and a thread of ours at work,
with which torch aborts the process at its end. Who presses Ctrl-C again does not have to wait.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

AGAIN_S = 0.5  # one that comes sooner is the same one: a group's, which its leader passes on


class HeldInterruptions:
    """Holds SIGINT back inside a `with` statement, and raises it at its end; `came` tells that there is one.

    Only where a handler in Python would be called, and only on the main thread, where they are.
    """

    def __init__(self) -> None:
        self.came = False
        self._depth = 0
        self._first = 0.0  # when it came
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> HeldInterruptions:  # noqa: PYI034 - `Self` is newer than Python 3.10
        if threading.current_thread() is threading.main_thread():
            self._depth += 1
            handler = signal.getsignal(signal.SIGINT)
            if self._depth == 1 and callable(handler):
                self.came = False
                self._handler = handler
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth or self._handler is None:
            return
        handler = self._handler
        self._handler = None
        if signal.getsignal(signal.SIGINT) == self._hold:
            signal.signal(signal.SIGINT, handler)
        came = self.came
        self.came = False
        if came and not isinstance(error, KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.came:
            self.came = True
            self._first = now
        elif now - self._first > AGAIN_S and self._handler is not None:
            self._handler(number, frame)
