"""What goes to stdout: the text of a result, or one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

SCHEMA = 1


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, its schema first. What is not a finite number is null."""
    click.echo(json.dumps({"schema": SCHEMA, **_finite(result)}, indent=2, allow_nan=False))


def next_question(graph: Graph) -> str:
    """Return a what-if that this graph can answer, as typed: mixed precision where that changes anything."""
    from daydream.errors import NoMatchError
    from daydream.transforms.compose import apply, parse

    try:
        apply(parse("amp"), graph.copy(), {})
    except NoMatchError:
        on = "gpu" if (graph.columns["kind"] > 0).any() else "cpu"
        return f"scale --on {on} --factor 0.5"
    return "amp"


def _finite(value: Any) -> Any:
    """Return the value with NumPy's numbers as Python's, and null for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if not isinstance(value, str | bool | int | float | None) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
