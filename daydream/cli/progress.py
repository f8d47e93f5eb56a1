"""A line on the terminal about what is going on, for anything that takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE_S = 2.0
EVERY_S = 0.1
BAR = 24
LONGEST = 48  # what is said before the bar, so that the line fits a terminal
ERASE = "\r\x1b[K"


class Progress:
    """Call it with what is being done and, where known, the share done; it is shown on a terminal only.

    Used in a `with` statement; the line is gone at its end.
    """

    def __init__(self, stream: TextIO | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._patience_s = patience_s
        self._what, self._share = "", -1.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, what: str, share: float = -1.0) -> None:
        """Say what is being done; a share below 0 is unknown."""
        self._what, self._share = what[:LONGEST], share

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        begin = time.monotonic()
        if self._over.wait(self._patience_s):
            return
        while True:
            self._stream.write(ERASE + line(self._what, self._share, time.monotonic() - begin))
            self._stream.flush()
            if self._over.wait(EVERY_S):
                break
        self._stream.write(ERASE)
        self._stream.flush()


def line(what: str, share: float, seconds: float) -> str:
    """Return the line as shown: what, a bar and a percentage where the share is known, the time so far."""
    if share < 0:
        return f"{what} ... {seconds:.0f} s"
    share = min(share, 1.0)
    done = int(share * BAR)
    return f"{what} [{'#' * done}{'-' * (BAR - done)}] {share:4.0%} {seconds:.0f} s"
