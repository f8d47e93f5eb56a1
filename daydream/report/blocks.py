"""The view of a result: `view(result)` gives the blocks that text, pages, notebooks and Markdown show.

A column of a table knows its type. Unit, digits, side, color and order of its cells follow from that. How times,
shares, ratios and names are written comes first; all of it is ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from importlib import import_module
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from daydream.lazy import regex
from daydream.results import Predicted
from daydream.text import bytes_text, memory_unit
from daydream.trace.recorded_steps import made_up

if TYPE_CHECKING:
    from daydream.predict.replay import Replay

INSTANCE = regex(r"(?<![^._])\d+(?=\.|$)")  # the number of a block: h.3.mlp, ViTLayer_3.Linear_17


def time_text(ns: float) -> str:
    """Return a time with four digits or so and its unit: `222.4 ms`, `7.00 us`."""
    unit, size, _ = scale(ns)
    return f"{number(ns / size)} {unit}"


def number(value: float) -> str:
    """Return a figure with four digits or so and thousands separators."""
    return f"{value:,.{_digits(value)}f}" if value else "0"


def _digits(value: float) -> int:
    return 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3


def range_text(low_ns: float, high_ns: float) -> str:
    """Return a range with its unit once: `120.1 to 130.3 ms`."""
    unit, size, _ = scale(high_ns)
    return f"{number(low_ns / size)} to {number(high_ns / size)} {unit}"


def change_text(before_ns: float, after_ns: float) -> str:
    """Return a time before and after a change, its unit once: `16.65 -> 8.82 ms`."""
    unit, size, digits = scale(max(before_ns, after_ns))
    small = after_ns < before_ns / 10  # as many digits would tell little of it
    after = number(after_ns / size) if small else f"{after_ns / size:,.{digits}f}"
    return f"{before_ns / size:,.{digits}f} -> {after} {unit}"


def gain_range_text(low: float, high: float) -> str:
    """Return the range of a speed-up: `1.49 to 2.58x`."""
    return f"{low:,.2f} to {high:,.2f}x" if isfinite(high) else f"{low:,.2f}x or more"


def likely_gain(low: float, high: float) -> str:
    """Return that range in brackets, behind a space: ` (90% interval 1.49 to 2.58x)`.

    One on both sides of 1x leaves undecided whether there is a gain: ` (may help or hurt: 0.94 to 1.07x)`.
    """
    undecided = round(low, 2) < 1 and high >= 1.005
    said = "may help or hurt:" if undecided else "90% interval"
    return f" ({said} {gain_range_text(low, high)})"


def percent(share: float, *, signed: bool = False) -> str:
    """Return a share in percent: `0.70%`, `12.3%`."""
    value = 100 * share
    digits = 2 if abs(value) < 10 else 1
    if abs(value) < 0.5 * 10**-digits:
        return f"{0:.{digits}f}%"
    return f"{value:{'+' if signed else ''},.{digits}f}%"


def scale(step_ns: float) -> tuple[str, int, int]:
    """Return the unit of a table about a step, its size in ns, and how many digits its times get."""
    unit, size = ("ms", 1_000_000) if abs(step_ns) >= 1e6 else ("us", 1_000)
    return unit, size, _digits(step_ns / size)


def speedup(before_ns: float, after_ns: float | None) -> str:
    """Return how many times faster, that nothing is left, or that it is unknown."""
    if after_ns is None:
        return "unknown"
    return f"{before_ns / after_ns:,.2f}x" if after_ns else "nothing is left of the step"


def answer_text(answer: Predicted) -> str:
    """Return the step of an answer before and after its change, as `step_change_text` does."""
    return step_change_text(
        answer.replayed_ns, answer.predicted_ns, answer.speedup_low, answer.speedup_high
    )


def speedup_of(answer: Predicted) -> str:
    """Return how many times faster the step of an answer is, a dash if nothing is left of it."""
    if answer.predicted_ns is None:
        return "unknown"
    return speedup(answer.replayed_ns, answer.predicted_ns) if answer.predicted_ns else "-"


def error_text(replay: Replay) -> str:
    """Return the replay error of an answer's step; where that step is estimated that of the recorded one.

    And which rank of a fake world was recorded.
    """
    error = replay.error if replay.basis_error is None else replay.basis_error
    told = f"replay error {percent(error, signed=True)}"
    return ", ".join(filter(None, [told, made_up(replay.graph.recorded)]))


def step_change_text(
    before_ns: float,
    after_ns: float | None,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Return a step before and after a change, and how many times faster: `16.65 -> 8.82 ms per step, 1.89x`.

    With its range that of the speed-up follows: `(90% interval 1.49 to 2.58x)`, or `1.49x or more`.
    """
    if after_ns is None:
        return f"{time_text(before_ns)} per step, unknown with the change"
    told = f"{change_text(before_ns, after_ns)} per step, {speedup(before_ns, after_ns)}"
    if low is None:
        return told
    return told + likely_gain(low, inf if high is None else high)


def listed(parts: Sequence[str]) -> str:
    """Return a list in words: `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def printable(text: str) -> str:
    """Return a name from a trace without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shortened(text: str, width: int) -> str:
    """Return a text cut to a width, with dots where it was cut."""
    return text if len(text) <= width else text[: width - 3] + "..."


def tail(text: str, width: int) -> str:
    """Return a path cut to a width: its end says more than its beginning."""
    return text if len(text) <= width else "..." + text[3 - width :]


def layer_name(layer: str) -> str:
    """Return a layer's name, the same for all blocks of a stack: `h.*.mlp.fc`."""
    return INSTANCE.sub("*", layer)


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


# By a result's class: the function in `views` whose module is imported when one is shown.
VIEWS = {
    "Replay": "step.replay",
    "Prediction": "step.prediction",
    "Ranking": "ranking.ranking",
    "Curves": "ranking.curves",
    "Explanation": "explanation.explanation",
    "Difference": "difference.difference",
    "Series": "difference.series",
    "Blame": "difference.blame",
    "Confirmation": "difference.confirmation",
    "Sweep": "ranking.sweep",
    "Scaling": "ranking.scaling",
    "Plan": "..plan.view.plan",
    "Choice": "..plan.view.choice",
    "MemoryReport": "memory.report",
    "MemoryView": "memory.uses",
    "Largest": "memory.largest",
    "Info": "info.info",
    "Trace": "nouns.trace",
    "Graph": "nouns.graph",
    "Selection": "nouns.selection",
    "Groups": "nouns.groups",
    "Timeline": "nouns.timeline",
}


def view(result: object, *, verbose: bool = False, **options: Any) -> Sequence[Block]:
    """Return what a result shows; `verbose` with all that it knows.

    Options are those of its function in `views`. Raises `TypeError` for what has no view.
    """
    for each in type(result).__mro__:
        if each.__name__ in VIEWS and each.__module__.startswith("daydream."):
            module, _, name = VIEWS[each.__name__].rpartition(".")
            function = getattr(import_module(f".{module}", "daydream.report.views"), name)
            return list(function(result, verbose=verbose, **options))
    raise TypeError(f"there is no view of {type(result).__name__}")
