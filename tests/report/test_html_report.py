"""The HTML report: one file that asks for nothing, says what the screen says, and that no name can break."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np
import pytest
from graph.small_traces import launched, op, trace
from html_document import Document
from machine.programs import PROGRAMS

import daydream
from daydream.errors import OutputError
from daydream.predict.rank import rank
from daydream.report.format import range_text, time_text
from daydream.report.html.page import page, write
from daydream.report.html.render import MOST_AT_ONCE
from daydream.report.timeline import (
    INSERTED,
    ON_PATH,
    measured_in,
    measured_window,
    packed,
    simulated_in,
    simulated_window,
)
from daydream.report.views.step import recorded_step
from daydream.simulate.critical_path import PathCause

NASTY = "</script><script>alert('1')</script><!-- \"&amp; \u2028 \x1b[31m"
PROGRAMS_IN_PAGE, DATA_IN_PAGE = 5, 2


def numbers(text: str) -> np.ndarray:
    """Return a packed column, read as `spans.js` does."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<i4").reshape(-1).astype(np.int64)


def a_replay(folder: Path, program: str = "synchronizing") -> daydream.Replay:
    PROGRAMS[program]().run(steps=30).write(folder / "step.json.gz", 24, 27)
    return daydream.replay(folder / "step.json.gz")


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    replay = a_replay(tmp_path_factory.mktemp("trace"))
    replay.notes += ["A note on the recording.", "And another with < and & in it."]
    return replay


@pytest.fixture(scope="module")
def comparison(replay):
    return daydream.whatif(replay, "amp")


@pytest.fixture(scope="module")
def document(replay, comparison):
    return Document(page(comparison))


def test_the_page_loads_nothing(replay, comparison):
    for text in (page(replay), page(comparison)):
        said = Document(text)

        assert not {name for _, name, _ in said.attributes} & {"src", "href", "srcset", "action", "data"}
        assert "default-src 'none'" in text
        assert "The MIT License" in text
        assert "@import" not in text
        assert "url(" not in text
        assert len(said.scripts) == PROGRAMS_IN_PAGE + DATA_IN_PAGE


def test_the_cards_say_what_the_screen_says(document, comparison):
    low, high = comparison.predicted_low_ns, comparison.predicted_high_ns
    assert comparison.basis == "estimated"  # what recording typically costs is taken out
    for figure in (
        f"estimated {time_text(comparison.replayed_ns)}",
        f"predicted {time_text(comparison.predicted_ns)}",
        range_text(low, high),
        f"speedup {comparison.speedup:.2f}x",
        f"{comparison.replayed_ns / high:.2f} to {comparison.replayed_ns / low:.2f}x",
        *(line.text for line in recorded_step(comparison)),
    ):
        assert figure in document.words


def test_every_note_and_option_is_in_the_page(document, comparison):
    assert comparison.notes
    assert [note for note in comparison.notes if note.replace("`", "") not in document.words] == []
    assert [name for name, value in comparison.options.items() if value is not None] == [
        name
        for name, value in comparison.options.items()
        if value is not None and name.replace("_", "-") in document.words
    ]


def test_the_breakdowns_are_those_of_the_comparison(document, comparison):
    before, after = comparison.breakdowns()
    by_cause, by_phase = document.tables[:2]

    for table, key in ((by_cause, "by_cause"), (by_phase, "by_phase")):
        names = {*before[key], *after[key]}
        if key == "by_cause":
            names = {PathCause(name).label for name in names}
        times = {row[0]: float(row[1].replace(",", "")) for row in table[1:]}
        step = times.pop("the step", None)
        whole = sum(before[key].values()) / 1e6
        assert times.keys() - {"the rest"} <= names
        assert (step is not None) == (key == "by_cause")
        assert step is None or step == pytest.approx(whole, abs=0.06)
        assert sum(times.values()) == pytest.approx(whole, abs=0.06)


def test_notes_come_last_and_those_on_the_change_first(replay):
    def faster(graph):
        graph.select(kind="kernel").scale(0.5)
        graph.note("A note on the change.")

    comparison = daydream.whatif(replay, faster)
    text = page(comparison)

    assert text.index('id="timeline"') < text.index('id="breakdown"') < text.index('id="notes"')
    assert text.index("A note on the change.") < text.index("does not say what recording cost")


def test_the_largest_changes_of_layers_and_tasks_come_first(document):
    for table in document.tables:
        if table[0][0].startswith(("operator", "layer", "task")) and "change" in table[0]:
            changes = [abs(float(row[3])) for row in table[1:]]
            assert changes == sorted(changes, reverse=True)
            assert changes[0] > 0


