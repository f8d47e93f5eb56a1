"""What is made when it is first used: importing a module that holds a hundred of them costs next to nothing.

MATRIX = regex(r"gemm|conv")
MATRIX.search(name)  # compiled here, once
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

__all__ = ["regex"]

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
