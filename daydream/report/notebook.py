"""Nouns and results as HTML for notebooks: the rows of the text reports, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection
from daydream.graph.tables import KINDS
from daydream.predict.basis import whole_recording
from daydream.predict.breakdown import parts_of_change
from daydream.predict.compare import Difference
from daydream.predict.curves import Curves
from daydream.predict.prediction import Prediction
from daydream.predict.rank import Ranking
from daydream.predict.replay import Replay
from daydream.predict.scaling import Scaling
from daydream.predict.sweep import Sweep
from daydream.report.html.elements import Html, joined
from daydream.report.text.answer import answer_lines, recorded_step
from daydream.report.text.breakdown import breakdown_rows, moved_bound
from daydream.report.text.difference import (
    difference_headline,
    side_text,
    step_remarks,
    unchanged,
    work_rows,
)
from daydream.report.text.difference import step_rows as difference_rows
from daydream.report.text.layout import MARGIN, shortened
from daydream.report.text.numbers import count, time_text
from daydream.report.text.overview import rows_by_kind, span_ns
from daydream.report.text.peak_memory import too_large
from daydream.report.text.ranking import curve_rows, optimization_rows, ranking_headline
from daydream.report.text.results import (
    basis_of_replay,
    edits_text,
    likely_text,
    replay_answer,
    replay_headline,
    step_rows,
    typical_prediction,
    whatif_headline,
)
from daydream.report.text.scaling import FADED, scaling_html
from daydream.report.text.sweep import left_out_rows, scenario_rows, sweep_title
from daydream.simulate.timeline import Timeline
from daydream.trace.trace import Trace

MOST_ROWS = 12
MOST_SWEPT = 40
CELL_WIDTH = 110

Rows = Sequence[Sequence[str]]


@singledispatch
def html(thing: object) -> str:
    """Return a noun or a result as HTML: no styles but alignment, every name escaped."""
    raise TypeError(f"cannot show as HTML: {type(thing).__name__}")


@html.register
def _scaling(found: Scaling) -> str:
    return scaling_html(found)


@html.register
def _trace(trace: Trace) -> str:
    steps = trace.metadata.get("steps", [])
    rows = [["step", "measured, ms", "covered"]]
    for step in steps[:MOST_ROWS]:
        measured = step.get("measured_ns")
        rows.append([
            _step_name(steps, step),
            "" if measured is None else f"{measured / 1e6:,.3f}",
            "yes" if step.get("covered") else str(step.get("why_not") or "no"),
        ])  # fmt: skip
    kinds = [["rows of kind", "number"], *([k, f"{n:,}"] for k, n in rows_by_kind(trace).items())]
    title = f"Trace: {trace.metadata.get('source', 'unnamed')}"
    said = f"{count(len(trace), 'row')} over {time_text(span_ns(trace))}, {count(len(steps), 'step')}"
    return _together(title, said, _table(kinds), _table(rows, len(steps)) if steps else "")


@html.register
def _graph(graph: Graph) -> str:
    kind, lane = graph.columns["kind"][graph.alive], graph.columns["lane"][graph.alive]
    time = graph.columns["duration_ns"][graph.alive]
    return _together(
        f"Graph of {count(len(graph), 'task')} on {count(len(graph.lanes), 'lane')}",
        _table(_sums("kind", list(KINDS), kind, time)),
        _table(_sums("lane", [each.name for each in graph.lanes], lane, time)),
    )


@html.register
def _selection(tasks: Selection) -> str:
    shown = Selection(tasks.graph, tasks.ids[:MOST_ROWS])
    columns = ("name", "kind", "lane", "phase", "layer")
    rows = [[*columns, "duration, us"]]
    texts = [getattr(shown, name).tolist() for name in columns]
    for *words, ns in zip(*texts, shown.duration_ns.tolist(), strict=True):
        rows.append([*("" if word is None else str(word) for word in words), f"{ns / 1e3:,.3f}"])
    title = f"Selection of {count(len(tasks), 'task')}, {time_text(tasks.total('duration_ns'))} in total"
    table = _table(rows, len(tasks), texts=len(columns)) if len(tasks) else ""
    return _together(title, tasks.words, table)


@html.register
def _groups(groups: Groups) -> str:
    rows = [["group", "tasks", "time, ms"]]
    time = groups.total("duration_ns")
    for key, size, ns in zip(groups.keys[:MOST_ROWS], groups.sizes.tolist(), time.tolist(), strict=False):
        name = " / ".join(map(str, key)) if isinstance(key, tuple) else str(key)
        rows.append([name, f"{size:,}", f"{ns / 1e6:,.3f}"])
    title = f"{count(len(groups), 'group')} of {count(int(groups.sizes.sum()), 'task')}"
    return _together(title, groups.selection.words, _table(rows, len(groups)))


@html.register
def _timeline(timeline: Timeline) -> str:
    steps = timeline.graph.steps
    times = list(timeline.step_times().items())
    rows = [["step", "time, ms"]]
    for (copy, step), ns in times[:MOST_ROWS]:
        name = _step_name(steps, steps[step])
        rows.append([f"{name}, pass {copy + 1}" if copy else name, f"{ns / 1e6:,.3f}"])
    lanes = [lane.name for lane in timeline.graph.lanes]
    return _together(
        f"Timeline of {count(len(timeline.task), 'task')}, {time_text(timeline.makespan_ns)}",
        _table(rows, len(times)) if times else "",
        _table(_sums("lane", lanes, timeline.plan.lane, timeline.plan.duration_ns)),
    )


@html.register
def _replay(replay: Replay) -> str:
    several = len({step.rank for step in replay.steps}) > 1
    rows = step_rows(replay.steps, several_ranks=several)
    shown = len(rows) - 1
    return _together(
        replay_answer(replay),
        replay_headline(replay),
        *basis_of_replay(replay),
        _table(rows),
        f"the {shown} worst of {len(replay.steps)} steps" if shown < len(replay.steps) else "",
        _notes(replay.notes),
    )


@html.register
def _comparison(comparison: Prediction) -> str:
    before, after = parts_of_change(comparison)
    return _together(
        *answer_lines(comparison),
        whatif_headline(comparison),
        likely_text(comparison),
        *typical_prediction(comparison),
        *recorded_step(comparison),
        _table(breakdown_rows(before, after)),
        *filter(None, [moved_bound(before, after)]),
        edits_text(comparison),
        _notes(comparison.notes),
    )


@html.register
def _difference(difference: Difference) -> str:
    return _together(
        f"{side_text(difference.before)}; {side_text(difference.after)}",
        *difference_headline(difference),
        _table(difference_rows(difference)),
        *step_remarks(difference),
        _table(work_rows(difference)),
        *unchanged(difference),
        _notes(difference.notes),
    )


@html.register
def _ranking(ranking: Ranking) -> str:
    optimizations = optimization_rows(ranking, ranking.optimizations)
    left_out = [["left out", "why"], *([name, why] for name, why in ranking.left_out.items())]
    reasons = _table(left_out, texts=2) if ranking.left_out else ""
    return _together(
        *whole_recording(ranking.replay.graph.trace),
        *ranking_headline(ranking),
        _table(optimizations) if ranking.optimizations else "no optimization applies to this trace",
        html(Curves(ranking.curves)) if ranking.curves else "",
        reasons,
        _notes(ranking.notes),
    )


@html.register
def _curves(curves: Curves) -> str:
    if not curves:
        return _together("no curves")
    return _table(curve_rows(curves[:MOST_ROWS]), len(curves))


@html.register
def _sweep(sweep: Sweep) -> str:
    rows = scenario_rows(sweep, sweep.scenarios[:MOST_SWEPT])
    faded = too_large([each.memory for each in sweep.scenarios[:MOST_SWEPT]])
    reasons = [["left out", "why"], *map(list, left_out_rows(sweep))]
    return _together(
        sweep_title(sweep),
        _table(rows, len(sweep.scenarios), faded=faded)
        if sweep.scenarios
        else "no scenario could be answered",
        _table(reasons, texts=2) if sweep.refused else "",
        _notes(sweep.notes),
    )


def _step_name(steps: Sequence[Mapping[str, Any]], step: Mapping[str, Any]) -> str:
    """Return a step's name, behind its rank where there are several."""
    several = len({each.get("rank", 0) for each in steps}) > 1
    return f"rank {step.get('rank', 0)} {step['name']}" if several else str(step["name"])


