"""Traces, graphs, selections and timelines, as notebooks show them.

What a tool or a query found, and what an import read, is shown as facts and a table for each list of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.graph.selection import Selection
from daydream.graph.tables import KINDS
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
    time_text,
)
from daydream.report.info import rows_by_kind, span_ns
from daydream.report.timeline import step_name
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.simulate.timeline import Timeline
    from daydream.trace.trace import Trace


MOST_ROWS = 12


def trace(found: Trace, *, verbose: bool = False) -> Iterator[Block]:
    """Return the rows of a trace by kind, and its steps."""
    steps = found.metadata.get("steps", [])
    rows = []
    for step in steps:
        complete = "yes" if step.get("covered") else str(step.get("why_not") or "no")
        rows.append((step_name(steps, step), step.get("measured_ns"), complete))
    said = f"{counted(len(found), 'row')} over {time_text(span_ns(found))}, {counted(len(steps), 'step')}"
    yield Headline(f"Trace: {found.metadata.get('source', 'unnamed')}")
    yield Text(said)
    yield _first([Column("rows of kind"), Kind.COUNT("number")], [*rows_by_kind(found).items()])
    columns = [Column("step"), Kind.TIME("measured"), Column("complete")]
    if steps:
        yield _first(columns, rows)


def graph(found: Graph, *, verbose: bool = False) -> Iterator[Block]:
    """Return how many tasks of each kind and on each lane a graph has, and their time."""
    columns = found.columns
    kind = columns["kind"][found.alive]
    lane = columns["lane"][found.alive]
    time = columns["duration_ns"][found.alive]
    yield Headline(f"Graph of {counted(len(found), 'task')} on {counted(len(found.lanes), 'lane')}")
    yield _sums("kind", list(KINDS), kind, time)
    yield _sums("lane", [each.name for each in found.lanes], lane, time)


def selection(found: Selection, *, verbose: bool = False) -> Iterator[Block]:
    """Return the first tasks of a selection."""
    names = ("name", "kind", "lane", "phase", "layer")
    shown = Selection(found.graph, found.ids[:MOST_ROWS])
    texts = [getattr(shown, name).tolist() for name in names]
    total = time_text(found.total("duration_ns"))
    yield Headline(f"Selection of {counted(len(found), 'task')}, {total} in total")
    yield Text(found.words)
    if not len(found):
        return
    columns = [*map(Column, names), Kind.TIME("duration")]
    rows = list(zip(*texts, shown.duration_ns.tolist(), strict=True))
    yield _first(columns, rows, len(found))


def groups(found: Groups, *, verbose: bool = False) -> Iterator[Block]:
    """Return the first groups: how many tasks each has, and their time."""
    keys = (" / ".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in found.keys)
    rows = list(zip(keys, found.sizes.tolist(), found.total("duration_ns").tolist(), strict=True))
    columns = [Column("group"), Kind.COUNT("tasks"), Kind.TIME("time")]
    said = f"{counted(len(found), 'group')} of {counted(int(found.sizes.sum()), 'task')}"
    yield Headline(said)
    yield Text(found.selection.words)
    yield _first(columns, rows)


def timeline(found: Timeline, *, verbose: bool = False) -> Iterator[Block]:
    """Return the steps of a timeline, and how long each lane is busy."""
    steps = found.graph.steps
    rows = []
    for (copy, step), ns in found.step_times().items():
        name = step_name(steps, steps[step])
        rows.append((f"{name}, pass {copy + 1}" if copy else name, ns))
    lanes = [lane.name for lane in found.graph.lanes]
    yield Headline(
        f"Timeline of {counted(len(found.task), 'task')}, {time_text(found.makespan_ns)}"
    )
    if rows:
        yield _first([Column("step"), Kind.TIME("time")], rows)
    yield _sums("lane", lanes, found.plan.lane, found.plan.duration_ns)


def _first(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    there: int | None = None,
) -> Table:
    """Return the first rows, and how many more there are."""
    others = (len(rows) if there is None else there) - MOST_ROWS
    more = f"and {others:,} more" if others > 0 else ""
    return Table(columns, [Row(each) for each in rows[:MOST_ROWS]], more=more)


def _sums(what: str, names: Sequence[str], code: np.ndarray, time: np.ndarray) -> Table:
    """Return a row for each name that occurs: how many tasks, and their time together."""
    tasks = np.bincount(code, minlength=len(names))
    total = np.zeros(len(names), np.int64)
    np.add.at(total, code, time)
    found = zip(names, tasks.tolist(), total.tolist(), strict=True)
    columns = [Column(what), Kind.COUNT("tasks"), Kind.TIME("time")]
    return Table(columns, [Row(each) for each in found if each[1]])


NAME_WIDTH = 60
NARROW = 30  # characters: names that a narrow terminal cannot tell apart are whole below
SHOWN = 15  # rows of a table


def records(found: Mapping[str, Any], *, verbose: bool = False) -> Iterator[Block]:
    """Return the result of a tool; `verbose` with every row and whole names."""
    facts = {name: value for name, value in found.items() if not _is_table(value)}
    columns = [Column(name, _kind(name, [value])) for name, value in facts.items()]
    row = Row([*map(_cell, facts.values())])
    said = Table(columns, [row], own_units=True).texts()[1][0]
    if facts:
        yield Facts(list(zip(facts, said, strict=True)))
    for name, rows in found.items():
        if _is_table(rows):
            yield Title(f"{name} ({counted(len(rows), 'row')})")
            yield _table(rows, verbose=verbose) if any(rows) else Text("none")
    if not found:
        yield Headline("nothing found")


def imported(trace: Trace, rows_by_kind: Mapping[str, int]) -> Iterator[Block]:
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
    yield Facts(facts)
    yield Notes(metadata.get("notes", []))


def _table(rows: Sequence[Mapping[str, Any]], *, verbose: bool) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row if name != "stack"))
    shown = rows if verbose else rows[:SHOWN]
    width = 10**6 if verbose else NAME_WIDTH
    # a name without its unit, which its cells have
    columns = [
        Column(
            name.removesuffix("_ns")
            .removesuffix("_bytes")
            .removesuffix(" bytes")
            .replace("_", " "),
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


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)
