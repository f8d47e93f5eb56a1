"""The page of a report, its figures and what a notebook shows."""

import base64
import json
import re
import zlib
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from machine.programs import PROGRAMS
from shared import GPT

import daydream
from daydream import Graph
from daydream.errors import GraphError
from daydream.predict.curves import Curves
from daydream.predict.prediction import Prediction
from daydream.report.page import html, page, timeline_frame
from daydream.report.roofline import NO_PEAKS, NO_WORK, roofline
from daydream.report.sections import MOST_STRETCHES, StepPath
from daydream.report.timeline import (
    packed,
    simulated_in,
    simulated_window,
)
from daydream.report.views.nouns import MOST_ROWS

EMPTY = {"meta", "input"}  # elements without an end


class Document(HTMLParser):
    """The texts and elements of a page; refuses what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.tables = []
        self.attributes = set()
        self.scripts = {}
        self.words = ""
        self.open = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes |= {(tag, name, value) for name, value in attrs}
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts[dict(attrs).get("id") or f"program {len(self.scripts)}"] = ""
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts[list(self.scripts)[-1]] += data
        elif inside != "style":
            self.words += data
            if {"td", "th"} & set(self.open):
                self.tables[-1][-1][-1] += data

    def data(self, name):
        return json.loads(self.scripts[name])


# The page of a report, its figures and what a notebook shows


# The HTML report: one file that asks for nothing, says what the screen says, and that no name can break


NASTY = "</script><script>alert('1')</script><!-- \"&amp; \u2028 \x1b[31m"
PROGRAMS_IN_PAGE, DATA_IN_PAGE = 5, 2


def numbers(text):
    """Return a packed column, read as `spans.js` does."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<i4").reshape(-1).astype(np.int64)


def a_replay(folder, program="synchronizing"):
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


def test_every_note_and_option_is_in_the_page(document, comparison):
    options = [name.replace("_", "-") for name, value in comparison.options.items() if value is not None]
    said = [*options, *(note.replace("`", "") for note in comparison.notes)]
    assert len(said) > len(options) > 0
    assert [each for each in said if each not in document.words] == []


def test_the_same_input_gives_the_same_page(replay, comparison):
    assert page(comparison) == page(daydream.whatif(replay, "amp"))


def test_no_name_can_break_the_page(tmp_path):
    replay = a_replay(tmp_path)
    before = replay.graph
    for column in ("name", "op", "layer"):
        before.texts[column][:] = [f"{NASTY} {text}" for text in before.texts[column]]
    before.steps[1]["name"] = NASTY
    before.trace.metadata |= {"source": NASTY, "devices": [{"id": 0, "name": NASTY}]}
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


def test_packed_spans_give_back_the_tasks(replay):
    step, _ = replay.settled.typical()
    window = simulated_window(replay.timeline, replay.settled.copy, step)
    spans = simulated_in(replay.timeline, replay.settled.copy, window)
    names = {}
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


def test_several_ranks_have_a_report(tmp_path):
    for number in range(2):
        PROGRAMS["multi_stream"]().run(steps=6).write(tmp_path / f"rank{number}.json", 2, 4)
    replay = daydream.replay(tmp_path)
    said = Document(page(daydream.whatif(replay, "scale", factor=0.5, on="gpu")))

    assert "rank 1 " in said.words
    table = next(table for table in said.tables if table[0][1:] == ["rank 0, ms", "rank 1"])
    assert table[-1][0] == "the step"
    assert {step[3] for step in said.data("timelines-data")["timelines"][0]["steps"]} == {0, 1}


# What the roofline of the HTML report is made of; a browser draws it in `test_html_in_chromium`


def counted(amounts):
    """Return the trace made by hand, on an A100, with what `amounts` gives for a kernel's name and ns."""
    trace = daydream.load(GPT)
    trace.metadata["devices"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]
    times = trace["duration_ns"][rows].tolist()
    trace.metadata["counters"] = [
        {"name": name, **amounts(name, ns)}
        for name, ns in zip(trace.values("name", rows), times, strict=True)
    ]
    return trace


def of_products(name, ns):
    """Counters that give products 10 TFLOP/s at 100 FLOP a byte."""
    return {"flop": 10_000 * ns, "bytes": 100 * ns} if "gemm" in name else {}


