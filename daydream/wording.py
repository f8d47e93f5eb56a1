"""How counts are said: `1 task`, `1,024 tasks`."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, `many` being `one` with an s if not given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
