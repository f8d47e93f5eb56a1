"""How counts, sizes and lists are said: `1 task`, `1,024 tasks`; `1.50 GiB`; `a, b and 3 more`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 task`, `1,024 tasks`.

    Args:
        number: how many.
        one: the noun for one.
        many: for several; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def bytes_text(nbytes: float) -> str:
    """Return an amount of memory with four digits or so: `512 bytes`, `1.50 MiB`, `69.48 GiB`.

    Args:
        nbytes: how many bytes; below 10 GiB MiB are told.
    """
    if abs(nbytes) < 1 << 10:
        return counted(round(nbytes), "byte")
    unit, size = memory_unit(nbytes)
    value = nbytes / size
    return f"{value:,.{1 if abs(value) >= 100 else 2}f} {unit}"


def memory_unit(nbytes: float) -> tuple[str, int]:
    """Return the unit in which an amount of memory is told, and its bytes: KiB, MiB or GiB."""
    if abs(nbytes) >= 10 << 30:
        return "GiB", 1 << 30
    return ("MiB", 1 << 20) if abs(nbytes) >= 1 << 20 else ("KiB", 1 << 10)


def rounded_time(ns: float) -> str:
    """Return a time with three digits: `0.123 ms`, `1.75 s`."""
    return f"{ns / 1e9:,.3g} s" if ns >= 1e9 else f"{ns / 1e6:,.3g} ms"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names joined by commas; of a long list the first ones and how many more there are.

    Args:
        names: what to list.
        most: how many are named at most.
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 2])} and {len(names) - most + 2:,} more"


def capacity_text(nbytes: int) -> str:
    """Return a capacity in the unit in which it has two decimals at most: `24 GB`, `1.5 GiB`."""
    for unit, size in (("GB", 10**9), ("GiB", 1 << 30), ("MB", 10**6), ("MiB", 1 << 20)):
        if size <= nbytes < 10_000 * size and not 100 * nbytes % size:
            return f"{nbytes / size:g} {unit}"
    return bytes_text(nbytes)


def meant(word: str, known: Iterable[str], otherwise: str = "", most: int = 1) -> str:
    """Return `Did you mean 'amp'?` of the known words most like this one, `otherwise` where none is."""
    from difflib import get_close_matches  # which only who mistyped waits for

    near = get_close_matches(word, known, most)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else otherwise
