"""How a command begins and ends in the hands of a shell: closed streams, and signals that ask it to end.

What to do where an optimization does not apply to a trace: below the reason, what would help.

What the command line says when it fails: what was found, what was needed, what to do, and no traceback.

An error that no input should cause is a bug. It is one line, too, that asks for a report;
`daydream --debug ...` or DAYDREAM_DEBUG=1 shows its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from daydream.errors import DaydreamError, FileError, GraphError, NotApplicableError, TraceError
from daydream.text import meant

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.transforms.registry import Optimization

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


ON_A_GPU = "The trace is of CPU work only: record a step on a GPU to predict this."


@contextlib.contextmanager
def with_advice(graph: Graph, optimizations: Sequence[Optimization], trace: Sequence[str]) -> Iterator[None]:
    """Say below a refusal what to do; `trace` are the words that name the trace on a command line."""
    try:
        yield
    except NotApplicableError as error:
        error.args = ("\n".join([str(error), *_advice(error.lacks, graph, optimizations, trace)]),)
        raise


def _advice(
    lacks: str | None, graph: Graph, optimizations: Sequence[Optimization], trace: Sequence[str]
) -> list[str]:
    lines = []
    if lacks == "device" and not len(graph.select(on="gpu")):
        lines.append(ON_A_GPU)
    elif lacks == "ranks" and not len(graph.select(kind="collective")):
        together = _with_ddp(optimizations)
        first = f"Predict several GPUs with it ({together}), or record" if together else "Record"
        lines.append(f"{first} a job of several ranks: daydream collect --nproc-per-node 2 SCRIPT")
    return [*lines, f"daydream rank {shlex.join(trace)} lists the changes that do apply."]


def _with_ddp(optimizations: Sequence[Optimization]) -> str | None:
    """Return what to ask for so that gradients are exchanged; None where that excludes what was asked for."""
    from daydream.transforms.compose import check, spelled
    from daydream.transforms.registry import find

    together = [find("ddp"), *optimizations]
    try:
        check(together)
    except DaydreamError:
        return None
    return spelled(together)


FAILED, INTERRUPTED = 1, 130  # usage errors bring click's own code, 2
INDENT = " " * len("error: ")
WHOLE = "\nIn Python, daydream.whatif(trace, function) shows the whole traceback."


read_from: list[str] = []  # what this command has read a trace from


def run(group: click.Group, args: Sequence[str] | None) -> int:
    """Run a command line and return its exit code; bad input becomes one message on stderr."""
    read_from.clear()
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
            _say(_usage_message(error, sys.argv[1:] if args is None else args))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except DaydreamError as error:
        _say(_about_its_file(error))
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
    except Exception as error:  # noqa: BLE001 - whatever it is, it is our mistake, and said as such
        _tell_bug(error, debug=debugging(sys.argv[1:] if args is None else args))
        return FAILED
    return code if isinstance(code, int) else 0


def leave(code: int, before: Collection[threading.Thread]) -> NoReturn:
    """Exit with a code, at once where a user's own file has left threads that would be waited for.

    `before` are the threads that were there before the command; who calls it from Python may have some.
    """
    others = [thread for thread in threading.enumerate() if thread not in before]
    if any(not thread.daemon for thread in others):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def message(text: str) -> str:
    """Return an error as it is printed: `error:` before the first line, the others indented below it."""
    from daydream.report.format import printable

    lines = [printable(line.strip()) for line in text.splitlines()]
    first, *others = [line for line in lines if line] or ["unknown error"]
    return "\n".join([f"error: {first}", *(INDENT + line for line in others)])


@contextlib.contextmanager
def of_optimizations(ctx: click.Context, name: str) -> Iterator[None]:
    """Say what an optimization raises as people can put it right.

    What its options cannot be is a usage error. Anything else that goes wrong in a user's own file
    is told with file and line; `name` is what was asked for.
    """
    from daydream.transforms.user_file import mistake_in_own_file

    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        mistake = mistake_in_own_file(error)
        if mistake is not None:
            more = "" if isinstance(error, DaydreamError) else WHOLE
            raise DaydreamError(mistake.message + more) from error
        # An optimization that finds nothing to change says so with a subclass; what is
        # left is a value that it cannot work with, which click cannot know.
        if type(error) is GraphError:
            raise click.UsageError(str(error), ctx) from error
        if isinstance(error, ArithmeticError):
            raise click.UsageError(f"{name} cannot take these values ({error})", ctx) from error
        raise


def _say(text: str) -> None:
    click.echo(message(text), err=True)


def _about_its_file(error: DaydreamError) -> str:
    """Return a message; one about a trace begins with the file that the trace is from."""
    said = str(error)
    about_the_trace = isinstance(error, TraceError | GraphError) and not isinstance(error, FileError)
    if not about_the_trace or len(read_from) != 1 or read_from[0] in said.partition("\n")[0]:
        return said
    return f"{read_from[0]}: {said}"


def debugging(args: Sequence[str]) -> bool:
    """Return whether tracebacks are wanted: DAYDREAM_DEBUG=1, or --debug before the command."""
    before = itertools.takewhile(lambda word: word.startswith("-"), args)
    return os.environ.get("DAYDREAM_DEBUG", "") not in ("", "0") or "--debug" in before


def _tell_bug(error: Exception, *, debug: bool) -> None:
    import traceback

    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True)
    package = str(Path(__file__).parent.parent)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(package)] or list(frames)
    where = f"{Path(ours[-1].filename).relative_to(Path(package).parent)}:{ours[-1].lineno}" if ours else "?"
    _say(f"internal error (please report): {type(error).__name__} at {where}; DAYDREAM_DEBUG=1 shows more")


def _usage_message(error: click.ClickException, args: Sequence[str]) -> str:
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        hint = meant(error.option_name, error.possibilities or (), most=2)
        text = f"no such option '{error.option_name}'. {hint}".rstrip()
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        stray = _stray_trace(context.command, args)
        if stray:
            import shlex

            text += f"\nGive the trace as --trace {shlex.quote(stray)}."
        text += f"\nTry '{context.command_path} --help'."
    return text


def _stray_trace(command: click.Command, args: Sequence[str]) -> str | None:
    """Return a file that stands where no file is looked for, if the command needs a `--trace`."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    takes_value = {flag for option in options if not option.is_flag for flag in option.opts}
    if "--trace" not in takes_value or any(arg.partition("=")[0] == "--trace" for arg in args):
        return None
    words = (arg for before, arg in itertools.pairwise(args) if before not in takes_value)
    return next((word for word in words if not word.endswith(".py") and os.path.exists(word)), None)  # noqa: PTH110 - any text will do


def _reader_left() -> int:
    """Let the interpreter's own last flush go nowhere: the reader of the pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
