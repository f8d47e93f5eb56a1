"""What a tool or a query found, and what an import read: facts, and a table for each list of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daydream.report.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    Title,
)
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

NAME_WIDTH = 60
NARROW = 30  # characters: names that a narrow terminal cannot tell apart are whole below
SHOWN = 15  # rows of a table


def records(found: Mapping[str, Any], *, verbose: bool = False) -> list[Block]:
    """Return the result of a tool; `verbose` with every row and whole names."""
    facts = {name: value for name, value in found.items() if not _is_table(value)}
    columns = [Column(name, _kind(name, [value])) for name, value in facts.items()]
    row = Row([*map(_cell, facts.values())])
    said = Table(columns, [row], own_units=True).texts()[1][0]
    blocks: list[Block] = [Facts(list(zip(facts, said, strict=True)))] if facts else []
    for name, rows in found.items():
        if _is_table(rows):
            blocks.append(Title(f"{name} ({counted(len(rows), 'row')})"))
            blocks.append(_table(rows, verbose=verbose) if any(rows) else Text("none"))
    return blocks or [Headline("nothing found")]


def imported(trace: Trace, rows_by_kind: Mapping[str, int]) -> list[Block]:
    """Return what an import found."""
    metadata = trace.metadata
    steps = metadata.get("steps", [])
    covered = sum(bool(step.get("covered")) for step in steps)
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in rows_by_kind.items())
    facts = [
        ("read", str(metadata.get("source", ""))),
        ("rows", f"{len(trace):,}: {kinds}"),
        (
            "steps",
            f"{len(steps):,}, {covered:,} of them complete, from {metadata.get('step_source', '')}",
        ),
    ]
    return [Facts(facts), Notes(metadata.get("notes", []))]


def _table(rows: Sequence[Mapping[str, Any]], *, verbose: bool) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row if name != "stack"))
    shown = rows if verbose else rows[:SHOWN]
    width = 10**6 if verbose else NAME_WIDTH
    columns = [
        Column(
            _head(name),
            _kind(name, [row.get(name) for row in rows]),
            width=width,
            keep="both",
        )
        for name in names
    ]
    first = {str(row.get(names[0])) for row in shown}
    alike = Counter(columns[0].cut(each, NARROW) for each in first)

    def below(row: Mapping[str, Any]) -> str:
        name = str(row.get(names[0]))
        told = verbose or alike[columns[0].cut(name, NARROW)] == 1
        return " < ".join(filter(None, ["" if told else name, row.get("stack")]))

    others = len(rows) - len(shown)
    more = f"{counted(others, 'more row')}: -v shows all." if others else ""
    cells = [Row([_cell(row.get(name)) for name in names], below(row)) for row in shown]
    return Table(columns, cells, more=more, own_units=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(name: str, values: Sequence[Any]) -> Kind:
    """Return what a column holds, by its name; one with other values than numbers holds names."""
    if not all(value is None or _is_number(value) for value in values):
        return Kind.NAME
    if name.endswith("_ns"):
        return Kind.TIME
    return Kind.BYTES if name == "bytes" or name.endswith(("_bytes", " bytes")) else Kind.COUNT


def _cell(value: Any) -> Cell:
    if value is None:
        return "-"
    number: Cell = value if _is_number(value) else str(value)
    return number


def _head(name: str) -> str:
    """Return a column's name without its unit, which its cells have."""
    return name.removesuffix("_ns").removesuffix("_bytes").removesuffix(" bytes").replace("_", " ")


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)
