"""The command line: each command is loaded when it is typed.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 a
`DaydreamError`, 2 usage, 130 interrupted, 128 + the number of another signal that ended
it. Nothing heavy is imported here, so that `daydream --help` costs no more than click.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import click

from daydream import __version__
from daydream.text import meant

COMMANDS = {  # heading -> name -> its module, and what it does
    "Start here": {
        "collect": ("collect", "Record a few steps of a training script, unmodified."),
        "explain": ("rank", "Why the step takes its time, and what would shorten it."),
        "rank": ("rank", "Every change that applies, sorted by what it saves."),
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
        "memory": ("memory", "Who holds the peak, and does it fit?"),
        "sweep": ("sweep", "Predict every combination of some options' values."),
        "plan": (".plan.command", "Which strategy of many GPUs fits and is fastest."),
        "scaling": ("sweep", "One GPU's trace on many: throughput, efficiency."),
        "calibrate": ("calibrate", "Time operators on this machine, for predictions."),
        "tool": ("sql", "Run a small analysis over the events of a trace."),
        "sql": ("sql", "Ask a trace in SQL."),
        "mcp": ("mcp", "Serve the same questions to a coding agent."),
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
    from daydream.cli.errors import leave, run, run_to_its_end

    before = threading.enumerate()
    leave(run_to_its_end(lambda: run(daydream, args)), before)
