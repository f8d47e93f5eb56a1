"""What the command line says when it fails: what was found, what was needed, what to do, and no traceback.

Only bad input is put into one line. An error that no input should cause is a bug and
keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from daydream.errors import DaydreamError

FAILED, INTERRUPTED = 1, 130  # usage errors bring click's own code, 2
INDENT = " " * len("error: ")


def run(group: click.Group, args: Sequence[str] | None) -> int:
    """Run a command line and return its exit code; bad input becomes one message on stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # names in a trace may hold what the terminal cannot show
    try:
        code = group.main(args, prog_name="daydream", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # newer than the oldest click that is supported
            click.echo(error.format_message(), err=True)
        else:
            _say(_usage_message(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except DaydreamError as error:
        _say(str(error))
        return error.exit_code
    except MemoryError:
        _say("there is not enough memory for this trace. Record fewer steps, or use a larger machine.")
        return FAILED
    except BrokenPipeError:
        return _reader_left()
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _reader_left()
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        return FAILED
    return code if isinstance(code, int) else 0


def message(text: str) -> str:
    """Return an error as it is printed: `error:` before the first line, the others indented below it."""
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or ["unknown error"]
    return "\n".join([f"error: {first}", *(INDENT + line for line in others)])


def in_own_file(error: Exception) -> DaydreamError | None:
    """Return what to say of an error in a user's own optimization, and where; None if it is not there."""
    own = {module.__file__ for name, module in sys.modules.items() if name.startswith("daydream_user_")}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    if not frames:
        return None
    place, said = frames[-1], "".join(traceback.format_exception_only(error)).strip()
    return DaydreamError(
        f"{place.filename}, line {place.lineno}: {said}\n{place.line}\n"
        "In Python, daydream.whatif(trace, function) shows the whole traceback."
    )


def _say(text: str) -> None:
    click.echo(message(text), err=True)


def _usage_message(error: click.ClickException) -> str:
    text = error.format_message()
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        text += f"\nTry '{context.command_path} --help'."
    return text


def _reader_left() -> int:
    """Let the interpreter's own last flush go nowhere: the reader of the pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
