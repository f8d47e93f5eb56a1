"""Views as text: aligned columns, wrapped lines, ASCII only; on a terminal fitted to its width, in color.

And as Markdown, for a pull request: the answer and its first table, the rest folded away. Names come from traces,
whoever wrote them: they stand between backticks, where a page takes them for neither markup nor people nor issues.

rich is imported only where there is a terminal: see `cli.output` and `cli.source`.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO
from unicodedata import east_asian_width

from daydream.lazy import regex
from daydream.report.blocks import (
    FADED,
    HEADING,
    MARGIN,
    Block,
    Code,
    Facts,
    Figures,
    Headline,
    Kind,
    Notes,
    Table,
    Text,
    Title,
    flat,
    printable,
    shortened,
)

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 96  # longer lines of text are hard to read
# Of a terminal that does not say
COLUMNS = 80
LINES = 24
# A terminal that is narrower breaks the lines itself
LEAST_WIDTH = 40
LEAST_NAME = 26
KEEP = "\N{NO-BREAK SPACE}"  # a figure and its unit stay on one line
BEFORE_UNIT = regex(r"(?<=\d) (?=(?:%|[mun]?s|[KMG]iB|GB)(?!\w))")
ARROW = "->", "\N{RIGHTWARDS ARROW}"  # as it is piped, and where a terminal can show it
GAIN = regex(r"(?<=, )(\d[\d,]*\.\d+)x(?= \(|; |$)")  # in a headline, before its range
# The terminal's own colors, which can be read on light and on dark: no yellow, no white, nothing bright.
BETTER = "green"
WORSE = "red"
TITLE = "bold"
ASIDE = "dim"
ANSWERS = {"yes": BETTER, "no": WORSE}
JUDGED = {"better": BETTER, "worse": WORSE}


class Piece(NamedTuple):
    """A part of a line in one style."""

    text: str
    style: str = ""


Line = list[Piece]


def text_of(blocks: Iterable[Block]) -> str:
    """Return a view as it is piped: no color, and tables as wide as their cells."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines(blocks))


def show(blocks: Iterable[Block], stream: TextIO | None = None) -> None:
    """Print a view on stdout or a stream: fitted and colored on a terminal, else its plain text."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        stream.write(text_of(blocks) + "\n")
        return
    from rich.text import Text as Styled

    there = console(stream)
    for line in lines(blocks, there.width):
        styled = Styled.assemble(*line)
        if isinstance(line, Answer) and not there.options.ascii_only:
            styled = Styled.assemble(
                *(Piece(piece.text.replace(*ARROW), piece.style) for piece in line)
            )
        there.print(styled, crop=False, soft_wrap=True)


def console(stream: TextIO) -> Console:
    """Return a console as wide as the terminal; it writes no codes with NO_COLOR or on a dumb terminal."""
    from rich.console import Console

    try:
        own = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal of the system's
        own = os.terminal_size((COLUMNS, LINES))
    columns, height = shutil.get_terminal_size(own)  # stdout's or COLUMNS, where there are any
    return Console(
        file=stream,
        width=max(columns or COLUMNS, LEAST_WIDTH),
        height=height or LINES,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


class Answer(list[Piece]):
    """The line of the answer, whose arrow a terminal may draw."""


def lines(blocks: Iterable[Block], room: int | None = None) -> Iterator[Line]:
    """Return the lines of a view in pieces; without `room`, the columns of a terminal, nothing is cut."""
    last: Block | None = None
    for block in flat(blocks):
        apart = isinstance(block, Table | Title | Notes) and not isinstance(last, Title)
        after = isinstance(last, Table | Notes) and not getattr(block, "aside", False)
        if last is not None and (apart or after):
            yield []
        yield from _lines(block, min(room or WIDTH, WIDTH), room)
        last = block


def _lines(block: Block, width: int, room: int | None) -> Iterator[Line]:
    if isinstance(block, Headline):
        wide = width if room and len(block) > room else 10**6  # piped it is one line, however long
        for line in _wrapped(block, "", 0, wide, MARGIN):
            yield Answer(_judged(line))
    elif isinstance(block, Title):
        yield [Piece(printable(block.text), TITLE)]
    elif isinstance(block, Text):
        for line in _wrapped(block.text, block.head, block.margin, width):
            yield [Piece(line, ASIDE if block.aside else "")]
    elif isinstance(block, Code):
        code = enumerate(block.code.splitlines())
        texts = [Text(line, "" if at else "in code: ", block.margin) for at, line in code]
        yield from (line for text in texts for line in _lines(text, width, room))
    elif isinstance(block, Figures):
        whole = [printable(each).replace(" ", KEEP) for each in block.texts()]
        for line in _wrapped("   ".join(whole), "", MARGIN, width, 2 * MARGIN):
            yield [Piece(line)]
    elif isinstance(block, Facts):
        yield from _facts(block, width)
    elif isinstance(block, Notes):
        yield [Piece(printable(block.title), TITLE)]
        for sentence in block.sentences:
            yield from _lines(Text(sentence, "- ", aside=block.aside), width, room)
    elif isinstance(block, Table):
        yield from _table(block, width, room)


def _judged(line: str) -> Iterator[Piece]:
    """Return a headline's pieces: what a change gives is green, what it costs is red."""
    found = GAIN.search(line)
    if found is None:
        yield Piece(line)
        return
    begin, end = found.span()
    gain = float(found[1].replace(",", ""))
    yield Piece(line[:begin])
    yield Piece(found[0], BETTER if gain > 1 else WORSE if gain < 1 else "")
    yield Piece(line[end:])


