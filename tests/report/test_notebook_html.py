"""Nouns and results in a notebook: the figures of the text reports, as HTML that no name can break."""

from __future__ import annotations

import re

import pytest
from html_document import Document

import daydream
from daydream.predict.curves import Curves
from daydream.predict.prediction import Prediction
from daydream.report.html.page import html
from daydream.report.views.nouns import MOST_ROWS

NASTY = '<script>alert("1")</script> & \x1b[31m'


STYLES = {"text-align:left", "text-align:right", "opacity:0.5"}


def shown(thing):
    page = Document(thing._repr_html_())
    assert {name for _, name, _ in page.attributes} <= {"style", "colspan"}
    assert {value for _, name, value in page.attributes if name == "style"} <= STYLES
    return page


def figures(text):
    """Return the figures of a text, in their order."""
    return re.findall(r"[-+]?\d[\d,]*\.?\d*", text)


def test_a_trace_shows_its_rows_and_steps(replay):
    trace = replay.graph.trace
    page = shown(trace)

    kinds, steps = page.tables
    assert f"{len(trace):,} rows" in page.words
    assert sum(int(row[1].replace(",", "")) for row in kinds[1:]) == len(trace)
    assert [row[0] for row in steps[1:]] == [step["name"] for step in trace.metadata["steps"]]
    assert steps[1][2] != "yes"  # the first has no measured time
    assert steps[2][2] == "yes"


def test_a_selection_shows_its_first_tasks_and_how_many_more(replay):
    kernels = replay.graph.select(kind="kernel")
    page = shown(kernels)
    (table,) = page.tables

    assert f"{len(kernels):,} tasks" in page.words
    assert "kind='kernel'" in page.words
    assert len(table) == 1 + MOST_ROWS + 1
    assert table[1][0] == kernels.name[0]
    assert table[1][-1] == f"{kernels.duration_ns[0] / 1e3:,.2f}"
    assert table[-1] == [f"and {len(kernels) - MOST_ROWS:,} more"]
    assert shown(replay.graph.select(layer="nowhere")).tables == []


def test_curves_show_themselves_and_become_a_data_frame(replay):
    curves = daydream.curves(replay)
    (table,) = shown(curves).tables

    assert isinstance(curves, Curves)
    assert all(curve.name in row[0] for curve, row in zip(curves[:MOST_ROWS], table[1:], strict=False))
    assert table[-1] == [f"and {len(curves) - MOST_ROWS} more"] or len(curves) <= MOST_ROWS
    assert shown(Curves()).words.strip() == "no curves"
    pytest.importorskip("pandas")
    assert curves.to_pandas()["saving_ns"].tolist() == [curve.saving_ns for curve in curves]


def test_names_cannot_break_out_of_the_page(replay):
    graph = replay.graph.copy()
    graph.select(kind="kernel").set(name=NASTY, layer=NASTY)
    graph.note(NASTY)
    tasks = graph.select(kind="kernel")
    again = daydream.replay(graph)
    comparison = daydream.whatif(again, "scale", factor=0.5, kind="kernel")
    renamed = Prediction.of(again, NASTY, {}, comparison.graph, comparison.after)
    renamed.conclude()

    for thing in (graph, tasks, tasks.group_by("name"), again.timeline, again, renamed, daydream.rank(again)):
        assert not shown(thing).scripts
        assert "\x1b" not in thing._repr_html_()
    assert NASTY.replace("\x1b", "?") in shown(tasks).words
    assert NASTY.replace("\x1b", "?") in shown(renamed).words


def test_other_things_have_no_html():
    with pytest.raises(TypeError, match="no view of int"):
        html(5)


def test_the_tables_are_data_frames_too(replay):
    pytest.importorskip("pandas")
    comparison = daydream.whatif(replay, "amp")
    steps, parts = replay.to_pandas(), comparison.to_pandas()
    before, after = comparison.breakdowns()

    assert steps["measured_ns"].tolist() == [step.measured_ns for step in replay.steps]
    assert parts.loc["phase", "before_ns"].sum() == sum(before["by_phase"].values())
    assert parts.loc["cause", "after_ns"].sum() == sum(after["by_cause"].values())
    assert (parts.change_ns == parts.after_ns - parts.before_ns).all()
    assert replay.breakdown() == before


def test_columns_of_a_selection_are_for_reading(replay):
    kernels = replay.graph.copy().select(kind="kernel")

    with pytest.raises(daydream.GraphError, match=r"are copies; change them with .set\(duration_ns=...\)"):
        kernels.duration_ns = 5
    with pytest.raises(AttributeError, match=r"no column 'duration'\. Did you mean 'duration_ns'"):
        _ = kernels.duration