def _together(title: str, *parts: str) -> Html:
    """Return a title, texts and tables below each other, empty ones left out."""
    lines = [f"<p><strong>{joined(title)}</strong></p>"]
    lines += [part if isinstance(part, Html) else f"<p>{joined(part)}</p>" for part in parts if part]
    return Html("<div>" + "".join(lines) + "</div>")


def _table(rows: Rows, there: int | None = None, *, texts: int = 1, faded: Collection[int] = ()) -> Html:
    """Return a table: the first row is the head, the first `texts` columns stand to the left.

    `there` is how many rows there are, if more than shown; rows at the places `faded` are grey.
    """
    width = len(rows[0])

    def line(tag: str, row: Sequence[str], style: str = "") -> str:
        cells = (_cell(tag, text, left=place < texts) for place, text in enumerate(row))
        return f"<tr{style}>" + "".join(cells) + "</tr>"

    lines = ["<thead>" + line("th", rows[0]) + "</thead><tbody>"]
    for place, row in enumerate(rows[1:], 1):
        if any(row[1:]):
            lines.append(line("td", row, FADED if place in faded else ""))
        else:  # a heading among the rows
            text = joined(row[0])
            lines.append(f'<tr><th colspan="{width}" style="text-align:left">{text}</th></tr>')
    more = 0 if there is None else there - (len(rows) - 1)
    if more > 0:
        lines.append(f'<tr><td colspan="{width}" style="text-align:left">and {more:,} more</td></tr>')
    return Html("<table>" + "".join(lines) + "</tbody></table>")


def _cell(tag: str, text: str, *, left: bool) -> str:
    """Return a cell, indented as the text report indents it."""
    side = "left" if left else "right"
    indent = "&emsp;" if text.startswith(MARGIN) else ""
    shown = joined(shortened(text.strip(), CELL_WIDTH))
    return f'<{tag} style="text-align:{side}">{indent}{shown}</{tag}>'


def _notes(sentences: Sequence[str]) -> Html:
    unique = dict.fromkeys(sentences)
    items = "".join(f"<li>{joined(sentence)}</li>" for sentence in unique)
    return Html(f"<ul>{items}</ul>" if unique else "")


def _sums(what: str, names: Sequence[str], code: np.ndarray, time: np.ndarray) -> list[list[str]]:
    """Return a row for each name that occurs: how many tasks, and their time together."""
    tasks = np.bincount(code, minlength=len(names))
    total = np.zeros(len(names), np.int64)
    np.add.at(total, code, time)
    found = [
        [name, f"{number:,}", f"{ns / 1e6:,.3f}"]
        for name, number, ns in zip(names, tasks.tolist(), total.tolist(), strict=True)
        if number
    ]
    return [[what, "tasks", "time, ms"], *found]
