"""What goes to stdout: the text of a result, or one JSON object."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from daydream.report.text.layout import Screen

SCHEMA = 1


def print_next(*words: str) -> None:
    """Say on stderr what may be typed next."""
    from daydream.report.text.layout import printable

    click.echo(f"next: daydream {printable(shlex.join(words))}", err=True)


def print_screen(screen: Screen) -> None:
    """Print a report: fitted to a terminal and with colour there, else its plain text."""
    if sys.stdout.isatty():
        from daydream.report.text.console import show

        show(screen)
    else:
        click.echo(screen)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, its schema first. What is not a finite number is null."""
    click.echo(json.dumps({"schema": SCHEMA, **_finite(result)}, indent=2, allow_nan=False))


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
