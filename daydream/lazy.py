"""Packages whose names are loaded when they are first used: importing one costs next to nothing.

    _HOMES = {"daydream.costs.devices": ("Device", "find_device")}
    __getattr__, __dir__ = lazy.names(__name__, _HOMES)

Type checkers read the same names from imports under `TYPE_CHECKING`, and `__all__`. Regular expressions
are compiled when they are first used, too: a module that holds a dozen of them costs next to nothing.

    MATRIX = regex(r"gemm|conv")
    MATRIX.search(name)  # compiled here, once
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Mapping
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


def names(
    package: str,
    homes: Mapping[str, tuple[str, ...]],
    retired: Mapping[str, str] | None = None,
    rooms: tuple[str, ...] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, for Python to find there (PEP 562).

    Args:
        package: its `__name__`.
        homes: for each module the names that it defines and the package promises.
        retired: old name -> new name; the old one still works, with a `DeprecationWarning`.
        rooms: packages inside it that are attributes of it without an import of their own.

    """
    home = {name: module for module, its_names in homes.items() for name in its_names}
    old = retired or {}

    def load(name: str) -> Any:
        if name in old:
            warnings.warn(
                f"{package}.{name} is {package}.{old[name]} now; the old name goes with version 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
            return load(old[name])
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
