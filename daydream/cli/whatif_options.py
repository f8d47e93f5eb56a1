"""An optimization's keyword-only parameters as options of the command line."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from daydream.errors import GraphError
from daydream.transforms.compose import check, option_names, parts

if TYPE_CHECKING:
    from daydream.transforms.registry import Optimization, Option

OWN = "option_"  # how their values are named among the command's parameters


class Number(click.types.FloatParamType):
    """A float that is a finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the float, or fail with one line."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Qualified(click.Option):
    """An option that also goes by its qualified name (`--amp.math-speedup`), which its help leaves out."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the help with the short name only."""
        return click.Option.get_help_record(self._short(), ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the short name, for messages."""
        return click.Option.get_error_hint(self._short(), ctx)

    def _short(self) -> click.Option:
        """Return the option as if it had its first name only."""
        short = copy.copy(self)
        short.opts, short.secondary_opts = self.opts[:1], self.secondary_opts[:1]
        return short


def optimizations_named(ctx: click.Context, spec: str) -> list[Optimization]:
    """Return the optimizations of `a+b`. What cannot be asked for together is a usage error.

    Raises `DaydreamError` for one that there is not, or whose file cannot be loaded.
    """
    from daydream.transforms.registry import find

    try:
        names = parts(spec)
    except GraphError as error:
        raise click.UsageError(str(error), ctx) from None
    found = [find(name) for name in names]
    try:
        check(found)
    except GraphError as error:
        raise click.UsageError(str(error), ctx) from None
    return found


def click_options(
    optimizations: Sequence[Optimization], own: Sequence[click.Parameter]
) -> list[click.Parameter]:
    """Return an option for each parameter, qualified where the command has one of that name."""
    taken = {flag for parameter in own for flag in parameter.opts} | {"--help"}
    options: list[click.Parameter] = []
    for index, (name, (optimization, option)) in enumerate(option_names(optimizations).items()):
        short = option.name.replace("_", "-")
        whole = f"{optimization.name}.{short}"
        ambiguous = "." in name or f"--{short}" in taken
        options.append(_option(f"{OWN}{index}", [whole] if ambiguous else [short, whole], option))
    return options


def option_values(optimizations: Sequence[Optimization], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were typed, by the names that `compose.apply` takes."""
    values = {name: given[f"{OWN}{index}"] for index, name in enumerate(option_names(optimizations))}
    return {name: value for name, value in values.items() if value is not None}


def typed_options(values: Mapping[str, Any]) -> list[str]:
    """Return values of options as they are typed; those that are None are not."""
    words: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words


def _option(parameter: str, names: list[str], option: Option) -> click.Option:
    choices = option.choices
    kind: click.ParamType[Any] | type = option.type
    if choices:
        kind = click.Choice(choices)
    elif option.type is float:
        kind = Number()
    switch = option.type is bool
    if option.required:
        said = ""
    elif option.default is None:
        said = "Not set by default."
    else:
        said = f"{option.default} by default."
    if switch:  # three states: not typed, yes, no
        both = [f"--{name}/--no-{name}" for name in names]
        return Qualified([parameter, *both], default=None, help=said)
    metavar = None if choices else option.type.__name__.upper()
    flags = [f"--{name}" for name in names]
    return Qualified([parameter, *flags], type=kind, required=option.required, metavar=metavar, help=said)