def _facts(facts: Facts, width: int) -> Iterator[Line]:
    margin = max((len(name) for name, _ in facts.rows), default=0) + 3 + MARGIN
    for name, said in facts.rows:
        head = (" " * MARGIN + printable(name)).ljust(margin)
        answer = said.partition(":")[0] if facts.answers else ""
        for part in said.split("\n"):
            for line in _wrapped(part, head, 0, width, margin):
                begin = margin + len(answer)
                yield [
                    Piece(line[:margin]),
                    Piece(line[margin:begin], ANSWERS.get(answer, "")),
                    Piece(line[begin:]),
                ]
                answer = ""
            head = " " * margin


def _table(table: Table, width: int, room: int | None) -> Iterator[Line]:
    """Return a table that fits if it can: columns are left out and names cut, figures stay whole."""
    heads, texts = table.texts()
    heads = [printable(head) for head in heads]
    named = [column.kind is Kind.NAME for column in table.columns]
    for cells in texts:
        for at, cell in enumerate(cells[: len(cells) if len(cells) > 1 else 0]):
            bare = printable(cell.lstrip())
            shown = table.columns[at].cut(bare) if named[at] else bare
            cells[at] = " " * (len(cell) - len(bare)) + shown
    body = [cells for row, cells in zip(table.rows, texts, strict=True) if row.style != HEADING]
    wide = [
        max(map(_cells, [head, *(cells[at] for cells in body)])) for at, head in enumerate(heads)
    ]
    kept = _fitted(table, wide, room) if room is not None else table.used()
    for at in kept:
        if named[at]:
            heads[at] = shortened(heads[at], wide[at])
    yield [Piece(_cell(table, at, heads[at], wide[at]), TITLE) for at in kept]
    for row, cells in zip(table.rows, texts, strict=True):
        if row.style == HEADING:
            yield [Piece(" " * MARGIN + printable(cells[0]), TITLE)]
        else:
            pieces = []
            for at in kept:
                style = JUDGED.get(table.judged(row, at, cells[at]), "")
                piece = _cell(table, at, cells[at], wide[at])
                pieces.append(Piece(piece, ASIDE if row.style == FADED else style))
            yield pieces
        if row.below:
            for line in _wrapped(row.below, "", 3 * MARGIN, width, 4 * MARGIN):
                yield [Piece(line, ASIDE if row.style == FADED else "")]
    if table.more:
        yield from _lines(Text(table.more, aside=True), width, room)


def _fitted(table: Table, wide: list[int], room: int) -> list[int]:
    """Return the columns that fit, and make `wide`, that of the columns of names, so narrow that they do."""
    kept = table.used()
    names = {at for at in kept if table.columns[at].kind is Kind.NAME}
    least = [min(each, LEAST_NAME) if at in names else each for at, each in enumerate(wide)]
    spare = sorted(
        (at for at in kept if table.columns[at].spare), key=lambda at: table.columns[at].spare
    )
    for at in spare:
        if sum(MARGIN + least[each] for each in kept) > room:
            kept.remove(at)
    for _ in names & {*kept}:
        over = sum(MARGIN + wide[at] + (at > 0 and at in names) for at in kept) - room
        longest = max(names & {*kept}, key=lambda at: wide[at] - least[at])
        wide[longest] = max(wide[longest] - max(over, 0), least[longest])
    return kept


