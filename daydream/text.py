"""How counts and lists are said: `1 task`, `1,024 tasks`; `a, b and 3 more`."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 task`, `1,024 tasks`.

    Args:
        number: how many.
        one: the noun for one.
        many: for several; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names joined by commas; of a long list the first ones and how many more there are.

    Args:
        names: what to list.
        most: how many are named at most.
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 2])} and {len(names) - most + 2:,} more"
