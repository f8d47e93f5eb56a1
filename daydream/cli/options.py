"""`--contention`: how kernels and transfers that overlap slow each other.

Lists of values as they are typed: `1,2,4,...,64`, where `...` goes on as the numbers before it do.

Commands that take the options of the optimizations they are given.

`--engine`: where many independent questions are answered.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from daydream.cli.source import stdout_for_the_result

if TYPE_CHECKING:
    from daydream.parallel.engines import Engine


def _checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from daydream.errors import GraphError
    from daydream.predict.contention_option import parsed

    try:
        parsed(value)
    except GraphError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


def contention_option() -> click.Option:
    """Return `--contention`."""
    return click.Option(
        ["--contention"],
        default="measured",
        callback=_checked,
        metavar="measured|off|F[,F]",
        help="How many times as long kernels take during a transfer, and, second, transfers during kernels. "
        "By default as measured in the trace, where it can be.",
    )


MOST = 10_000  # numbers that one list may mean


def numbers_of(text: str, read: Callable[[str], Fraction]) -> list[Fraction]:
    """Return the numbers of a list, each part `read` by itself.

    Raises `ValueError` with what is wrong.
    """
    found: list[Fraction] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part == "...":
            if len(found) < 2 or place + 1 == len(parts):
                raise ValueError(f"{text!r}: '...' needs two numbers before it and one after it")
        elif place and parts[place - 1] == "...":
            found += _between(found, read(part))
        else:
            found.append(read(part))
    return found


def _between(found: list[Fraction], last: Fraction) -> list[Fraction]:
    """Return what `...` leaves out and the number after it: equal steps if three show them, else factors."""
    before, one = found[-2:]
    same = len(found) > 2 and one - before == before - found[-3]
    factor = one / before if before else Fraction(0)
    by_steps = same or factor <= 0 or (factor.denominator > 1 and factor.numerator > 1)
    rising = one > before
    following: list[Fraction] = []
    while one != before and (one < last) == rising and one != last and len(following) < MOST:
        before, one = one, 2 * one - before if by_steps else one * factor
        following.append(one)
    if not following or following[-1] != last:
        raise ValueError(f"the numbers before '...' do not lead to {_typed(last)}")
    return following


def _typed(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"{float(number):g}"


CHOSEN = "daydream.optimizations"  # where a context keeps what was named


class OptionTaker(click.Command):
    """A command that has the options of what a context holds as `CHOSEN`, behind its own or before them."""

    theirs_first = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options and those of the optimizations."""
        from daydream.cli.whatif_options import click_options

        chosen = ctx.meta.get(CHOSEN)
        own = super().get_params(ctx)
        theirs = click_options(chosen, own) if chosen else []
        return [*theirs, *own] if self.theirs_first else [*own, *theirs]


class FlagTaker(OptionTaker):
    """A command whose option `flag` names the optimizations."""

    flag: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find what the flag names among the arguments, then parse with their options."""
        from daydream.cli.whatif_options import optimizations_named

        named = _value_of(self.flag, args)
        if named is not None:
            with stdout_for_the_result():
                ctx.meta[CHOSEN] = optimizations_named(ctx, named)
        return super().parse_args(ctx, args)


def _value_of(option: str, args: list[str]) -> str | None:
    """Return the value that an option has among arguments that are not parsed yet: the last one, as click."""
    value = None
    for place, arg in enumerate(args):
        if arg == "--":
            break
        if arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
        elif arg == option and place + 1 < len(args):
            value = args[place + 1]
    return value


def _engine(ctx: click.Context, param: click.Parameter, value: str) -> Engine:
    from daydream.errors import DaydreamError
    from daydream.parallel.engines import engine_of

    try:
        return engine_of(value)
    except DaydreamError as error:
        if error.__cause__ is not None:  # not installed: nothing is wrong with what was typed
            raise
        raise click.BadParameter(str(error), ctx, param) from None


def engine_option() -> click.Option:
    """Return `--engine`."""
    return click.Option(
        ["--engine"],
        callback=_engine,
        default="local",
        show_default=True,
        metavar="ENGINE",
        help="Where it runs: local (this process), processes[:N], dask[:N] or dask:tcp://HOST:PORT.",
    )
