"""How a command begins and ends in the hands of a shell: closed streams, and signals that ask it to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

ENDING = ("SIGTERM", "SIGHUP")
AGAIN_S = 0.5  # one that comes sooner is the same one: sent to the group, and by its leader


def run_to_its_end(command: Callable[[], int]) -> int:
    """Return a command's exit code: what it returns, or 128 + the signal that ended it."""
    open_closed_streams()
    with _ending_as_ctrl_c_does() as came:
        try:
            code = command()
        except (KeyboardInterrupt, OSError):  # with SIGHUP there may be no terminal left to say so
            if not came:
                raise
            code = 0
    return 128 + came[0] if came else code


def open_closed_streams() -> None:
    """Let what a shell closed (`>&-`, `2>&-`) lead nowhere.

    Python has no stream then, and the next file that is opened gets the number: what a library writes
    to its stderr would go into a trace.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(nowhere, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


@contextlib.contextmanager
def _ending_as_ctrl_c_does() -> Iterator[list[int]]:
    """Raise `KeyboardInterrupt` for the other signals that end a process, so that all clean up alike.

    They are added to the list. One that comes again, when the first had no effect, kills as always.
    """
    came: list[int] = []
    times: list[float] = []

    def end(number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if came and now - times[0] > AGAIN_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not came:
            came.append(number)
            times.append(now)
            raise KeyboardInterrupt

    taken: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():  # Python lets no other thread do this
        numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]  # no SIGHUP on Windows
        # What is ignored (nohup) or has a handler of its own stays as it is.
        taken = [each for each in numbers if signal.getsignal(each) is signal.SIG_DFL]
        for each in taken:
            signal.signal(each, end)
    try:
        yield came
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)
