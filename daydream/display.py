"""How the nouns show themselves: in a notebook, and as objects of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from daydream import hooks


class NotebookTables:
    """Something that a notebook draws as HTML tables."""

    def _repr_html_(self) -> str:
        return str(hooks.ask("html", self))


class NotebookFigure(NotebookTables):
    """Something that there is a figure of, too."""

    def plot(self, **options: Any) -> Any:
        """Return a `matplotlib.figure.Figure`; a step's timeline takes `step`, a number.

        Raises `DaydreamError` if matplotlib is not installed: it comes with `daydream[notebook]`.
        """
        return hooks.ask("figure", self, **options)


def as_json(noun: Any, keys: str) -> dict[str, Any]:
    """Return attributes of a noun as an object of JSON, in the order of `keys`.

    Args:
        noun: any object.
        keys: the names, parted by spaces; `key=path` where the attribute has another name, or is one of
            an attribute (`replay_error=replay.error`).
    """
    pairs = [key.partition("=") for key in keys.split()]
    return {key: plain(attrgetter(path or key)(noun)) for key, _, path in pairs}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: nouns as their own objects or their fields, causes by name, lists."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