def test_every_step_is_there_with_its_error(document, replay):
    table = next(table for table in document.tables if table[0][0].startswith("step"))

    assert [row[0] for row in table[1:]] == [step.name for step in replay.steps]
    assert all(row[3].endswith("%") for row in table[1:])


def test_the_same_input_gives_the_same_page(replay, comparison):
    assert page(comparison) == page(daydream.whatif(replay, "amp"))


def test_no_name_can_break_the_page(tmp_path):
    replay = a_replay(tmp_path)
    for before in (replay.graph,):
        for column in ("name", "op", "layer"):
            before.texts[column][:] = [f"{NASTY} {text}" for text in before.texts[column]]
        before.steps[1]["name"] = NASTY
        before.trace.metadata["source"] = NASTY
        before.trace.metadata["devices"] = [{"id": 0, "name": NASTY}]
        before.facts.notes.append(NASTY)
    replay.notes.append(NASTY)
    replay.steps[0].name = NASTY
    comparison = daydream.whatif(replay, "scale", factor=0.5, on="gpu")
    comparison.optimization = NASTY

    text = page(comparison)
    said = Document(text)

    assert len(said.scripts) == PROGRAMS_IN_PAGE + DATA_IN_PAGE
    assert "alert('1')</script>" not in text
    assert "\x1b" not in text
    shown = NASTY.replace("\u2028", "?").replace("\x1b", "?")
    assert any(name.startswith(shown) for name in said.data("timelines-data")["names"])
    assert shown in said.data("steps-chart-data")["names"]
    assert said.words.count(shown) > 5


# The timelines -----------------------------------------------------------------------------------


def test_the_windows_are_as_long_as_their_steps(replay, comparison, document):
    before, after = document.data("timelines-data")["timelines"]

    for shown, settled in ((before, replay.settled), (after, comparison.after)):
        assert shown["unit_ns"] == 1
        assert shown["length"] == sum(ns for (copy, _), ns in settled.times.items() if copy == settled.copy)
    assert before["title"], after["title"] == ("replayed", "predicted")
    said = Document(page(replay)).data("timelines-data")["timelines"]
    assert [each["title"] for each in said] == ["measured", "replayed"]
    assert said[0]["length"] == sum(step.measured_ns for step in replay.steps)


def test_packed_spans_give_back_the_tasks(replay):
    step, _ = replay.settled.typical()
    window = simulated_window(replay.timeline, replay.settled.copy, step)
    spans = simulated_in(replay.timeline, replay.settled.copy, window)
    names: dict[str, int] = {}
    said = packed("replayed", replay.graph, window, spans, names)

    columns = {name: numbers(text) for name, text in said["columns"].items()}
    inside = (spans.start_ns >= 0) & (spans.start_ns + spans.duration_ns <= window.length_ns)
    assert said["tasks"] == len(spans) == said["first"][-1]
    assert columns["duration"][inside].tolist() == spans.duration_ns[inside].tolist()
    start = np.concatenate([
        np.cumsum(columns["since"][begin:end])
        for begin, end in zip(said["first"], said["first"][1:], strict=False)
    ])  # fmt: skip
    assert start[inside].tolist() == spans.start_ns[inside].tolist()
    texts = replay.graph.texts["name"]
    assert [[*names][code] for code in columns["name"]] == [texts[code] for code in spans.name]


def test_the_measured_timeline_lies_where_it_was_recorded(replay):
    graph = replay.graph
    window = measured_window(graph, replay.settled.typical()[0])
    spans = measured_in(graph, window)
    kernels = np.flatnonzero((graph.columns["kind"] == 1) & graph.alive)
    start = graph.columns["measured_start_ns"][kernels] - window.begin_ns
    inside = (start >= 0) & (start < window.length_ns)

    assert sorted(spans.start_ns[(spans.kind == 1) & (spans.start_ns >= 0)]) == sorted(start[inside])


def test_changed_and_inserted_tasks_are_marked(replay):
    def slower(graph):
        kernels = graph.select(kind="kernel")
        kernels.scale(2)
        lane = kernels.lane[0]
        graph.insert("extra", kind="kernel", lane=lane, duration_ns=5_000, after=[kernels.ids[0]])

    after = daydream.whatif(replay, slower)
    window = simulated_window(after.timeline, 0, replay.settled.typical()[0])
    spans = simulated_in(after.timeline, 0, window, replay.graph)

    changed = spans.former_ns >= 0
    assert changed.any()
    assert (spans.kind[changed] == 1).all()
    assert (spans.duration_ns[changed] == 2 * spans.former_ns[changed]).all()
    assert ((spans.flags & INSERTED) == 0).all() or (spans.flags & INSERTED).sum() == 1


