"""`daydream whatif --list`: what there is to ask about, by area, each with its options."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.source import stdout_for_the_result

if TYPE_CHECKING:
    from daydream.transforms.registry import Optimization, Option

WIDTH = 110
UNBROKEN = "\0"  # stands for a space where a line must not end


def print_list(*, as_json: bool) -> None:
    """Print the optimizations that ship and that other packages add."""
    from daydream.cli.output import print_json
    from daydream.transforms.registry import loadable

    with stdout_for_the_result():
        found, broken = loadable()
    if as_json:
        unusable = [
            {"name": name, "summary": error, "options": [], "error": error} for name, error in broken.items()
        ]
        print_json({"optimizations": [*map(_described, found), *unusable]})
        return
    click.echo(list_text(found, broken))
    click.echo("next: daydream whatif NAME --help   or   daydream whatif NAME --trace TRACE", err=True)


def list_text(optimizations: list[Optimization], broken: Mapping[str, str] | None = None) -> str:
    """Return the optimizations under a heading for each stage: name and summary, then the options.

    At last those that are `broken`, with what is wrong with each.
    """
    from daydream.report.format import printable
    from daydream.transforms.stages import TITLES

    margin = max((len(each.name) for each in optimizations), default=0) + 4
    lines = []
    for stage, title in TITLES.items():
        here = [each for each in optimizations if each.stage == stage]
        if here:
            lines += ["", title]
        for each in here:
            head = f"  {printable(each.name)}".ljust(margin)
            lines += _wrapped(printable(each.summary), head, " " * margin)
            options = [_option_text(option) for option in each.options]
            if options:
                lines += _wrapped("   ".join(options), " " * (margin + 2), " " * (margin + 2))
    if broken:
        lines += ["", "cannot be loaded"]
        for name, error in broken.items():
            lines += _wrapped(printable(error), f"  {printable(name)}".ljust(margin), " " * margin)
    return "\n".join(lines[1:])


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace(UNBROKEN, " ") for line in lines] or [first.rstrip()]


def _option_text(option: Option) -> str:
    """Return an option with its default, as one word."""
    if option.required:
        words = [option.flag, f"{option.type.__name__.upper()},", "needed"]
    elif option.type is bool:
        words = [f"--no-{option.flag[2:]}" if option.default else option.flag]
    else:
        words = [option.flag, option.type.__name__.upper() if option.default is None else str(option.default)]
    return UNBROKEN.join(words)


def _described(optimization: Optimization) -> dict[str, Any]:
    return {
        "name": optimization.name,
        "summary": optimization.summary,
        "options": [
            {
                "name": option.name, "flag": option.flag, "type": option.type.__name__,
                "default": option.default, "required": option.required,
            }
            for option in optimization.options
        ],
    }  # fmt: skip
