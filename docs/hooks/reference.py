"""The pages of the commands and of the Python API, from their help and docstrings."""

from __future__ import annotations

import importlib
import inspect

import click

import daydream
from daydream.cli import daydream as command_line

ABOUT_COMMANDS = """\
What `daydream COMMAND --help` prints; `daydream whatif NAME --help` has the options of an optimization, as
its [page](optimizations.md) does. The result goes to stdout, everything else to stderr. Exit codes: 0 done,
1 bad input or no answer, 2 usage, 130 interrupted; `collect` passes on the script's own."""
PROMISED = ("daydream.costs", "daydream.memory", "daydream.model", "daydream.transforms")
ABOUT_API = """\
Names are attributes of `daydream`, and those for optimizations of [three packages](extending.md). Times are
integer nanoseconds (`_ns`), sizes bytes. What goes wrong is a `DaydreamError` that says what was found, what
was needed and what to do."""


def commands() -> str:
    """Return the help of every command, as the terminal shows it."""
    lines = ["# Commands", "", ABOUT_COMMANDS]
    context = click.Context(command_line, info_name="daydream", **command_line.context_settings)
    for name in command_line.list_commands(context):
        command = command_line.get_command(context, name)
        if command is not None:
            inner = click.Context(command, parent=context, info_name=name, terminal_width=96)
            lines += ["", f"## {name}", "", "```text", command.get_help(inner), "```"]
    return "\n".join(lines) + "\n"


def api() -> str:
    """Return the page of the public names, for mkdocstrings to fill."""
    homes = {name: getattr(daydream, name) for name in daydream.__all__}
    classes = [name for name, value in homes.items() if inspect.isclass(value)]
    errors = [name for name in classes if issubclass(homes[name], Exception)]
    classes = [name for name in classes if name not in errors]
    functions = [name for name in homes if name not in {*errors, *classes}]
    lines = ["# Python API", "", ABOUT_API]
    parts = {"From a trace to an answer": functions, "What you get": classes, "Errors": errors}
    for title, these in parts.items():
        lines += ["", f"## {title}"]
        for name in these:
            lines += ["", f"::: {_home('daydream', name)}.{name}"]
            if name in errors:
                lines += ["    options: {members: false}"]
    for package in PROMISED:
        module = importlib.import_module(package)
        lines += ["", f"## For optimizations: `{package}`"]
        for name in module.__all__:
            value = getattr(module, name)
            if name not in daydream.__all__ and (inspect.isclass(value) or inspect.isroutine(value)):
                lines += ["", f"::: {_home(package, name)}.{name}"]
    return "\n".join(lines) + "\n"


def _home(package: str, name: str) -> str:
    """Return the module that defines a public name of a package."""
    home = getattr(getattr(importlib.import_module(package), name), "__module__", "")
    return home if hasattr(importlib.import_module(home), name) else package