# The critical path -------------------------------------------------------------------------------


def test_the_path_is_marked_in_the_timeline(document):
    before, _ = document.data("timelines-data")["timelines"]

    assert (numbers(before["columns"]["flags"]) & ON_PATH).any()


def test_long_tables_begin_short(replay):
    text = page(replay)

    assert text.count("<tr hidden>") > 0
    assert f'data-most="{MOST_AT_ONCE}"' in text


def test_kernels_have_their_time_count_and_mean(document, comparison):
    heads, *rows = next(table for table in document.tables if table[0][0] == "kernel")
    assert heads[1:] == ["before, ms", "after", "change", "count", "mean, us"]
    _, step = comparison.shown_steps()
    graph = comparison.graph
    ours = np.flatnonzero((graph.columns["step"] == step) & (graph.columns["kind"] != 0))
    name = graph.column("name", ours)
    for row in rows:
        ns = graph.columns["duration_ns"][ours[name == row[0]]]
        assert (int(row[4]), float(row[2])) == (len(ns), pytest.approx(ns.sum() / 1e6, abs=0.002))
        assert float(row[5].replace(",", "")) == pytest.approx(ns.mean() / 1e3, rel=1e-3)


# Files -------------------------------------------------------------------------------------------


def test_a_step_of_which_nothing_is_left_has_a_report(replay):
    nothing = daydream.whatif(replay, lambda graph: graph.select().set(duration_ns=0, gap_ns=0))
    said = Document(page(nothing))

    assert said.data("timelines-data")["timelines"][1]["length"] < 0.1 * replay.measured_ns


def test_several_ranks_have_a_report(tmp_path):
    for number in range(2):
        PROGRAMS["multi_stream"]().run(steps=6).write(tmp_path / f"rank{number}.json", 2, 4)
    replay = daydream.replay(tmp_path)
    said = Document(page(daydream.whatif(replay, "scale", factor=0.5, on="gpu")))

    assert "rank 1 " in said.words
    table = next(table for table in said.tables if table[0][1:] == ["rank 0, ms", "rank 1"])
    assert table[-1][0] == "the step"
    assert {step[3] for step in said.data("timelines-data")["timelines"][0]["steps"]} == {0, 1}


def test_a_file_is_written_whole_and_never_over_another(replay, tmp_path):
    path = tmp_path / "report.html"
    write(path, replay)

    assert path.read_text("utf-8") == page(replay)
    with pytest.raises(OutputError, match="exists already"):
        write(path, replay)
    write(path, replay, force=True)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_step_that_ends_only_without_the_profiler_is_no_row():
    work = launched("kernel", 2, 7, 8, 5), op("inside", 19, 20), op("beyond", 26, 30.1)
    replay = daydream.replay(trace(*work, steps=(0, 10, 20, 30), profiler=None))
    assert [[*each.settled.step_times(0)] for each in (replay.recording, replay)] == [[1], [1, 2]]
    names = [row[0] for rows in Document(page(replay)).tables for row in rows]
    assert "step 1" in names
    assert "step 2" not in names


# Ranked what-ifs


def test_what_ifs_are_ranked_with_what_bounds_the_step_then(replay):
    ranking = rank(replay, ["amp", "scale", "ddp", "gist", "dataloader"], pairs=0, with_curves=False)
    said = Document(page(daydream.whatif(replay, "amp"), ranking))
    table = next(table for table in said.tables if table[0][0] == "optimization")
    best = ranking.optimizations[0]

    assert table[0][1:5] == ["predicted, ms", "90% interval, ms", "saves", "speedup"]
    assert table[1][0] == f"{best.optimization} {best.code}"
    assert table[1][1] == f"{best.predicted_ns / 1e6:,.3f}"
    assert table[1][4] == f"{best.speedup:.2f}x"
    assert f"All are of the estimated step, {best.replayed_ns / 1e6:.3f} ms now." in said.words
    assert table[1][5].startswith(best.bound)
    assert ranking.left_out
    for name, reason in ranking.left_out.items():
        assert [name, reason] in next(rows for rows in said.tables if rows[0] == ["left out", "why"])


def test_a_ranking_in_which_nothing_saves_says_so(replay):
    ranking = rank(replay, ["dataloader"], pairs=0, with_curves=False)
    text = page(replay, ranking=ranking)

    assert "None would make the step shorter." in text
    assert "Ranked what-ifs" not in page(replay)
