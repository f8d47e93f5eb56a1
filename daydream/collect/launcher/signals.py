"""Signals to us go on to the process that we started; it decides what they mean."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)  # fmt: skip
FROM_THE_KEYBOARD = ("SIGINT", "SIGQUIT")  # Ctrl-C, Ctrl-\


@contextlib.contextmanager
def passing_on(came: list[int]) -> Iterator[Callable[[subprocess.Popen[Any]], None]]:
    """Pass signals on to the child that the yielded function is called with, and outlive them.

    They are added to `came`. A terminal sends Ctrl-C to its whole foreground group, child included;
    passing that on would interrupt the child's own cleaning up a second time.
    """
    children: list[subprocess.Popen[Any]] = []
    early: list[int] = []

    def arrived(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        pass_on(number)

    def pass_on(number: int) -> None:
        if not children:
            early.append(number)
        elif not (signal.Signals(number).name in FROM_THE_KEYBOARD and _in_the_foreground()):
            children[0].send_signal(number)

    def started(child: subprocess.Popen[Any]) -> None:
        children.append(child)
        for number in early:
            pass_on(number)

    before = {}
    if threading.current_thread() is threading.main_thread():  # Python lets no other thread do this
        # What we were started to ignore (nohup), the child ignores as well.
        numbers = [each for each in PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN]
        before = {number: signal.signal(number, arrived) for number in numbers}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_the_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
