"""Traces, graphs, selections and timelines, as notebooks show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.graph.selection import Selection
from daydream.graph.tables import KINDS
from daydream.report.blocks import Block, Column, Headline, Kind, Row, Table, Text
from daydream.report.format import time_text
from daydream.report.info import rows_by_kind, span_ns
from daydream.report.timeline import step_name
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.simulate.timeline import Timeline
    from daydream.trace.trace import Trace

MOST_ROWS = 12


def trace(found: Trace, *, verbose: bool = False) -> list[Block]:
    """Return the rows of a trace by kind, and its steps."""
    steps = found.metadata.get("steps", [])
    rows = []
    for step in steps:
        complete = "yes" if step.get("covered") else str(step.get("why_not") or "no")
        rows.append((step_name(steps, step), step.get("measured_ns"), complete))
    said = f"{counted(len(found), 'row')} over {time_text(span_ns(found))}, {counted(len(steps), 'step')}"
    blocks: list[Block] = [
        Headline(f"Trace: {found.metadata.get('source', 'unnamed')}"),
        Text(said),
        _first([Column("rows of kind"), Kind.COUNT("number")], [*rows_by_kind(found).items()]),
    ]
    columns = [Column("step"), Kind.TIME("measured"), Column("complete")]
    return [*blocks, _first(columns, rows)] if steps else blocks


def graph(found: Graph, *, verbose: bool = False) -> list[Block]:
    """Return how many tasks of each kind and on each lane a graph has, and their time."""
    columns = found.columns
    kind = columns["kind"][found.alive]
    lane = columns["lane"][found.alive]
    time = columns["duration_ns"][found.alive]
    return [
        Headline(f"Graph of {counted(len(found), 'task')} on {counted(len(found.lanes), 'lane')}"),
        _sums("kind", list(KINDS), kind, time),
        _sums("lane", [each.name for each in found.lanes], lane, time),
    ]


def selection(found: Selection, *, verbose: bool = False) -> list[Block]:
    """Return the first tasks of a selection."""
    names = ("name", "kind", "lane", "phase", "layer")
    shown = Selection(found.graph, found.ids[:MOST_ROWS])
    texts = [getattr(shown, name).tolist() for name in names]
    total = time_text(found.total("duration_ns"))
    blocks: list[Block] = [
        Headline(f"Selection of {counted(len(found), 'task')}, {total} in total"),
        Text(found.words),
    ]
    if not len(found):
        return blocks
    columns = [*map(Column, names), Kind.TIME("duration")]
    rows = list(zip(*texts, shown.duration_ns.tolist(), strict=True))
    return [*blocks, _first(columns, rows, len(found))]


def groups(found: Groups, *, verbose: bool = False) -> list[Block]:
    """Return the first groups: how many tasks each has, and their time."""
    keys = (" / ".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in found.keys)
    rows = list(zip(keys, found.sizes.tolist(), found.total("duration_ns").tolist(), strict=True))
    columns = [Column("group"), Kind.COUNT("tasks"), Kind.TIME("time")]
    said = f"{counted(len(found), 'group')} of {counted(int(found.sizes.sum()), 'task')}"
    return [Headline(said), Text(found.selection.words), _first(columns, rows)]


def timeline(found: Timeline, *, verbose: bool = False) -> list[Block]:
    """Return the steps of a timeline, and how long each lane is busy."""
    steps = found.graph.steps
    rows = []
    for (copy, step), ns in found.step_times().items():
        name = step_name(steps, steps[step])
        rows.append((f"{name}, pass {copy + 1}" if copy else name, ns))
    lanes = [lane.name for lane in found.graph.lanes]
    return [
        Headline(f"Timeline of {counted(len(found.task), 'task')}, {time_text(found.makespan_ns)}"),
        *([_first([Column("step"), Kind.TIME("time")], rows)] if rows else []),
        _sums("lane", lanes, found.plan.lane, found.plan.duration_ns),
    ]


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
