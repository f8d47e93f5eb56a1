"""Several optimizations at once: `amp+fused-adam`, applied in the order they are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daydream.errors import GraphError
from daydream.graph.graph import Graph
from daydream.transforms.registry import Optimization, describe, find


def parse(spec: str | Optimization | Callable[..., None] | Sequence[Any]) -> list[Optimization]:
    """Return the optimizations of `"a+b"`, of a function, or of a sequence of either."""
    if isinstance(spec, Optimization):
        return [spec]
    if isinstance(spec, str):
        if Path(spec).is_file():  # a path may contain a plus sign
            return [find(spec)]
        parts = [part for part in spec.split("+") if part]
        if not parts:
            raise GraphError("name an optimization, such as amp")
        return [find(part) for part in parts]
    if callable(spec):
        return [describe(spec)]
    return [optimization for part in spec for optimization in parse(part)]


def option_names(optimizations: Sequence[Optimization]) -> dict[str, tuple[Optimization, str]]:
    """Return every option by the name it goes by: its own, or `<optimization>.<option>` where two clash."""
    named: dict[str, tuple[Optimization, str]] = {}
    for optimization in optimizations:
        for option in optimization.options:
            clash = any(
                option.name == other.name
                for mate in optimizations
                if mate is not optimization
                for other in mate.options
            )
            name = f"{optimization.name.replace('-', '_')}.{option.name}" if clash else option.name
            named[name] = (optimization, option.name)
    return named


def apply(optimizations: Sequence[Optimization], graph: Graph, options: Mapping[str, Any]) -> dict[str, Any]:
    """Apply each optimization to the graph; return the options used, defaults included.

    Raises `GraphError` for an option that none of them has, or one that is missing.
    """
    named = option_names(optimizations)
    for name in options:
        if name not in named:
            known = ", ".join(named) or "none"
            raise GraphError(
                f"{'+'.join(o.name for o in optimizations)} has no option {name!r}; it has {known}"
            )
    used: dict[str, Any] = {}
    for optimization in optimizations:
        arguments = {}
        for name, (owner, option_name) in named.items():
            if owner is not optimization:
                continue
            option = next(o for o in optimization.options if o.name == option_name)
            value = options.get(name, option.default)
            if option.required and name not in options:
                raise GraphError(f"{optimization.name} needs {option.flag}")
            arguments[option_name] = used[name] = value
        try:
            optimization.function(graph, **arguments)
        except ZeroDivisionError:
            zero = ", ".join(name for name, value in arguments.items() if value == 0)
            raise GraphError(f"{optimization.name} cannot work with {zero or 'these options'} = 0") from None
    return used
