"""What a tool found, as text: a table for each list of mappings, a line for each figure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from daydream.report.text.layout import Facts, Screen, Table, Title, Words, printable, shortened
from daydream.report.text.numbers import count, time_text
from daydream.text import bytes_text

NAME_WIDTH = 60
SHOWN = 15  # rows of a table


def tool_text(found: Mapping[str, Any], *, verbose: bool = False) -> Screen:
    """Return the result of a tool; `verbose` with every row and whole names."""
    facts = [
        (printable(name), _cell(name, value, verbose=verbose))
        for name, value in found.items()
        if not _is_table(value)
    ]
    blocks: list[Any] = [Facts(facts)] if facts else []
    for name, rows in found.items():
        if _is_table(rows):
            blocks += [
                Title(f"{printable(name)} ({count(len(rows), 'row')})"),
                *_table(rows, verbose=verbose),
            ]
    return Screen(blocks or ["nothing found"])


def _table(rows: Sequence[Mapping[str, Any]], *, verbose: bool) -> list[Table | Words]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        return [Words("none")]
    shown = rows if verbose else rows[:SHOWN]
    head = [_head(column) for column in columns]
    cells = [[_cell(column, row.get(column), verbose=verbose) for column in columns] for row in shown]
    if "name" in columns and not verbose:
        at = columns.index("name")
        names = {row[at] for row in cells}
        for row in cells:
            row[at] = _told_apart(row[at], names - {row[at]})
    more = len(rows) - len(shown)
    left = [Words(f"{count(more, 'more row')}: -v shows all.")] if more else []
    texts = _texts(columns, rows)
    if texts and texts[-1] == len(columns) - 1:  # the last column, to the left: as much of it as fits
        rest = [partial(_fitted, text, whole=verbose) for text in (head[-1], *(row[-1] for row in cells))]
        return [
            Table(
                [head[:-1], *(row[:-1] for row in cells)], words=[head[at] for at in texts[:-1]], rest=rest
            ),
            *left,
        ]
    return [Table([head, *cells], words=[head[at] for at in texts]), *left]


def _told_apart(name: str, others: Iterable[str]) -> str:
    """Return a name cut to a width; where others begin alike, with the part in which they differ."""
    same = max((len(os.path.commonprefix([name, other])) for other in others), default=0)  # noqa: RUF071
    if len(name) <= NAME_WIDTH or same < NAME_WIDTH - 8:
        return shortened(name, NAME_WIDTH)
    return shortened(f"{name[:12]}...{name[same - 8 :]}", NAME_WIDTH)


def _fitted(text: str, width: int, *, whole: bool) -> str:
    return text if whole else shortened(text, max(width, 1))


def _texts(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the places of columns of text behind the first."""
    return [
        at
        for at, column in enumerate(columns)
        if at and any(isinstance(row.get(column), str) for row in rows)
    ]


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)


def _head(column: str) -> str:
    """Return a column's name without its unit, which its cells have."""
    plain = column.removesuffix("_ns").removesuffix("_bytes").removesuffix(" bytes")
    return printable(plain.replace("_", " "))


def _cell(column: str, value: Any, *, verbose: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if column.endswith("_ns"):
            return time_text(value)
        if column == "bytes" or column.endswith(("_bytes", " bytes")):
            return bytes_text(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = printable(str(value))
    return text if verbose or column == "name" else shortened(text, NAME_WIDTH)
