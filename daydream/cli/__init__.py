"""The command line: each command is loaded when it is typed; and how one ends.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 a `DaydreamError`, 2 usage, 130
interrupted, 128 + the number of another signal that ended it. An error that no input should cause is a bug. It is
one line, too, that asks for a report; `daydream --debug ...` or DAYDREAM_DEBUG=1 shows its traceback.

Nothing heavy is imported here, so that `daydream --help` costs no more than click.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from daydream import __version__
from daydream.errors import DaydreamError
from daydream.text import meant

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
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for good


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
        numbers = [
            getattr(signal, name) for name in ENDING if hasattr(signal, name)
        ]  # no SIGHUP on Windows
        # What is ignored (nohup) or has a handler of its own stays as it is.
        taken = [each for each in numbers if signal.getsignal(each) is signal.SIG_DFL]
        for each in taken:
            signal.signal(each, end)
    try:
        yield came
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


# Usage errors bring click's own code, 2
FAILED = 1
INTERRUPTED = 130
INDENT = " " * len("error: ")


def run(group: click.Group, args: Sequence[str] | None) -> int:
    """Run a command line and return its exit code; bad input becomes one message on stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(
                errors="backslashreplace"
            )  # names in a trace may hold what the terminal cannot show
    try:
        code = group.main(args, prog_name="daydream", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        if (
            type(error).__name__ == "NoArgsIsHelpError"
        ):  # newer than the oldest click that is supported
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
        _say(
            "there is not enough memory for this trace. Record fewer steps, or use a larger machine."
        )
        return FAILED
    except BrokenPipeError:
        return _reader_left()
    except OSError as error:
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
    from daydream.report.blocks import printable

    lines = [printable(line.strip()) for line in text.splitlines()]
    first, *others = [line for line in lines if line] or ["unknown error"]
    return "\n".join([f"error: {first}", *(INDENT + line for line in others)])


def _say(text: str) -> None:
    click.echo(message(text), err=True)


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
    where = (
        f"{Path(ours[-1].filename).relative_to(Path(package).parent)}:{ours[-1].lineno}"
        if ours
        else "?"
    )
    _say(
        f"internal error (please report): {type(error).__name__} at {where}; DAYDREAM_DEBUG=1 shows more"
    )


def _usage_message(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        hint = meant(error.option_name, error.possibilities or (), most=2)
        text = f"no such option '{error.option_name}'. {hint}".rstrip()
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        text += f"\nTry '{context.command_path} --help'."
    return text


def _reader_left() -> int:
    """Let the interpreter's own last flush go nowhere: the reader of the pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


COMMANDS = {  # heading -> name -> its module, and what it does
    "Start here": {
        "collect": ("collect", "Record a few steps of a training script, unmodified."),
        "explain": ("whatif", "Why the step takes its time, and what would shorten it."),
        "rank": ("whatif", "Every change that applies, sorted by what it saves."),
        "whatif": ("whatif", "Predict the step time after a change."),
    },
    "Check": {
        "info": ("info", "What a trace holds, and what it is good enough for."),
        "replay": ("info", "Simulate a trace unchanged, to see the error."),
        "confirm": ("confirm", "Predict a change, make it in the script, compare."),
        "compare": ("info", "Compare two traces, a series, or a prediction with a trace."),
        "blame": ("info", "What each rank, stage and kind of work costs a job."),
    },
    "More": {
        "import": ("collect", "Turn a profiler's files into one small trace."),
        "report": ("info", "Write one page about a trace, for the browser."),
        "memory": ("info", "Who holds the peak, and does it fit?"),
        "sweep": ("sweep", "Predict every combination of some options' values."),
        "plan": (".plan.command", "Which strategy of many GPUs fits and is fastest."),
        "scaling": ("sweep", "One GPU's trace on many: throughput, efficiency."),
        "calibrate": ("confirm", "Time operators on this machine, for predictions."),
        "tool": ("sql", "Run a small analysis over the events of a trace."),
        "sql": ("sql", "Ask a trace in SQL."),
        "mcp": ("sql", "Serve the same questions to a coding agent."),
        "example": ("collect", "Write an example trace or script, for a first try."),
        "judge": ("confirm", "Check every published figure, in a checkout."),
    },
}
KNOWN = {name: found for group in COMMANDS.values() for name, found in group.items()}
ALIASES = {  # as other tools call them
    "diff": ["compare"],
    "record": ["collect"],
    "profile": ["collect"],
    "serve": ["mcp"],
    "list": ["whatif", "--list"],
}
NEED_NUMPY = set(KNOWN) - {
    "collect",
    "memory",
    "calibrate",
    "confirm",
    "tool",
    "sql",
    "mcp",
    "example",
    "judge",
}
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class Commands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of the help."""
        return list(KNOWN)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of that name."""
        if cmd_name not in KNOWN:
            return None
        module = importlib.import_module(f".{KNOWN[cmd_name][0]}", __name__)
        return getattr(module, "import_" if cmd_name == "import" else cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands under their headings, without loading them."""
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is typed first; unknown names get the nearest one as a hint."""
        if args[0].lower() == "help":
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        typed = args[0]
        name, *more = ALIASES.get(typed.lower(), [typed.lower()])
        args = [name, *more, *args[1:]]
        if name not in KNOWN and not name.startswith("-"):
            from daydream.transforms.registry import canonical, names

            hint = meant(name, KNOWN, f"The commands are {', '.join(KNOWN)}.")
            if canonical(name) in names():
                hint = f"It is a change: daydream whatif {name} TRACE"
            raise click.UsageError(f"unknown command {typed!r}. {hint}", ctx)
        if name in NEED_NUMPY and not {"-h", "--help", "--help-all"}.intersection(args):
            load_numpy()
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
    epilog="Exit codes: 0 done, 1 bad input or no answer, 2 usage, 130 interrupted.",
)
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an internal error."
)
@click.version_option(__version__, message="daydream %(version)s")
def daydream() -> None:
    """Find out from one profiler trace, without a GPU, how much faster a change makes your training step.

    Start with `daydream rank TRACE`. TRACE is a PyTorch profiler file (.json, .json.gz), a folder of
    them, an Nsight Systems or rocprofv3 export, a JAX profile, or what `daydream import` made of one.
    """


def load_numpy() -> None:
    """Load NumPy without threads for linear algebra, which daydream needs next to none of.

    Starting them takes 50 of the 120 ms of CPU time that loading it takes (two cores, NumPy 2.5).

    The variable that prevents it is gone when it is loaded, so that no program started from here finds it.
    """
    if "numpy" in sys.modules or BLAS_THREADS in os.environ:
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[BLAS_THREADS]


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    before = threading.enumerate()
    leave(run_to_its_end(lambda: run(daydream, args)), before)
