"""Nouns and results in a notebook: the figures of the text reports, as HTML that no name can break."""

from __future__ import annotations

import re

import pytest
from html_document import Document
from machine.programs import PROGRAMS
from view_text import view_text

import daydream
from daydream.predict.curves import Curves
from daydream.predict.prediction import Prediction
from daydream.report.html.render import html
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


def test_a_graph_shows_its_kinds_and_lanes(replay):
    kinds, lanes = shown(replay.graph).tables

    for table in (kinds, lanes):
        assert sum(int(row[1].replace(",", "")) for row in table[1:]) == len(replay.graph)
    assert {row[0] for row in lanes[1:]} <= {lane.name for lane in replay.graph.lanes}


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


def test_groups_show_their_keys_sizes_and_times(replay):
    groups = replay.graph.select(kind="kernel").group_by("step", "lane")
    (table,) = shown(groups).tables

    assert [int(row[1]) for row in table[1:]] == groups.sizes.tolist()
    assert table[1][0] == " / ".join(map(str, groups.keys[0]))
    assert table[1][2] == f"{groups.total('duration_ns')[0] / 1e6:,.3f}"


def test_a_timeline_shows_its_steps(replay):
    steps, _ = shown(replay.timeline).tables

    times = list(replay.timeline.step_times().values())[:MOST_ROWS]
    assert [row[1] for row in steps[1 : 1 + MOST_ROWS]] == [f"{ns / 1e6:,.3f}" for ns in times]


def test_a_replay_and_a_comparison_show_the_figures_of_their_screens(replay):
    comparison = daydream.whatif(replay, "amp")

    for thing, text in ((replay, view_text), (comparison, view_text)):
        screen = text(thing, verbose=True)
        (table,) = shown(thing).tables
        for row in table[1:]:
            assert figures(" ".join(row)) == [] or " ".join(row).strip() in re.sub(r" +", " ", screen)
    assert f"{comparison.speedup:.2f}x" in shown(comparison).words


def test_steps_of_several_ranks_are_told_apart_and_many_steps_cut(tmp_path):
    for rank in range(2):
        PROGRAMS["multi_stream"]().run(steps=12).write(tmp_path / f"rank{rank}.json", 2, 10)
    replay = daydream.replay(tmp_path)

    for thing in (replay.graph.trace, replay.timeline, replay):
        names = [row[0] for table in shown(thing).tables for row in table]
        assert any(name.startswith("rank 0 ") for name in names)
    assert len(replay.steps) > MOST_ROWS
    assert f"worst of {len(replay.steps)} steps" in shown(replay).words


def test_a_ranking_shows_the_figures_of_its_screen(replay):
    ranking = daydream.rank(replay, ["amp", "fused-adam", "vdnn"])
    page = shown(ranking)

    screen = re.sub(r" +", " ", view_text(ranking, top=20, verbose=True))
    for name, *row in page.tables[0][1:]:
        assert " ".join([name.split(" ")[0], *row]).strip() in screen
    assert all(name in page.words for name in ranking.left_out)


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


def test_a_graph_drawn_by_hand_shows_itself_too():
    graph = daydream.Graph()
    assert "Graph of 0 tasks on 0 lanes" in shown(graph).words
    graph.insert("a", kind="cpu", lane="thread", duration_ns=1_500)

    assert shown(graph).tables[0][1] == ["cpu", "1", "1.500"]
    assert shown(daydream.simulate(graph)).tables[0][1] == ["thread", "1", "1.500"]


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
