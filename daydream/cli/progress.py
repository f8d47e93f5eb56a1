"""A line on the terminal about what is going on, for anything that takes longer than two seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE_S = 2.0
EVERY_S = 0.1
BAR = 24
LINES = "DAYDREAM_PROGRESS_LINES"  # a variable that another program sets to read the progress: a line each
LONGEST = 48  # what is said before the bar, so that the line fits a terminal
STYLES = {  # instead of shades that light or dark terminals hardly show
    "bar.back": "dim",
    "bar.complete": "green",
    "bar.finished": "green",
    "bar.pulse": "green",
    "progress.elapsed": "none",
    "progress.percentage": "none",
}


class Progress:
    """Call it with what is being done and, where known, the share done; it is shown on a terminal only.

    Used in a `with` statement; the line is gone at its end. With `DAYDREAM_PROGRESS_LINES=1` there are
    lines instead, `progress 0.25 reading t.json`, -1 where the share is not known.
    """

    def __init__(self, stream: TextIO | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._timer = threading.Timer(patience_s, self._show)
        self._timer.daemon = True
        self._what, self._share = "", -1.0
        self._over = threading.Event()
        self._in_lines, self._told_s = os.environ.get(LINES) == "1", 0.0

    def __call__(self, what: str, share: float = -1.0) -> None:
        """Say what is being done; a share below 0 is unknown."""
        is_new, self._what, self._share = what[:LONGEST] != self._what, what[:LONGEST], share
        if self._in_lines and (is_new or time.monotonic() - self._told_s > EVERY_S):
            self._told_s = time.monotonic()
            self._stream.write(f"progress {share:.3f} {' '.join(self._what.split())}\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        self._begin_s = time.monotonic()
        if self._stream.isatty():
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()

    def _show(self) -> None:
        from rich import progress  # only now: it takes longer than many an answer
        from rich.theme import Theme

        from daydream.report.text import console

        there = console(self._stream)
        if there.is_dumb_terminal:
            return  # it cannot take a line back
        there.push_theme(Theme(STYLES))
        line = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(BAR),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            console=there,
            transient=True,
            auto_refresh=False,
            get_time=time.monotonic,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        task = line.tasks[line.add_task(self._what)]
        task.start_time = self._begin_s
        with line:
            there.show_cursor()  # a process that is killed could not bring it back
            while not self._over.is_set():
                known = self._share >= 0
                task.description = self._what
                task.total, task.completed = (1.0, self._share) if known else (None, 0.0)
                line.refresh()
                self._over.wait(EVERY_S)
