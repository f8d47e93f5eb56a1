"""A user's own file, run: what would end this process or stay behind becomes a mistake of that file."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from daydream.errors import DaydreamError, NotApplicableError
from daydream.transforms.stages import OWN_FILE

PATIENCE_S = 1.0  # for threads that are about to end


class OwnFileError(DaydreamError):
    """A user's own file did what an optimization must not do."""


class Mistake(NamedTuple):
    """What went wrong in which line of a file."""

    file: str
    line: int
    code: str
    said: str

    def __str__(self) -> str:
        """Return it in one line, with the file's name alone: the folder may be one of this run only."""
        return " ".join(f"{Path(self.file).name}, line {self.line}: {self.said}".split())

    @property
    def message(self) -> str:
        """The place and what was said, with the line of code behind the first of its lines."""
        first, *others = self.said.splitlines() or ["it failed"]
        return "\n".join([f"{self.file}, line {self.line}: {first}", self.code, *others])


def own_files() -> set[str]:
    """Return the users' own files that this process has loaded."""
    return {
        str(module.__file__) for name, module in sys.modules.items() if name.startswith(OWN_FILE)
    }


def mistake_in_own_file(error: Exception) -> Mistake | None:
    """Return where in a user's own file an error was made, None if in none.

    What the file itself raises of daydream's errors speaks for itself, and so does that nothing
    applies. One that daydream raises is about a line of the file: a word that no task has, say.
    """
    import traceback  # for those whose file is wrong

    frames = traceback.extract_tb(error.__traceback__)
    own = own_files()
    mine = [frame for frame in frames if frame.filename in own]
    if not mine:
        return None
    place = mine[-1]
    said = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, DaydreamError):
        if isinstance(error, NotApplicableError) or place is frames[-1]:
            return None
        said = str(error)
    return Mistake(place.filename, place.lineno or 0, place.line or "", said)


def reason_of(error: Exception) -> str:
    """Return in a line why a change that raised an error has no answer."""
    said = (
        str(error)
        if isinstance(error, DaydreamError)
        else f"it failed: {type(error).__name__}: {error}"
    )
    return " ".join(map(str.strip, str(mistake_in_own_file(error) or said).splitlines()))


@contextlib.contextmanager
def own_code(file: str) -> Iterator[None]:
    """Run the code of a file; what it prints goes to stderr.

    Raises `OwnFileError` if it exits, interrupts, or leaves threads at work. A signal that really came is
    passed on.
    """
    threads = set(threading.enumerate())
    failed: list[threading.ExceptHookArgs] = []
    with contextlib.ExitStack() as undo:
        came = _signals_noted(undo)
        undo.callback(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = failed.append
        stderr = _Stderr(sys.stderr)
        undo.enter_context(contextlib.redirect_stdout(stderr))
        undo.enter_context(contextlib.redirect_stderr(stderr))
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            if came:
                raise
            what = (
                "sys.exit()" if isinstance(error, SystemExit) else f"raise {type(error).__name__}"
            )
            raise OwnFileError(
                f"{_place(file, error)}: `{what}` would end daydream; an optimization returns"
            ) from None
    for thread in set(threading.enumerate()) - threads:
        if not thread.daemon:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                raise OwnFileError(
                    f"{file}: its thread {thread.name!r} still runs; an optimization returns when all is done"
                )
    for each in failed:
        if not isinstance(each.exc_value, SystemExit):
            import traceback  # for those whose file is wrong

            problem = each.exc_value or each.exc_type()
            said = "".join(traceback.format_exception_only(problem)).strip()
            raise OwnFileError(f"{_place(file, problem)}, in a thread: {said}")


class _Stderr(io.TextIOBase):
    """Takes what a file prints, of any characters; closing it closes nothing."""

    def __init__(self, stream: Any) -> None:
        self.write_text = stream.write

    def write(self, text: str) -> int:
        """Write text, with escapes for what cannot be encoded."""
        self.write_text(text.encode("utf-8", "backslashreplace").decode())
        return len(text)

    def close(self) -> None:
        """Stay open: the stream belongs to this process."""


def _signals_noted(undo: contextlib.ExitStack) -> list[int]:
    """Return a list that every signal is put into which has a handler; they are handled as before."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        return came
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):

            def note(number: int, frame: Any, handler: Any = handler) -> None:
                came.append(number)
                handler(number, frame)

            signal.signal(number, note)
            undo.callback(signal.signal, number, handler)
    return came


def _place(file: str, error: BaseException) -> str:
    import traceback  # for those whose file is wrong

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == Path(file)
    ]
    return f"{file}, line {frames[-1].lineno}" if frames else file
