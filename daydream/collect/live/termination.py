"""SIGTERM or SIGHUP while something is captured: save it, then die of the signal as without us.

Only where the script leaves the signals alone, and only while there is something to lose. Python runs
a handler between two instructions of its main thread, which may be stuck: in a collective whose peer
is gone, in a synchronization. So a thread watches too, and sees to the end if saving takes too long;
what launchers stop has to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

REACT_S = 2.0  # a main thread that has not reacted by then is taken to be stuck
SAVE_S = 15.0  # launchers kill for good after 30


class SaveOnTermination:
    """Calls `save(name of the signal, die)` on either while it is on; `save` calls `die` when it is done.

    Does nothing where there are no such signals, and in other threads than the main one.
    """

    def __init__(self, save: Callable[[str, Callable[[], None]], None]) -> None:
        self._save = save
        self._handled: list[signal.Signals] = []
        self._on = False
        self._reacted = threading.Event()
        self._pipe: tuple[int, int] | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_child_alone)

    def switch(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Put the handler on, or take it off."""
        if on != self._on and threading.current_thread() is threading.main_thread():
            (self._put_on if on else self._take_off)()

    def _put_on(self) -> None:
        if os.name != "posix":
            return
        handled = [
            each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL
        ]
        if not handled:
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:  # an event loop's
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._pipe = (reading, writing)
        self._handled = handled
        self._reacted.clear()
        threading.Thread(target=self._watch, args=(reading, handled), daemon=True).start()
        for each in handled:
            signal.signal(each, self._handle)
        self._on = True

    def _take_off(self) -> None:
        self._on = False
        self._hand_back()
        if self._pipe is None:
            return
        _, writing = self._pipe
        self._pipe = None
        now = signal.set_wakeup_fd(-1)
        if now not in {-1, writing}:
            signal.set_wakeup_fd(now)
        os.close(writing)  # ends the watch

    def _hand_back(self) -> None:
        for each in self._handled:
            if signal.getsignal(each) == self._handle:
                signal.signal(each, signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._reacted.is_set():  # sent to the group, and by its leader: it is being saved
            return

        def die() -> None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        self._reacted.set()
        self._save(signal.Signals(number).name, die)

    def _watch(self, reading: int, handled: list[signal.Signals]) -> None:
        try:
            while came := os.read(reading, 64):
                for number in handled:
                    if number in came:
                        if self._reacted.wait(REACT_S):
                            threading.Event().wait(SAVE_S)
                        _die(number)
        finally:
            os.close(reading)

    def _leave_child_alone(self) -> None:
        """In a forked child: it is another's business, without a thread that watches."""
        if not self._on:
            return
        self._on = False
        with contextlib.suppress(ValueError):
            self._hand_back()
            signal.set_wakeup_fd(-1)
        pipe = self._pipe
        self._pipe = None
        for end in pipe or ():
            os.close(end)


def _die(number: int) -> None:
    """End the process by a signal from any thread; Python itself resets handlers in the main thread only."""
    import ctypes

    library: Any = ctypes.CDLL(None)
    library.signal(int(number), None)  # SIG_DFL is 0
    os.kill(os.getpid(), number)