def test_without_peaks_or_work_there_is_no_picture_and_it_is_said():
    trace = daydream.load(GPT)
    trace.columns.pop("shapes", None)
    trace.metadata["devices"] = []
    assert list(roofline(daydream.build(trace)))[-1].text == NO_PEAKS
    trace.metadata["devices"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    assert list(roofline(daydream.build(trace)))[-1].text == NO_WORK
    assert list(roofline(Graph())) == []


def test_points_are_kernels_by_name_and_layer_and_the_picture_says_how_much_it_covers():
    graph = daydream.replay(counted(of_products)).graph
    kernels = graph.select(kind="kernel")
    products = kernels.where(name="gemm")
    _, covered, drawn = roofline(graph)
    found = re.search(r"([\d.]+)% by counters", covered.text)
    assert found is not None
    share = products.duration_ns.sum() / kernels.duration_ns.sum()
    assert float(found[1]) == pytest.approx(100 * share, abs=0.06)
    every = drawn.value["points"]
    assert [each["ns"] for each in every] == sorted((each["ns"] for each in every), reverse=True)
    points = [each for each in every if each["by"] == "counters"]  # of the others shapes are known
    named = set(zip(products.name, products.layer, strict=True))
    assert {(each["name"], each["layer"] or None) for each in points} == named
    first = points[0]
    of_it = (products.name == first["name"]) & (products.layer == (first["layer"] or None))
    assert (first["kernels"], first["ns"]) == (of_it.sum(), products.duration_ns[of_it].sum())
    assert all((each["intensity"], each["rate"]) == (100, 10_000) for each in points)
    assert {each["kind"] for each in points} == {"compute"}


# What the HTML report draws: spans that become fewer where they are too many, a path that adds up


@pytest.mark.parametrize("program", ["synchronizing", "multi_stream", "queue_full_16"])
def test_the_critical_path_adds_up_to_the_step_in_every_table(tmp_path, program):
    replay = a_replay(tmp_path, program)
    step, ns = replay.settled.typical()
    path = StepPath(replay.timeline, replay.settled.copy, step)

    assert int((path.work_ns + path.delay_ns).sum()) == ns
    assert sum(total.path_ns for total in path.totals("layer").values()) == ns
    assert sum(total.path_ns for total in path.totals("name").values()) == ns
    stretches = path.stretches()
    assert sum(each.work_ns + each.delay_ns for each in stretches) == ns
    assert sum(each.tasks for each in stretches) == len(path.task)
    assert len(stretches) <= 2 * MOST_STRETCHES + 1
    assert stretches[0].begin_ns == 0


# The timelines of a what-if in a notebook: one frame that holds all it needs, and reaches nothing


BREAKS_OUT = '</script></iframe><script>parent.document.title = "broken"</script>'
LARGEST = 160_000  # bytes: what a saved notebook grows by


@pytest.fixture(scope="module")
def prediction():
    replay = daydream.replay(GPT)
    graph = replay.graph.copy()
    graph.select(kind="kernel", phase="optimizer").set(name=BREAKS_OUT)
    return daydream.whatif(daydream.replay(graph), "amp")


def page_of(text):
    """Return the page in the frame, as a browser reads the attribute."""
    (found,) = re.findall(r'srcdoc="([^"]*)"', text)
    return unescape(found)


def test_it_is_one_small_frame_with_the_program_in_it(prediction):
    text = prediction.interactive()._repr_html_()
    assert re.fullmatch(
        r'<iframe sandbox="allow-scripts" [^<>]*srcdoc="[^"]*" style="[^"<>]*"></iframe>', text
    )
    assert len(text.encode()) < LARGEST
    page = page_of(text)
    assert "uPlot" in page
    assert "default-src 'none'" in page
    assert "allow-same-origin" not in text
    assert BREAKS_OUT not in page
    assert text == timeline_frame(prediction)._repr_html_()


def test_without_a_prediction_there_is_no_timeline_after(prediction, monkeypatch):
    monkeypatch.setattr(prediction, "reason", "its causes were not recorded")
    with pytest.raises(GraphError, match=r"amp cannot be predicted from this trace, because its causes"):
        prediction.interactive()


# Nouns and results in a notebook: the figures of the text reports, as HTML that no name can break


SCRIPT = '<script>alert("1")</script> & \x1b[31m'


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
    graph.select(kind="kernel").set(name=SCRIPT, layer=SCRIPT)
    graph.note(SCRIPT)
    tasks = graph.select(kind="kernel")
    again = daydream.replay(graph)
    comparison = daydream.whatif(again, "scale", factor=0.5, kind="kernel")
    renamed = Prediction.of(again, SCRIPT, {}, comparison.graph, comparison.after)
    renamed.conclude()

    for thing in (graph, tasks, tasks.group_by("name"), again.timeline, again, renamed, daydream.rank(again)):
        assert not shown(thing).scripts
        assert "\x1b" not in thing._repr_html_()
    assert SCRIPT.replace("\x1b", "?") in shown(tasks).words
    assert SCRIPT.replace("\x1b", "?") in shown(renamed).words


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