def _cell(table: Table, at: int, text: str, width: int) -> str:
    column = table.columns[at]
    if column.kind is not Kind.NAME:
        return " " * (MARGIN + width - _cells(text)) + text
    gap = MARGIN + bool(at)  # words on the left side after figures on the right
    text = column.cut(text, width) if _cells(text) > width else text
    return " " * gap + text + " " * (width - _cells(text))


def _cells(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    return (
        len(text) if text.isascii() else sum(1 + (east_asian_width(char) in "WF") for char in text)
    )


def _wrapped(
    text: str,
    head: str,
    margin: int,
    width: int,
    hanging: int | None = None,
) -> list[str]:
    """Return the lines of a text behind its head; they hang below the text, or below a long head's margin."""
    before = " " * margin + printable(head)
    if hanging is None:
        hanging = len(before) if len(head) <= len("note: ") else margin + MARGIN
    bare = "".join(char if char == KEEP else printable(char) for char in text)
    found = textwrap.wrap(
        BEFORE_UNIT.sub(KEEP, bare),
        width,
        initial_indent=before,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(KEEP, " ") for line in found] or [before.rstrip()]


CODE_WIDTH = 60
OF_TEXT = "-v adds: "  # what says this is of no use elsewhere
MARKUP = regex(r"([\\`*_\[\]()|~$])")  # what GitHub's Markdown takes for its own in a sentence


def markdown(blocks: Sequence[Block]) -> str:
    """Return a view as Markdown: what follows its first table is folded away."""
    parts = []
    folded = 0
    for block in flat(blocks):
        if isinstance(block, Text) and block.head == OF_TEXT:
            continue
        parts.append(_in_markdown(block))
        if isinstance(block, Table) and not folded:
            folded = len(parts)
    shown = parts[: folded or None]
    rest = parts[folded:] if folded else []
    if rest:
        inside = "\n\n".join(rest)
        shown.append(f"<details><summary>Where it comes from</summary>\n\n{inside}\n\n</details>")
    return "\n\n".join(shown) + "\n"


def _in_markdown(block: Block) -> str:
    if isinstance(block, Headline):
        return f"**{sentence(block.replace(*ARROW))}**"
    if isinstance(block, Title):
        return f"**{sentence(block.text)}**"
    if isinstance(block, Code):
        return "in code: " + "  \n".join(map(code, block.code.splitlines()))
    if isinstance(block, Figures):
        return sentence(", ".join(block.texts()))
    if isinstance(block, Facts):
        return "\n".join(f"- {sentence(f'{name}: {said}')}" for name, said in block.rows)
    if isinstance(block, Notes):
        return "\n".join(
            [f"{sentence(block.title)}:", "", *(f"- {sentence(note)}" for note in block.sentences)]
        )
    if isinstance(block, Table):
        return _markdown_table(block)
    return sentence(block.head + block.text) if isinstance(block, Text) else ""


def _markdown_table(table: Table) -> str:
    heads, texts = table.texts()
    kept = table.used()
    names = [table.columns[at].kind is Kind.NAME for at in kept]
    lines = [[sentence(heads[at]) for at in kept], ["---" if name else "---:" for name in names]]
    for row, cells in zip(table.rows, texts, strict=True):
        if row.style == HEADING:
            lines.append([f"**{sentence(cells[0])}**", *[""] * (len(kept) - 1)])
        else:
            shown = [cells[at] for at in kept]
            lines.append(
                [
                    code(cell) if name and cell else sentence(cell)
                    for cell, name in zip(shown, names, strict=True)
                ]
            )
    more = f"\n\n{sentence(table.more)}" if table.more else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def code(name: str) -> str:
    """Return a name from a trace as it stands between backticks, also in a table."""
    plain = shortened(printable(" ".join(name.split())), CODE_WIDTH)
    return f"`{plain.replace('`', chr(39)).replace('|', '/')}`" if plain.strip() else "` `"


def sentence(text: str) -> str:
    """Return a sentence with names from a trace in it as text: no markup, nobody and no issue mentioned."""
    plain = (
        printable(" ".join(text.split()))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return (
        MARKUP.sub(r"\\\1", plain)
        .replace("@", "&#64;")
        .replace("#", "&#35;")
        .replace("://", ":&#47;/")
    )
