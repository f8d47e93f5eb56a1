"""What a view of a result is made of, whatever shows it: text, a page, a notebook or Markdown.

A column knows its type. Unit, digits, side, color and order of its cells follow from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

from daydream.report.format import percent, scale, shortened, tail, time_text
from daydream.text import bytes_text, memory_unit

Cell: TypeAlias = (
    "str | float | tuple[float, float] | None"  # a text stands as it is, None is empty
)

HEADING, FADED, NEUTRAL = (
    "heading",
    "faded",
    "neutral",
)  # styles of rows; of a neutral one no change is good
MARGIN = 2


class Kind(Enum):
    """What the cells of a column are."""

    NAME = auto()  # a text
    TIME = auto()  # ns
    CHANGE = auto()  # ns more than before, less is better
    INTERVAL = auto()  # two times
    BYTES = auto()
    RATIO = auto()  # how many times faster, more is better
    PERCENT = auto()  # a share
    ERROR = auto()  # a share with its sign
    COUNT = auto()

    def __call__(self, title: str, spare: int = 0, **options: Any) -> Column:
        """Return a column of this kind."""
        return Column(title, self, spare, **options)


TIMES = (Kind.TIME, Kind.CHANGE, Kind.INTERVAL)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: its head, without the unit.
        kind: what its cells are.
        spare: where there is no room, columns are left out by this number, 1 first; 0 never is.
        bar: whether pages draw a bar: the cell's part of the table's whole.
        width: of a name, how many characters of it a text shows.
        keep: what of a longer name: its `start`, its `end`, which of a path says most, or `both`.
    """

    title: str
    kind: Kind = Kind.NAME
    spare: int = 0
    bar: bool = False
    width: int = 46
    keep: str = "start"

    def cut(self, text: str, width: int | None = None) -> str:
        """Return a name as long as a text shows it."""
        width = width or self.width
        if self.keep == "both" and len(text) > width:
            half = (width - 3) // 2
            return f"{text[: width - 3 - half]}...{text[-half:]}"
        return (tail if self.keep == "end" else shortened)(text, width)


class Row(NamedTuple):
    """A row of a table: its cells, a line below them, a style, and the color of its bars in a page."""

    cells: Sequence[Cell]
    below: str = ""
    style: str = ""
    color: str = ""


