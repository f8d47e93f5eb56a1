"""What reports are made of, and how that reads as plain text: aligned columns, wrapped lines. ASCII only.

A report is a `Screen`: its text as it is piped, and the blocks that `console` shows on a terminal.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from daydream.lazy import regex

if TYPE_CHECKING:
    from typing_extensions import Self

WIDTH = 96
USUAL_WIDTH, USUAL_LINES = 80, 24  # of a terminal: an answer stands on one screen of it
OTHER_LINES = 4  # there: what was typed, `next: ...` on two lines as a rule, and the prompt
MARGIN = "  "
PERCENT = "\N{NO-BREAK SPACE}%"  # a figure and its sign stay on one line
BESIDE = " "  # more between figures, which stand to the right, and words, which stand to the left
NAME_WIDTH = 46  # of a layer, an operator or a kernel in a table
INSTANCE = regex(r"(?<![^._])\d+(?=\.|$)")  # the number of a block: h.3.mlp, ViTLayer_3.Linear_17

Rows: TypeAlias = Sequence[Sequence[str]]


class Title(str):
    """A line that heads others."""

    __slots__ = ()


class Headline(str):
    """The answer in one line. Piped it is one, however long; a narrow terminal breaks it at its bracket."""

    __slots__ = ()

    def lines(self, width: int) -> list[str]:
        """Return the lines."""
        if len(self) <= width:
            return [str(self)]
        first, bracket, rest = self.partition(" (")
        if not bracket or len(first) > width:
            return wrapped(self, "", MARGIN, width)
        return [first, *wrapped(bracket.strip() + rest, MARGIN, MARGIN, width)]


class Table(NamedTuple):
    """Rows of which the first is the head: the first column to the left, the others to the right.

    Where a terminal is narrow the first column is cut, and the columns headed by `words` are wrapped. Before
    less than `least_name` characters of the first are left, columns at the places `spare` are left out, one
    by one, and other heads wrapped. `rest` gives a last column to the left: of each row what fits in so many
    characters. In the first `judged` rows, if not in all, less time is better. `below` gives each row, the
    head too, a text that stands wrapped on the lines below it, if it is not empty. Rows that are `faded` are
    grey where there is colour; their text says why. Piped, columns that may be left out stay, unless the
    table is wider than `plain`.
    """

    rows: Rows
    words: Sequence[str] = ()
    spare: Sequence[int] = ()
    least_name: int = 20
    rest: Sequence[Callable[[int], str]] = ()
    judged: int | None = None
    below: Sequence[str] = ()
    faded: Collection[int] = ()
    plain: int | None = None

    def lines(self, width: int) -> list[str]:
        """Return the lines; only `rest` is cut to the width."""
        rows = self._piped()
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for first, *others in rows:
            cells = [cell.rjust(room) for cell, room in zip(others, wide[1:], strict=True)]
            lines.append((MARGIN + MARGIN.join([first.ljust(wide[0]), *cells])).rstrip())
        if self.below:
            return [each for at, line in enumerate(lines) for each in (line, *self.lines_below(at, width))]
        if not self.rest:
            return lines
        start = max(map(len, lines)) + len(MARGIN + BESIDE)
        return [
            (line.ljust(start) + rest(width - start)).rstrip()
            for line, rest in zip(lines, self.rest, strict=True)
        ]

    def _piped(self) -> Rows:
        """Return the rows, without as many of the columns that may be left out as makes them fit `plain`."""
        if self.plain is None:
            return self.rows
        wide = [len(MARGIN) + max(map(len, column)) for column in zip(*self.rows, strict=True)]
        left_out: set[int] = set()
        for spare in self.spare:
            if sum(wide) - sum(wide[place] for place in left_out) > self.plain:
                left_out.add(spare)
        return [[cell for at, cell in enumerate(row) if at not in left_out] for row in self.rows]

    def lines_below(self, place: int, width: int) -> list[str]:
        """Return the lines below a row."""
        text = self.below[place] if self.below else ""
        return wrapped(text, 3 * MARGIN, 4 * MARGIN, width) if text else []


class Figures(NamedTuple):
    """A line of figures that stand apart, on several lines where it is longer than the width.

    What follows stands below the second of them: the first is what they are of.
    """

    line: str

    def lines(self, width: int) -> list[str]:
        """Return the lines."""
        pieces = re.split(r"( {2,})", self.line)
        lines, hanging = [MARGIN + "".join(pieces[:3])], " " * len(MARGIN + "".join(pieces[:2]))
        for gap, piece in zip(pieces[3::2], pieces[4::2], strict=True):
            if len(lines[-1] + gap + piece) > width:
                lines += wrapped(piece, hanging, hanging + MARGIN, width)
            else:
                lines[-1] += gap + piece
        return lines


class Facts(NamedTuple):
    """Names and what is said about them, wrapped, the names in a column; `answers` begin with yes or no."""

    rows: Sequence[tuple[str, str]]
    answers: bool = False

    @property
    def margin(self) -> int:
        """How far from the edge the column stands that is said about the names."""
        return max((len(name) for name, _ in self.rows), default=0) + 3 + len(MARGIN)

    def lines(self, width: int) -> list[str]:
        """Return the lines."""
        lines: list[str] = []
        for name, said in self.rows:
            head = (MARGIN + name).ljust(self.margin)
            for part in said.split("\n"):
                lines += wrapped(part, head, " " * self.margin, width)
                head = " " * self.margin
        return lines


class Words(NamedTuple):
    """A text behind its head, wrapped; an `aside` is what not everybody needs to read."""

    text: str
    head: str = MARGIN
    hanging: str = MARGIN
    aside: bool = False

    def lines(self, width: int) -> list[str]:
        """Return the lines."""
        return wrapped(self.text, self.head, self.hanging, width)


Block: TypeAlias = str | Table | Figures | Facts | Words


class Screen(str):
    """A report: the plain text, and the blocks that it was made of."""

    __slots__ = ("blocks",)
    blocks: tuple[Block, ...]

    def __new__(cls, blocks: Iterable[Block]) -> Self:
        """Make the text of the blocks; a block that is text is a line of its own, of any length."""
        blocks = tuple(blocks)
        lines = [[block] if isinstance(block, str) else block.lines(WIDTH) for block in blocks]
        self = super().__new__(cls, "\n".join(line for each in lines for line in each))
        self.blocks = blocks
        return self


def headed(lines: Sequence[str]) -> list[Block]:
    """Return an answer and lines on it."""
    return [Headline(lines[0]), *map(Words, lines[1:])]


def fitting(screens: Iterable[Screen]) -> Screen:
    """Return the first of some screens that a usual terminal shows as a whole, else the last of them."""
    found = Screen([])
    for found in screens:
        if height(found.blocks) <= USUAL_LINES - OTHER_LINES:
            break
    return found


def height(blocks: Iterable[Block], width: int = USUAL_WIDTH) -> int:
    """Return how many lines blocks take on a terminal of this width."""
    return sum(len(_on_terminal(block, width)) for block in blocks)


def _on_terminal(block: Block, width: int) -> list[str]:
    if isinstance(block, str) and not isinstance(block, Headline):
        return [block] if len(block) <= width else Figures(block.strip()).lines(width)
    return block.lines(width)


def notes(sentences: Iterable[str]) -> list[Block]:
    """Return a section of notes, each once and wrapped; nothing if there are none."""
    return section("notes", map(printable, dict.fromkeys(sentences)), aside=True)


def section(title: str, sentences: Iterable[str], *, aside: bool = False) -> list[Block]:
    """Return a title and sentences below it, each with a dash; nothing if there are none."""
    items = [Words(sentence, MARGIN + "- ", MARGIN + "  ", aside) for sentence in sentences]
    return ["", Title(title), *items] if items else []


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


def wrapped(text: str, head: str, hanging: str, width: int) -> list[str]:
    """Return the lines of a text behind its head."""
    return list(_wrapped(text, head, hanging, width))


@lru_cache(maxsize=1024)  # what fits on a screen is tried out: the same sentences again and again
def _wrapped(text: str, head: str, hanging: str, width: int) -> tuple[str, ...]:
    lines = textwrap.wrap(
        text.replace(" %", PERCENT), width, initial_indent=head, subsequent_indent=hanging,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return tuple(line.replace(PERCENT, " %") for line in lines) or (head.rstrip(),)
