"""Options: those that commands share, how their values are read, and how help lists them.

Help has the options of a command under headings: what they ask (`ANSWER`), what is printed and written
(`OUTPUT`), and how the trace is read (`READING`), which `--help-all` shows.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.transforms.registry import Option as Described
from daydream.transforms.registry import options_of

if TYPE_CHECKING:
    from fractions import Fraction

ANSWER = "Answer"
OUTPUT = "Output"
READING = "Reading the trace"
MEASURED = "measured"  # the default of --contention
AUTO = "auto"  # `--steps` then says how steps are found, else which are read
MOST = 10_000  # numbers that one list may mean
UNITS = " KMGT"
SIZE = regex(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE | re.ASCII)


class Option(click.Option):
    """An option under a heading of the help; its qualified name (`--amp.math-speedup`) is not shown."""

    def __init__(self, *flags: str, group: str = ANSWER, **how: Any) -> None:
        super().__init__(flags, **how)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option as it is typed, and what it does."""
        return click.Option.get_help_record(self._short(), ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the option's name for messages."""
        return click.Option.get_error_hint(self._short(), ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what stands behind the help: the default, and whether it is required, but no range."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra

    def _short(self) -> click.Option:
        """Return the option as if it had no qualified name, but where it has no other."""
        short = copy.copy(self)
        for names in ("opts", "secondary_opts"):
            flags = getattr(self, names)
            setattr(
                short,
                names,
                [flag for flag in flags if "." not in flag] or flags,
            )
        return short


class Parsed(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2
    """A value that a function makes of the text; what it raises is a usage error."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the text means."""
        try:
            return self.parse(value)
        except (DaydreamError, ValueError) as error:
            if error.__cause__ is not None:  # a package is missing: nothing is wrong with the text
                raise
            self.fail(str(error), param, ctx)


def click_option(
    option: Described,
    name: str,
    flags: Sequence[str],
    *,
    group: str = ANSWER,
    type: Any = None,
    default: Any = None,
    required: bool | None = None,
) -> Option:
    """Return the option of the command line for one that a function has.

    Args:
        option: as the function describes it.
        name: what it goes by among the command's parameters.
        flags: how it is typed, without dashes.
        group: its heading.
        type: what reads a value; None for what the option's type says.
        default: the value of one that is not given.
        required: whether it must be given; None for what the option says.
    """
    how: dict[str, Any] = {"type": type or (NUMBER if option.type is float else option.type)}
    shown = option.default
    if option.choices:
        how["type"] = click.Choice(option.choices)
    elif isinstance(default, tuple):
        how = {"multiple": True, "metavar": option.unit, "type": how["type"]}
        shown = None
    elif default is False:
        how = {"is_flag": True}
        shown = None
    elif option.type is bool:  # not given, yes, no
        shown = None if shown is None else f"--{'' if shown else 'no-'}{flags[0]}"
        flags = [f"{each}/--no-{each}" for each in flags]
        how = {}
    else:
        how["metavar"] = option.unit or {int: "N", float: "X", str: "TEXT"}[option.type]
    if default is not None or option.type is bool:
        how["default"] = default
    return Option(
        name,
        *(f"--{each}" if len(each) > 1 else f"-{each}" for each in flags),
        group=group,
        help=option.help + (f" [default: {shown}]" if shown is not None else ""),
        required=option.required if required is None else required,
        **how,
    )


# Values --------------------------------------------------------------------------------------------


def bytes_of(text: str) -> int:
    """Return how many bytes a text means: 1 GB is 1e9 bytes, 1 GiB is 2**30, and `G` is GB.

    Raises:
        ValueError: it is no amount, or none of at least one byte.

    """
    from decimal import Decimal  # for those who type one

    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 24GB or 79.6GiB")
    unit = (1024 if found[3] else 1000) ** UNITS.index((found[2] or " ").upper())
    nbytes = int(Decimal(found[1]) * unit)
    if nbytes < 1:
        raise ValueError(f"{text!r} is less than one byte; a size such as 24GB was needed")
    return nbytes


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression ({error})") from None
    return text


def _steps(text: str) -> str:
    from daydream.trace.step_range import is_range

    if text != AUTO and not is_range(text):
        raise ValueError(f"{text!r} is not 'auto', nor a range of steps such as 10:20")
    return text


def _contention(text: str) -> str:
    from daydream.predict.contention_option import parsed

    parsed(text)
    return text


def _engine(text: str) -> Any:
    from daydream.parallel import engine_of

    return engine_of(text)


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a valid float") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def _time(text: str) -> float:
    if not (number := _finite(text)) >= 0:
        raise ValueError(f"{text!r} is not a time of 0 or more")
    return number


def _seconds(text: str) -> float:
    if not (number := _time(text)):
        raise ValueError("give a number of seconds above 0.")
    return number


NUMBER = Parsed(_finite)
TIME = Parsed(_time)
BYTES = Parsed(bytes_of)
SECONDS = Parsed(_seconds)
SOME = click.IntRange(1)


def numbers_of(text: str, read: Callable[[str], Fraction]) -> list[Fraction]:
    """Return the numbers of a list such as `1,2,4,...,64`, each part `read` by itself.

    `...` continues as the numbers before it do: by equal steps if three show them, else by factors.

    Raises `ValueError` with what is wrong.
    """
    from fractions import Fraction  # for those who type a list

    found: list[Fraction] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part != "...":
            found.append(read(part))
            continue
        if len(found) < 2 or place + 1 == len(parts):
            raise ValueError(f"{text!r}: '...' needs two numbers before it and one after it")
        last, (before, one) = read(parts[place + 1]), found[-2:]
        factor = one / before if before else Fraction(0)
        step = Fraction(0)
        even = len(found) > 2 and one - before == before - found[-3]
        if even or factor <= 0 or 1 not in (factor.numerator, factor.denominator):
            factor = Fraction(1)
            step = one - before
        more = [one * factor + step]
        while (more[-1] < last) == (one > before) and more[-1] != last and len(more) < MOST:
            more.append(more[-1] * factor + step)
        if more.pop() != last or one == last:
            shown = str(last) if last.denominator == 1 else f"{float(last):g}"
            raise ValueError(f"the numbers before '...' do not lead to {shown}")
        found += more
    return found


# Shared options ------------------------------------------------------------------------------------


def shared(
    table: str | None = None,
    capacity: int | None = None,
    contention: str = MEASURED,
    engine: Any = "local",
) -> None:
    """Stand for the options that several commands have.

    Args:
        table (FILE): Measured kernel or operator times (CSV, `calibrate`).
        capacity (SIZE): Memory per device, such as 24GB: does the step fit?
        contention (FACTOR): Slowdown of overlap: off, F or F,F.
        engine (ENGINE): Where it runs: local, processes[:N], dask[:N], dask:tcp://HOST:PORT.
    """


SHARED = {each.name: each for each in options_of(shared)[1]}
FLAGS = {
    "as_json": ["json"],
    "output": ["o", "output"],
    "verbose": ["v", "verbose"],
    "module": ["m"],
}
TYPES = {  # what reads values of those, and of the parts of a command line
    "capacity": BYTES,
    "contention": Parsed(_contention),
    "engine": Parsed(_engine),
    "step_marker": Parsed(_regex),
    "steps": Parsed(_steps),
    "max_unpacked": BYTES,
    "nproc_per_node": SOME,
}
COUNTS = {
    "steps": SOME,
    "warmup": click.IntRange(0),
    "world": SOME,
    "cpu": click.Choice(["slow", "typical", "fast"]),
}
SCRIPT = (
    click.Argument(["target"], metavar="[-m MODULE | SCRIPT]"),
    click.Argument(["args"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGS...]"),
)
TRACE = click.Argument(["traces"], nargs=-1, metavar="TRACE")
NAMED = Option(
    "--trace",
    group=READING,
    multiple=True,
    metavar="TRACE",
    help="TRACE by name: what `import` wrote, or anything it accepts.",
)
