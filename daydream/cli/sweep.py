"""`daydream sweep`: one what-if with every combination of some options' values, over one or many traces."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.options import CHOSEN, contention_option, engine_option, numbers_of
from daydream.cli.source import (
    capacity_option,
    force_option,
    json_option,
    read,
    stdout_for_the_result,
    table_option,
    trace_options,
)
from daydream.cli.whatif import WhatIf

if TYPE_CHECKING:
    from daydream.parallel.engines import Engine
    from daydream.predict.sweep import Sort, Sweep
    from daydream.transforms.registry import Optimization, Option

SHOWN = 12
FORMATS = (".csv", ".parquet")


class SweepCommand(WhatIf):
    """A command that takes the options of what it sweeps, which `--set` may give instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the optimizations from `--set NAME.OPTION=LIST` where they are not named besides."""
        return super().parse_args(ctx, args if self._words(args) else [*_named_in(args), *args])

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's options and the optimizations', none of these required."""
        own = click.Command.get_params(self, ctx)
        params = []
        for param in super().get_params(ctx):
            if param.required and param not in own:
                param = copy.copy(param)  # noqa: PLW2901 - of an option that lives as long as this call
                param.required = False
            params.append(param)
        return params


def _named_in(args: list[str]) -> list[str]:
    """Return `NAME+NAME` of what `--set` qualifies in some arguments; nothing if it does not."""
    given = [arg.removeprefix("--set=") for arg in args if arg.startswith("--set=")]
    given += [value for flag, value in pairwise(args) if flag == "--set"]
    options = [each.partition("=")[0].strip() for each in given]
    names = dict.fromkeys(each.rpartition(".")[0].replace("_", "-") for each in options if "." in each)
    return ["+".join(names)] if names else []


