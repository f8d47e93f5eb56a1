"""Reports on a terminal, by rich: tables fitted to its width, headings, a little colour.

rich is imported here only, and this only where there is a terminal: see `cli.output` and `cli.progress`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from daydream.lazy import regex
from daydream.report.text.layout import (
    BESIDE,
    MARGIN,
    USUAL_LINES,
    USUAL_WIDTH,
    WIDTH,
    Block,
    Facts,
    Figures,
    Headline,
    Rows,
    Screen,
    Table,
    Title,
    Words,
    printable,
)

LEAST_WIDTH = 40  # of a terminal; one that is narrower breaks the lines itself
LEAST_NAME, LEAST_REST = 16, 16  # of a column that is cut, however narrow the terminal is
CHANGES = ("change", "speedup")  # heads of the columns that say whether a step got better
CHANGE, RATIO = regex(r"[-+]\d[\d,.]*"), regex(r"(\d[\d,]*\.\d+)x")  # of a time, of a step
LAST_RATIO = regex(rf"(?<= {{3}}){RATIO.pattern}$", re.MULTILINE)  # at the end of a line of figures
GAIN = regex(rf"(?<=, ){RATIO.pattern}(?= \(|$)", re.MULTILINE)  # in a headline, before its range
ARROW = "->", "\N{RIGHTWARDS ARROW}"  # as it is piped, and where a terminal can show it
# The terminal's own colours, which can be read on light and on dark: no yellow, no white, nothing bright.
BETTER, WORSE, TITLE, ASIDE = "green", "red", "bold", "dim"
ANSWERS = {"yes": BETTER, "no": WORSE}


def console(stream: TextIO) -> Console:
    """Return a console as wide as the terminal; it writes no codes with NO_COLOR or on a dumb terminal."""
    try:
        own = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal of the system's
        own = os.terminal_size((USUAL_WIDTH, USUAL_LINES))
    columns, lines = shutil.get_terminal_size(own)  # stdout's or COLUMNS, where there are any
    return Console(
        file=stream,
        width=max(columns or USUAL_WIDTH, LEAST_WIDTH),
        height=lines,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def show(screen: Screen, stream: TextIO | None = None) -> None:
    """Print a report on a terminal, by default stdout."""
    there = console(sys.stdout if stream is None else stream)
    for block in screen.blocks:
        laid_out = isinstance(block, Figures | Headline | Words)  # then rich breaks no line again
        there.print(_rendered(block, there), crop=False, soft_wrap=laid_out)


def _rendered(block: Block, there: Console) -> RenderableType:
    room = min(there.width, WIDTH)  # longer lines of text are hard to read
    if isinstance(block, Table):
        return _table(block, there)
    if isinstance(block, Facts):
        return _facts(block, room)
    if isinstance(block, Headline):
        return _headline(block, there)
    if isinstance(block, Title | Words):
        return _words(block, room)
    if isinstance(block, str):
        return _figures([block] if cell_len(block) <= room else Figures(block.strip()).lines(room))
    return _figures(block.lines(room))


def _words(block: Title | Words, room: int) -> Text:
    if isinstance(block, Title):
        return _text(block, TITLE)
    return _text("\n".join(block.lines(room)), ASIDE if block.aside else "")


def _headline(headline: Headline, there: Console) -> Text:
    lines = "\n".join(headline.lines(there.width))
    text = _text(lines if there.options.ascii_only else lines.replace(*ARROW))
    for gain in GAIN.finditer(text.plain):
        text.stylize(_style(gain[0]), *gain.span())
    return text


def _table(table: Table, there: Console) -> RenderableType:
    """Return a table that fits if it can: names are cut, heads and words are wrapped, figures stay."""
    head, *body = _columns_that_fit(table, there.width)
    grid = _columns(table, head, body, there.width)
    overflow: OverflowMethod = "crop" if there.options.ascii_only else "ellipsis"
    judged = len(table.rows) if table.judged is None else table.judged
    for place, (first, *others) in enumerate(body, 1):
        style = "" if any(others) else TITLE
        cells: list[RenderableType] = [Text(printable(first), style, overflow=overflow, no_wrap=True)]
        for name, cell in zip(head[1:], others, strict=True):
            is_judged = place < judged and name in CHANGES and place not in table.faded
            cells.append(_text(cell, _style(cell) if is_judged else ""))
        if table.rest:
            cells.append(_Rest(table.rest[place]))
        grid.add_row(*cells, style=ASIDE if place in table.faded else None)
    narrowest = sum(len(MARGIN) + (column.min_width or 0) for column in grid.columns)
    shown = _WithBelow(grid, table, min(there.width, WIDTH)) if table.below else grid
    return _Whole(shown, narrowest)


def _columns(table: Table, head: list[str], body: Rows, width: int) -> Grid:
    """Return the table without rows; rich may take from its names, words and rest, not from figures."""
    whole, longest, word = _widths([head, *body]), _widths(body or [head]), _longest_words([head])
    least = whole[0] if table.rest else min(longest[0], LEAST_NAME)
    kept = max(least, min(longest[0], table.least_name))
    broken = sum(len(MARGIN) + wide for wide in [kept, *whole[1:]]) > width  # the heads, at spaces
    grid = Grid(box=None, padding=(0, 0, 0, len(MARGIN)), header_style="")
    grid.add_column(_text(head[0], TITLE), min_width=least, no_wrap=bool(table.rest))
    for name, *widths in list(zip(head, whole, map(max, longest, word), strict=True))[1:]:
        title = _text(name, TITLE)
        if name in table.words:
            grid.add_column(title, justify="right")
            continue
        title.no_wrap = False  # although the column is
        wide = widths[broken]
        grid.add_column(title, min_width=wide, max_width=wide, justify="right", no_wrap=True)
    if table.rest:
        grid.add_column(_text(BESIDE + table.rest[0](WIDTH), TITLE), min_width=LEAST_REST)
    return grid


def _columns_that_fit(table: Table, width: int) -> list[list[str]]:
    """Return the rows; without columns that may be left out, as far as others had to be cut for them."""
    whole, words = _widths(table.rows), _longest_words(table.rows)
    wide = [words[at] if head in table.words else whole[at] for at, head in enumerate(table.rows[0])]
    wide[0] = min(_widths(table.rows[1:] or table.rows)[0], table.least_name)
    left_out: set[int] = set()
    for spare in table.spare:
        if sum(len(MARGIN) + each for at, each in enumerate(wide) if at not in left_out) > width:
            left_out.add(spare)
    return [[cell for at, cell in enumerate(row) if at not in left_out] for row in table.rows]


def _widths(rows: Rows) -> list[int]:
    return [max(map(cell_len, column), default=0) for column in zip(*rows, strict=True)]


def _longest_words(rows: Rows) -> list[int]:
    return [max(map(cell_len, " ".join(column).split()), default=0) for column in zip(*rows, strict=True)]


class _Rest:
    """A cell that itself says what of it fits."""

    def __init__(self, fitted: Callable[[int], str]) -> None:
        self._fitted = fitted

    def __rich_console__(self, there: Console, options: ConsoleOptions) -> RenderResult:
        yield _text(BESIDE + self._fitted(options.max_width - len(BESIDE)))

    def __rich_measure__(self, there: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, cell_len(BESIDE + self._fitted(options.max_width - len(BESIDE))))


class _WithBelow:
    """A grid with a text below some of its rows, each of which is a line."""

    def __init__(self, grid: Grid, table: Table, room: int) -> None:
        self._grid, self._table, self._room = grid, table, room

    def __rich_console__(self, there: Console, options: ConsoleOptions) -> RenderResult:
        lines = there.render_lines(self._grid, options, pad=False)
        head = len(lines) - len(self._table.rows)  # the lines by which the head is taller than one
        for at, line in enumerate(lines):
            yield from line
            yield Segment.line()
            if at >= head:
                yield from (_text(each) for each in self._table.lines_below(at - head, self._room))

    def __rich_measure__(self, there: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(there, options, self._grid)


class _Whole:
    """What needs so much room: where the terminal has less, it breaks the lines."""

    def __init__(self, shown: RenderableType, width: int) -> None:
        self._shown, self._width = shown, width

    def __rich_console__(self, there: Console, options: ConsoleOptions) -> RenderResult:
        return there.render(self._shown, options.update(width=max(self._width, options.max_width)))


def _facts(facts: Facts, room: int) -> Grid:
    grid = Grid.grid()
    grid.add_column(width=facts.margin)
    grid.add_column(max_width=room - facts.margin, overflow="fold")
    for name, said in facts.rows:
        text = _text(said)
        if facts.answers:
            answer, _, _ = said.partition(":")
            text.stylize(ANSWERS.get(answer, ""), 0, len(answer))
        grid.add_row(_text(MARGIN + name), text)
    return grid


def _figures(lines: list[str]) -> Text:
    text = _text("\n".join(lines))
    for ratio in LAST_RATIO.finditer(text.plain):
        text.stylize(_style(ratio[0]), *ratio.span())
    return text


def _style(cell: str) -> str:
    """Return the style of a change in time (`-3.2`) or of a ratio (`1.20x`); none where nothing changed."""
    if CHANGE.fullmatch(cell):
        return BETTER if cell.startswith("-") else WORSE
    ratio = RATIO.fullmatch(cell)
    times = float(ratio[1].replace(",", "")) if ratio else 1.0
    return BETTER if times > 1 else WORSE if times < 1 else ""


def _text(text: str, style: str = "") -> Text:
    """Return a text as it stands: never markup, and nothing in it steers the terminal."""
    return Text("\n".join(map(printable, text.split("\n"))), style)
