"""The command line: one file a command, loaded when it is typed.

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

COMMANDS = {  # name -> the module that holds the command, a click command called `command`
    "collect": "daydream.cli.collect",
    "import": "daydream.cli.import_",
    "info": "daydream.cli.info",
    "replay": "daydream.cli.replay",
    "whatif": "daydream.cli.whatif",
    "rank": "daydream.cli.rank",
    "sweep": "daydream.cli.sweep",
    "explain": "daydream.cli.explain",
    "memory": "daydream.cli.memory",
    "tool": "daydream.cli.tool",
    "scaling": "daydream.cli.scaling",
    "compare": "daydream.cli.compare",
    "confirm": "daydream.cli.confirm",
    "calibrate": "daydream.cli.calibrate",
    "sql": "daydream.cli.sql",
    "mcp": "daydream.cli.mcp",
    "example": "daydream.cli.example",
}
NEED_NUMPY = {"import", "info", "replay", "whatif", "rank", "sweep", "explain", "scaling", "compare"}
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class Commands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order in which people use them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is typed first; unknown names get the nearest one as a hint."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = meant(name, COMMANDS, f"The commands are {', '.join(COMMANDS)}.")
            raise click.UsageError(f"unknown command {name!r}. {hint}", ctx)
        if name in NEED_NUMPY and not {"-h", "--help"}.intersection(args):
            load_numpy()
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
    epilog="Exit codes: 0 done, 1 bad input or no answer, 2 usage, 130 interrupted.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an internal error.")
@click.version_option(__version__, message="daydream %(version)s")
def daydream() -> None:
    """Ask a profiler trace what an optimization would give, without a GPU.

    Start with `daydream whatif amp --trace TRACE`: TRACE is a PyTorch profiler file
    (.json, .json.gz), a folder of them, an Nsight Systems export (.sqlite), or what
    `daydream import` made of one of these.
    """


def load_numpy() -> None:
    """Load NumPy without threads for linear algebra, which daydream needs next to none of.

    Starting them takes 50 of the 120 ms of CPU time that loading it takes (two cores, NumPy 2.5).

    The variable that says so is gone when it is loaded, so that no program started from here finds it.
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
    from daydream.cli.failures import leave, run, run_to_its_end

    before = threading.enumerate()
    leave(run_to_its_end(lambda: run(daydream, args)), before)