class Table(NamedTuple):
    """Rows under typed columns; columns without a cell are left out.

    Attributes:
        columns: its columns, the first of which names the row.
        rows: its rows; a heading has one cell.
        whole: what times or bytes are a part of: it gives them their unit, and is a whole bar.
        more: what is to be said of rows that are left out.
        name: its id in a page, where it can be sorted and searched then.
        own_units: whether each cell has a unit of its own.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    whole: float = 0
    more: str = ""
    name: str = ""
    own_units: bool = False

    def split(self) -> list[Table]:
        """Return a table for each heading, which then names the first column."""
        found: list[Table] = []
        for row in self.rows:
            name, *cells = row.cells
            if row.style == HEADING:
                head = self.columns[0]._replace(title=str(name))
                found.append(self._replace(columns=[head, *self.columns[1:]], rows=[]))
            else:
                bare = row._replace(cells=(str(name).strip(), *cells))
                found[-1] = found[-1]._replace(rows=[*found[-1].rows, bare])
        return found

    def judged(self, row: Row, at: int, text: str) -> str:
        """Return whether a cell, as it is shown, is `better` or `worse` than before; else an empty text."""
        cell = row.cells[at]
        shown = row.style not in (FADED, NEUTRAL) and any(digit in text for digit in "123456789")
        if not shown or cell is None or isinstance(cell, str | tuple):
            return ""
        gain = {Kind.CHANGE: -cell, Kind.RATIO: round(cell - 1, 2)}.get(self.columns[at].kind, 0)
        return "better" if gain > 0 else "worse" if gain < 0 else ""

    def used(self) -> list[int]:
        """Return the places of the columns that have a cell; the first always."""
        rows = [row.cells for row in self.rows if row.style != HEADING]
        return [
            0,
            *(
                at
                for at in range(1, len(self.columns))
                if any(row[at] not in (None, "") for row in rows)
            ),
        ]

    def texts(self) -> tuple[list[str], list[list[str]]]:
        """Return the heads with their units, and a text for each cell of each row but headings."""
        times = self._largest(TIMES)
        sizes = self._largest((Kind.BYTES,))
        unit, size, digits = scale(times)
        memory, nbytes = memory_unit(sizes)
        heads = []
        units = {Kind.TIME: unit, Kind.INTERVAL: unit, Kind.BYTES: memory}
        for column in self.columns:
            kind = Kind.TIME if column.kind is Kind.CHANGE else column.kind
            said = None if self.own_units else units.get(kind)
            if kind is not Kind.INTERVAL:  # the unit of those that follow, too
                units.pop(kind, None)
            heads.append(f"{column.title}, {said}" if said and column.title else column.title)

        def text(kind: Kind, cell: Cell) -> str:
            if cell is None or isinstance(cell, str):
                return cell or ""
            if isinstance(cell, tuple):
                low, high = cell
                return f"{low / size:,.{digits}f} to {high / size:,.{digits}f}"
            if kind is Kind.TIME:
                return time_text(cell) if self.own_units else f"{cell / size:,.{digits}f}"
            if kind is Kind.CHANGE:
                said = f"{cell / size:+,.{digits}f}"
                return said if any(digit in said for digit in "123456789") else said[1:]
            if kind is Kind.BYTES:
                in_unit = f"{cell / nbytes:,.{2 if memory == 'GiB' else 1}f}"
                return bytes_text(cell) if self.own_units else in_unit
            if kind is Kind.RATIO:
                return f"{cell:,.2f}x"
            if kind in (Kind.PERCENT, Kind.ERROR):
                return percent(cell, signed=kind is Kind.ERROR)
            return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}"

        kinds = [column.kind for column in self.columns]
        return heads, [
            [text(kind, cell) for kind, cell in zip(kinds, row.cells, strict=False)]
            for row in self.rows
        ]

    def _largest(self, kinds: Sequence[Kind]) -> float:
        """Return the whole if these are parts of it, else the largest amount of these kinds."""
        places = [at for at, column in enumerate(self.columns) if column.kind in kinds]
        cells = [row.cells[at] for row in self.rows if row.style != HEADING for at in places]
        found = [cell[-1] if isinstance(cell, tuple) else cell for cell in cells]
        amounts = [abs(each) for each in found if each is not None and not isinstance(each, str)]
        whole = self.whole if kinds is TIMES or not self._largest(TIMES) else 0
        return (whole or max(amounts)) if amounts else 0


class Headline(str):
    """The answer, a line."""

    __slots__ = ()


class Title(NamedTuple):
    """A line that heads what follows; in a page a section with an id and a word of help."""

    text: str
    name: str = ""
    help: str = ""


class Text(NamedTuple):
    """A text behind its head; an `aside` is what not everybody needs to read."""

    text: str
    head: str = ""
    margin: int = MARGIN
    aside: bool = False


class Code(NamedTuple):
    """The lines of a training script that make a change."""

    code: str
    margin: int = MARGIN


class Figures(NamedTuple):
    """Key figures, each with what it is and a remark: a line of text, or cards in a page."""

    figures: Sequence[tuple[str, str, str]]
    head: str = ""

    def texts(self) -> list[str]:
        """Return the head, if there is one, and a text for each figure."""
        remarks = [f" ({more})" if more else "" for _, _, more in self.figures]
        named = zip(self.figures, remarks, strict=True)
        said = [f"{name} {value}".strip() + remark for (name, value, _), remark in named]
        return [self.head, *said] if self.head else said


def times(head: str, *figures: tuple[str, float | None, str]) -> Figures:
    """Return key figures that are times; those that are not known are left out."""
    return Figures(
        [(name, time_text(ns), more) for name, ns, more in figures if ns is not None], head
    )


class Facts(NamedTuple):
    """Names and what is said of each, lines apart; `answers` begin with yes, partly or no."""

    rows: Sequence[tuple[str, str]]
    answers: bool = False


class Notes(NamedTuple):
    """Sentences under a title, each once."""

    sentences: Sequence[str]
    title: str = "notes"
    aside: bool = True


class Beside(NamedTuple):
    """Tables that stand side by side where there is room."""

    tables: Sequence[Table]


class Drawing(NamedTuple):
    """What only pages show: figures that the program of that name draws; without a name finished HTML."""

    name: str
    value: Any


Block: TypeAlias = (
    Headline | Title | Text | Code | Figures | Facts | Notes | Table | Beside | Drawing
)


def flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """Return what a text shows of the blocks: tables one after the other, no drawings, nothing empty."""
    for block in blocks:
        if isinstance(block, Beside):
            yield from block.tables
        elif isinstance(block, Notes):
            unique = tuple(dict.fromkeys(block.sentences))
            if unique:
                yield block._replace(sentences=unique)
        elif not isinstance(block, Drawing):
            yield block
