"""Tables and notes as plain text: aligned columns, wrapped lines, names cut to a width. ASCII only."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 96
MARGIN = "  "
NAME_WIDTH = 46  # of a layer, an operator or a kernel in a table
LEAST_NAME = 20  # however narrow the terminal is
INSTANCE = re.compile(r"(?<![^._])\d+(?=\.|$)")  # the number of a block: h.3.mlp, ViTLayer_3.Linear_17


def table(rows: Sequence[Sequence[str]], *, indent: str = MARGIN) -> list[str]:
    """Return lines with the first column to the left, the others to the right; the first row is the head.

    Where the terminal is narrow the first column is cut.
    """
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    if sys.stdout.isatty():
        room = screen_width() - len(indent) - sum(widths[1:]) - len(MARGIN) * (len(widths) - 1)
        widths[0] = min(widths[0], max(room, LEAST_NAME))
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(wide) for cell, wide in zip(others, widths[1:], strict=True)]
        lines.append((indent + MARGIN.join([shortened(first, widths[0]).ljust(widths[0]), *cells])).rstrip())
    return lines


def spread(line: str) -> list[str]:
    """Return a line of figures that stand apart, on several lines where the terminal is narrow.

    What follows stands below the second of them: the first is what they are of.
    """
    pieces = re.split(r"( {2,})", line)
    lines, hanging = [MARGIN + "".join(pieces[:3])], " " * len(MARGIN + "".join(pieces[:2]))
    for gap, piece in zip(pieces[3::2], pieces[4::2], strict=True):
        if len(lines[-1] + gap + piece) > screen_width():
            lines.append(hanging + piece)
        else:
            lines[-1] += gap + piece
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


def tail(text: str, width: int) -> str:
    """Return a path cut to a width: its end says more than its beginning."""
    return text if len(text) <= width else "..." + text[3 - width :]


def layer_name(layer: str, width: int = NAME_WIDTH) -> str:
    """Return a layer's name, the same for all blocks of a stack, cut to a width."""
    return tail(printable(INSTANCE.sub("*", layer)), width)


def wrapped(text: str, head: str, hanging: str) -> list[str]:
    """Return the lines of a text behind its head, as wide as the terminal."""
    return textwrap.wrap(
        text, screen_width(), initial_indent=head, subsequent_indent=hanging, break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip


def screen_width() -> int:
    """Return the width of the terminal up to a readable one; a fixed one where the output is no terminal."""
    if not sys.stdout.isatty():
        return WIDTH
    import shutil

    return max(40, min(WIDTH, shutil.get_terminal_size().columns))
