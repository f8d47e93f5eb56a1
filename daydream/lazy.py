"""Packages whose names are loaded when they are first used: importing one costs next to nothing.

    _HOMES = {"daydream.costs.devices": ("Device", "find_device")}
    __getattr__, __dir__ = lazy.names(__name__, _HOMES)

Type checkers read the same names from imports under `TYPE_CHECKING`, and `__all__`; where a package has those
imports alone, `_HOMES = lazy.imports_of(__file__)`. Regular expressions
are compiled when they are first used, too: a module that holds a dozen of them costs next to nothing.

    MATRIX = regex(r"gemm|conv")
    MATRIX.search(name)  # compiled here, once

What lower floors ask of higher ones. The front page gives the functions: no floor imports upward.

| hook | who asks | what answers |
|---|---|---|
| `html` | nouns in a notebook (`_repr_html_`) | `daydream.report.page` |
| `interactive` | a what-if (`interactive`) | `daydream.report.page` |
| `figure` | nouns (`plot`) | `daydream.report.figures` |
| `fixed_order` | `Graph.to_networkx`, for lanes with a schedule | `daydream.simulate.engine` |
| `block_of_layers` | `Selection.group_by`, for `block` | `daydream.model.blocks` |
| `gradient_bytes` | the column `grad_bytes` of tasks | `daydream.model.gradients` |
| `itemsize` | the column `itemsize` of tasks | `daydream.costs.workload.operator` |
| `real_change` | the training process of `daydream confirm` | `daydream.transforms.real_change` |
| `fake_world` | the training process of `daydream collect --world` | `daydream.world.script` |
| `environment` | what starts that of `--world` | `daydream.world` |
| `refusal` | the training process of either | `daydream.world` |
| `emulated` | the training process of `daydream collect --emulate` | `daydream.world.emulate_rows` |
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["names", "regex"]

if TYPE_CHECKING:
    from re import compile as regex
else:

    class regex:  # noqa: N801 - stands where a function stands
        """A regular expression that is compiled when one of its attributes is first asked for."""

        def __init__(self, text: str | bytes, flags: int = 0) -> None:
            self._given = text, flags

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # pickle and copy ask for what a pattern does not have
                raise AttributeError(name)
            value = getattr(re.compile(*self._given), name)
            self.__dict__[name] = value  # from now on it is found there
            return value

        def __reduce__(self) -> tuple[Any, ...]:  # a worker compiles its own
            return regex, self._given


def imports_of(file: str) -> dict[str, tuple[str, ...]]:
    """Return what a package's source imports under `TYPE_CHECKING`: for each module its names.

    Args:
        file: the package's `__file__`.

    """
    with open(file, encoding="utf-8") as source:
        found = re.findall(
            r"^    from (\S+) import (?:\(([^)]*)\)|(.*))", source.read(), re.MULTILINE
        )
    return {module: tuple(re.findall(r"\w+", several or one)) for module, several, one in found}


def names(
    package: str,
    homes: Mapping[str, tuple[str, ...]],
    rooms: tuple[str, ...] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, for Python to find there (PEP 562).

    Args:
        package: its `__name__`.
        homes: for each module the names that it defines and the package promises.
        rooms: packages inside it that are attributes of it without an import of their own.

    """
    home = {name: module for module, its_names in homes.items() for name in its_names}

    def load(name: str) -> Any:
        if name in rooms:
            return importlib.import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def known() -> list[str]:
        there = vars(sys.modules[package])
        return sorted({*there["__all__"], *(name for name in there if name.startswith("__"))})

    return load, known


_GIVEN: dict[str, tuple[str, str]] = {}


def give(answers: Mapping[str, tuple[str, str]]) -> None:
    """Say which function answers each hook: its module, imported when it is asked, and its name."""
    _GIVEN.update(answers)


def ask(hook: str, *args: Any, **options: Any) -> Any:
    """Return what the function of a hook answers."""
    module, name = _GIVEN[hook]
    return getattr(import_module(module), name)(*args, **options)


class NotebookTables:
    """Something that a notebook draws as HTML tables."""

    def _repr_html_(self) -> str:
        return str(ask("html", self))


class NotebookFigure(NotebookTables):
    """Something that there is a figure of, too."""

    def plot(self, **options: Any) -> Any:
        """Return a `matplotlib.figure.Figure`; a step's timeline takes `step`, a number.

        Raises `DaydreamError` if matplotlib is not installed: it comes with the extra `notebook`.
        """
        return ask("figure", self, **options)
