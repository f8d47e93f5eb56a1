"""An optimization's keyword-only parameters as options of the command line."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from daydream.transforms.compose import option_names

if TYPE_CHECKING:
    from daydream.transforms.registry import Optimization, Option

OWN = "option_"  # how their values are named among the command's parameters


class Number(click.types.FloatParamType):
    """A float that is a number: infinity is one (infinitely faster), NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the float, or fail with one line."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def click_options(
    optimizations: Sequence[Optimization], own: Sequence[click.Parameter]
) -> list[click.Parameter]:
    """Return an option for each parameter, qualified where the command has one of that name."""
    taken = {flag for parameter in own for flag in parameter.opts} | {"--help"}
    options: list[click.Parameter] = []
    for index, (name, (optimization, plain)) in enumerate(option_names(optimizations).items()):
        option = next(each for each in optimization.options if each.name == plain)
        flag = "--" + name.replace("_", "-")
        if flag in taken:
            flag = f"--{optimization.name}.{plain.replace('_', '-')}"
        options.append(_option(f"{OWN}{index}", flag, optimization, option))
    return options


def option_values(optimizations: Sequence[Optimization], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were typed, by the names that `compose.apply` takes."""
    values = {name: given[f"{OWN}{index}"] for index, name in enumerate(option_names(optimizations))}
    return {name: value for name, value in values.items() if value is not None}


def _option(parameter: str, flag: str, optimization: Optimization, option: Option) -> click.Option:
    choices = _choices(optimization, option)
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
        return click.Option([parameter, f"{flag}/--no-{flag[2:]}"], default=None, help=said)
    metavar = None if choices else option.type.__name__.upper()
    return click.Option([parameter, flag], type=kind, required=option.required, metavar=metavar, help=said)


def _choices(optimization: Optimization, option: Option) -> list[str]:
    """Return the values of a parameter annotated as a `Literal`, else nothing."""
    try:
        hint = typing.get_type_hints(optimization.function).get(option.name)
    except (NameError, TypeError):
        return []
    for kind in (hint, *typing.get_args(hint)):
        if typing.get_origin(kind) is typing.Literal:
            return [str(value) for value in typing.get_args(kind)]
    return []
