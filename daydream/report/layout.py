"""Figures and tables as plain text: units, aligned columns, wrapped notes. ASCII only."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 96
UNITS = (("ms", 1_000_000), ("us", 1_000))
MARGIN = "  "


def time_text(ns: float) -> str:
    """Return a time with four digits or so and its unit: `222.4 ms`, `7.00 us`."""
    unit, size = UNITS[0] if abs(ns) >= 1e6 else UNITS[1]
    return f"{number(ns / size)} {unit}"


def number(value: float) -> str:
    """Return a figure with four digits or so and thousands separators."""
    if not value:
        return "0"
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"


def range_text(low_ns: float, high_ns: float) -> str:
    """Return a range with its unit once: `120.1 to 130.3 ms`."""
    unit, size = UNITS[0] if abs(high_ns) >= 1e6 else UNITS[1]
    return f"{number(low_ns / size)} to {number(high_ns / size)} {unit}"


def percent(share: float, *, signed: bool = False) -> str:
    """Return a share in percent: `0.70 %`, `12.3 %`."""
    value = 100 * share
    digits = 2 if abs(value) < 10 else 1
    if abs(value) < 0.5 * 10**-digits:
        return f"{0:.{digits}f} %"
    return f"{value:{'+' if signed else ''},.{digits}f} %"


def speedup(before_ns: float, after_ns: float) -> str:
    """Return how many times faster, or that nothing is left."""
    return f"{before_ns / after_ns:,.2f}x" if after_ns else "nothing is left of the step"


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 step`, `2,000 steps`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """Return a list in words: `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def table(rows: Sequence[Sequence[str]], *, indent: str = MARGIN) -> list[str]:
    """Return lines with the first column to the left, the others to the right; the first row is the head."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append((indent + MARGIN.join([first.ljust(widths[0]), *cells])).rstrip())
    return lines


def facts(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and what is said about them, wrapped, the names in a column."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0) + 3
    lines: list[str] = []
    for name, said in rows:
        head = MARGIN + name.ljust(width)
        hanging = " " * len(head)
        for part in said.split("\n"):
            lines += wrapped(part, head, hanging)
            head = hanging
    return lines


def notes(sentences: Iterable[str]) -> list[str]:
    """Return a section of notes, each once and wrapped; nothing if there are none."""
    unique = list(dict.fromkeys(sentences))
    if not unique:
        return []
    lines = ["", "notes"]
    for sentence in unique:
        lines += wrapped(printable(sentence), MARGIN + "- ", MARGIN + "  ")
    return lines


def printable(text: str) -> str:
    """Return a name from a trace without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shortened(text: str, width: int) -> str:
    """Return a text cut to a width, with dots where it was cut."""
    return text if len(text) <= width else text[: width - 3] + "..."


def wrapped(text: str, head: str, hanging: str) -> list[str]:
    """Return the lines of a text behind its head, as wide as the terminal."""
    return textwrap.wrap(
        text, _width(), initial_indent=head, subsequent_indent=hanging, break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip


def _width() -> int:
    """Return the width of the terminal up to a readable one; a fixed one where the output is no terminal."""
    if not sys.stdout.isatty():
        return WIDTH
    import shutil

    return max(40, min(WIDTH, shutil.get_terminal_size().columns))
