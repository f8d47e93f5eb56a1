"""A user's own file, run: what would end this process or stay behind becomes that file's mistake."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError

if TYPE_CHECKING:
    from traceback import StackSummary

PATIENCE_S = 1.0  # for threads that are about to end


class OwnFileError(DaydreamError):
    """A user's own file did what an optimization must not do."""


class _Aside(io.TextIOBase):
    """What a file prints, on its way to where results do not go; closing it closes nothing."""

    def __init__(self, to: Any) -> None:
        self._to = to

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Write text, with what cannot be encoded spelled out."""
        self._to.write(text.encode("utf-8", "backslashreplace").decode())
        return len(text)

    def flush(self) -> None:
        """Pass it on."""
        self._to.flush()

    def close(self) -> None:
        """Stay open: it is not the file's to close."""


@contextlib.contextmanager
def own_code(file: str) -> Iterator[None]:
    """Run the code of a file. Raises `OwnFileError` if it exits, interrupts, or leaves threads at work.

    A signal that really came is passed on.
    """
    streams = sys.stdout, sys.stderr
    before = set(threading.enumerate())
    failed: list[threading.ExceptHookArgs] = []
    hook, threading.excepthook = threading.excepthook, failed.append
    sys.stdout = sys.stderr = _Aside(streams[1])
    try:
        with _signals() as came:
            try:
                yield
            except TypeError as error:
                frames = _frames(error)
                if (
                    Path(frames[-1].filename).parent == Path(__file__).parent
                ):  # the call itself, none of its lines
                    raise OwnFileError(f"{file}: it cannot be called with a graph: {error}") from None
                raise
            except Exception:
                raise
            except BaseException as error:
                if came:
                    raise
                what = "sys.exit()" if isinstance(error, SystemExit) else f"raise {type(error).__name__}"
                raise OwnFileError(
                    f"{_place(file, error)}: `{what}` would end daydream; an optimization returns"
                ) from None
    finally:
        sys.stdout, sys.stderr = streams
        threading.excepthook = hook
    _look_at_threads(file, before, failed)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Note which signals come that have a handler; they are handled as before."""
    came: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        handlers[number](number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)


def _look_at_threads(
    file: str, before: set[threading.Thread], failed: list[threading.ExceptHookArgs]
) -> None:
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                raise OwnFileError(
                    f"{file}: its thread {thread.name!r} still runs; an optimization returns when all is done"
                )
    for each in failed:
        error = each.exc_value or each.exc_type()
        if not isinstance(error, SystemExit):
            import traceback  # for those whose file is wrong

            said = "".join(traceback.format_exception_only(error)).strip()
            raise OwnFileError(f"{_place(file, error)}, in a thread: {said}")


def _place(file: str, error: BaseException) -> str:
    frames = [frame for frame in _frames(error) if Path(frame.filename) == Path(file)]
    return f"{file}, line {frames[-1].lineno}" if frames else file


def _frames(error: BaseException) -> StackSummary:
    import traceback  # for those whose file is wrong

    return traceback.extract_tb(error.__traceback__)