def _sweep(
    name: str | None,
    trace: tuple[str, ...],
    step_marker: str | None,
    steps: str | None,
    table: str | None,
    contention: str,
    capacity: int | None,
    varied: tuple[str, ...],
    top: int,
    sort: Sort | None,
    engine: Engine,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict every combination of some options' values, and sort by the step.

    NAME is what `daydream whatif` takes; --set NAME.OPTION=... names it, too. Each --set gives an option
    its values; `...` goes
    on as the numbers before it do: --set workers=2,4,...,64. Options that stay are given as
    in a what-if. Scenarios that do not apply are listed with the reason.
    """
    ctx = click.get_current_context()
    if name is None:
        raise click.UsageError("name an optimization, such as ddp; `daydream whatif --list` shows them", ctx)
    from daydream.cli.output import check, print_json, print_screen
    from daydream.cli.progress import Progress
    from daydream.cli.whatif_options import option_values
    from daydream.errors import DaydreamError
    from daydream.predict.contention_option import MEASURED
    from daydream.predict.sweep import sweep
    from daydream.report.view import view

    optimizations: list[Optimization] = ctx.meta[CHOSEN]
    fixed = option_values(optimizations, options)
    values = _values(ctx, optimizations, varied, fixed)
    again = next((each for place, each in enumerate(trace) if each in trace[:place]), None)
    if again is not None:
        raise click.UsageError(f"the trace {again} is given twice", ctx)
    if output is not None:
        if not output.endswith(FORMATS):
            raise click.BadParameter(f"name it {' or '.join(FORMATS)}", ctx, param_hint="-o")
        check(output, force=force)
    with Progress() as progress, stdout_for_the_result():
        recordings = {each: read([each], step_marker, steps, progress, typical=True) for each in trace}
        progress("replaying")
        found = sweep(
            recordings, optimizations, values, table=table, contention=contention, engine=engine, sort=sort,
            capacity=capacity, progress=progress, **fixed,
        )  # fmt: skip
        if output is not None:
            progress(f"writing {output}")
            found.save(output, force=force)
    if as_json:
        print_json(found.to_json())
    else:
        print_screen(view(found, top=top))
    if output is not None:
        click.echo(f"wrote {output}", err=True)
    elif not as_json and found.scenarios:
        typed = {
            "table": table, "contention": None if contention == MEASURED else contention,
            "step_marker": step_marker, "steps": steps,
        }  # fmt: skip
        click.echo(f"next: {_next(optimizations, found, fixed, typed)}", err=True)
    if not found.scenarios:
        raise DaydreamError("no scenario could be answered; the reasons are listed")


def _next(
    optimizations: Sequence[Optimization],
    found: Sweep,
    fixed: Mapping[str, Any],
    typed: Mapping[str, str | None],
) -> str:
    """Return the what-if of the first scenario that may fit, as typed."""
    from daydream.cli.whatif_options import typed_options

    best = next(iter(found.possible), found.scenarios[0])
    named = "+".join(each.name for each in optimizations)
    words = [named, *typed_options({**fixed, **best.options}), *typed_options(typed)]
    return f"daydream whatif {shlex.join([*words, '--trace', best.trace])}"


# What --set says -----------------------------------------------------------------------------------


def _values(
    ctx: click.Context, optimizations: Sequence[Optimization], varied: Sequence[str], fixed: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return the values of each option that varies. What cannot be is a usage error."""
    from daydream.errors import GraphError
    from daydream.predict.sweep import checked
    from daydream.transforms.compose import goes_by, option_names

    named = option_names(optimizations)
    values: dict[str, list[Any]] = {}
    for said in varied:
        typed, equals, listed = said.partition("=")
        name = goes_by(named, typed.strip().lstrip("-").replace("-", "_"))
        if not equals:
            raise _wrong(ctx, f"{said!r} is not of the form option=value,value")
        if name not in named:
            raise _wrong(ctx, f"unknown option {typed!r}; choose from {', '.join(named) or 'none'}")
        if name in values or name in fixed:
            raise _wrong(ctx, f"{typed} is given twice")
        try:
            values[name] = values_of(listed, named[name][1])
        except ValueError as error:
            raise _wrong(ctx, f"{typed}: {error}") from None
    try:
        checked(optimizations, values, fixed)
    except GraphError as error:
        raise click.UsageError(str(error), ctx) from None
    return values


def _wrong(ctx: click.Context, what: str) -> click.BadParameter:
    return click.BadParameter(what, ctx, param_hint="--set")


def values_of(text: str, option: Option) -> list[Any]:
    """Return the values of a list as the option takes them: numbers, yes or no, or texts.

    Raises `ValueError` for what is no such value.
    """
    if option.type is int:
        return [int(number) for number in numbers_of(text, _whole)]
    if option.type is float:
        return [float(number) for number in numbers_of(text, _number)]
    parts = [part.strip() for part in text.split(",")]
    if option.type is bool:
        return [_switch(part) for part in parts]
    if not all(parts):
        raise ValueError(f"{text!r} has an empty value")
    return parts


def _number(text: str) -> Fraction:
    try:
        return Fraction(str(float(text)) if "/" in text else text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number") from None


def _whole(text: str) -> Fraction:
    number = _number(text)
    if number.denominator > 1:
        raise ValueError(f"{text!r} is not a whole number")
    return number


def _switch(text: str) -> bool:
    if text.lower() not in {"yes", "no", "true", "false", "on", "off"}:
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() in {"yes", "true", "on"}


def _parameters() -> list[click.Parameter]:
    trace, *steps = trace_options()
    trace.multiple = True
    trace.help = "A trace, as for `daydream whatif`; may be given several times."
    return [
        click.Argument(["name"], required=False, metavar="NAME[+NAME...]"),
        trace,
        *steps,
        click.Option(
            ["--set", "varied"], multiple=True, required=True, metavar="OPTION=LIST",
            help="An option and its values, 1,2,4,...,64 or a,b; may be given several times.",
        ),
        table_option(),
        contention_option(),
        capacity_option(),
        engine_option(),
        click.Option(
            ["--sort"], type=click.Choice(["step", "speedup", "order"]),
            help="What comes first: the shortest step (by default), of several traces the largest "
            "speed-up, or what was asked first.",
        ),
        click.Option(
            ["--top"], type=click.IntRange(1), default=SHOWN, show_default=True, metavar="N",
            help="How many rows to show; --json and -o have all.",
        ),
        click.Option(["-o", "--output"], metavar="FILE", help="Write all scenarios: .csv or .parquet."),
        force_option(),
        json_option(),
    ]  # fmt: skip


command = SweepCommand(
    "sweep",
    callback=_sweep,
    help=_sweep.__doc__,
    short_help="Predict every combination of some options' values.",
    params=_parameters(),
)
