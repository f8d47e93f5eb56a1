"""What an answer becomes: its views, and each view as text, page, Markdown."""

from cli.command_line import held_to
from graph.small_traces import repeated
from report.test_html_report import Document
from shared import shared_replay, view_text

import daydream
from daydream.predict.suggest import suggestion
from daydream.predict.sweep import Refused, Sweep, SweepTrace
from daydream.report.blocks import (
    FADED,
    HEADING,
    NEUTRAL,
    Beside,
    Code,
    Column,
    Drawing,
    Facts,
    Figures,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    Title,
    step_change_text,
)
from daydream.report.page import MOST_AT_ONCE, notebook_html, render
from daydream.report.text import ASIDE, BETTER, TITLE, WORSE, lines, markdown, text_of
from daydream.report.views.breakdown import cause_table
from daydream.simulate.critical_path import PathCause

# One view with every kind of block, as each renderer shows it; what narrow terminals leave out


MS = 1_000_000
COLUMNS = (
    Column("part"),
    Column("before", Kind.TIME),
    Column("after", Kind.TIME),
    Column("change", Kind.CHANGE),
    Column("interval", Kind.INTERVAL, spare=2),
    Column("held", Kind.BYTES, spare=1),
    Column("times", Kind.RATIO),
    Column("share", Kind.PERCENT),
    Column("error", Kind.ERROR),
    Column("calls", Kind.COUNT),
    Column("unused"),
)
ROWS = (
    Row(("kernels",), style=HEADING),
    Row(("  gemm", 12 * MS, 6 * MS, -6 * MS, (5 * MS, 7 * MS), 3 << 20, 2.0, 0.5, 0.01, 1234, None), "a < b"),
    Row(("  copy", 3 * MS, 4 * MS, MS, None, "unknown", 0.75, 0.07, -0.02, 2.5, None), style=FADED),
    Row(("idle", 2 * MS, 3 * MS, MS, None, None, None, None, None, None, None), style=NEUTRAL),
)
SAMPLE = (
    Headline("amp: 12.00 -> 6.00 ms per step, 2.00x (90% interval 1.71 to 2.40x)"),
    Figures([("measured", "12.1 ms", "mean of 3"), ("predicted", "6.0 ms", "")], "step time"),
    Text("gemm is fast.", "note: "),
    Code("torch.autocast()"),
    Table(COLUMNS, ROWS, 20 * MS, more="and 2 more"),
    Title("recorded", "facts", "what there is"),
    Facts([("replay", "yes: it fits"), ("layers", "no: none")], answers=True),
    Beside([Table([Column("a")], [Row(("left",))]), Table([Column("b")], [Row(("right",))])]),
    Drawing("", "<b>drawn</b>"),
    Notes(["one", "two", "one"]),
)


def test_a_view_as_text():
    held_to("blocks.txt", text_of(SAMPLE))


def styles(blocks, room=120):
    return {piece.text.strip(): piece.style for line in lines(blocks, room) for piece in line if piece.style}


def test_on_a_terminal_less_time_is_green_more_is_red_and_what_is_neutral_or_faded_is_neither():
    found = styles(SAMPLE)
    assert (found["-6.00"], found["2.00x"], found["yes"], found["no"]) == (BETTER, BETTER, BETTER, WORSE)
    assert (found["+1.00"], found["0.75x"], found["copy"]) == (ASIDE, ASIDE, ASIDE)
    assert (found["kernels"], found["notes"], found["part"]) == (TITLE, TITLE, TITLE)
    slower = Table([Column("a"), Column("change", Kind.CHANGE)], [Row(("b", MS)), Row(("c", 0))])
    assert styles([slower]) == {"a": TITLE, "change, ms": TITLE, "+1.000": WORSE}


def test_units_and_digits_are_those_of_the_whole_or_of_the_largest_cell():
    columns = (Column("a"), Column("t", Kind.TIME), Column("m", Kind.BYTES))
    small = Table(columns, [Row(("x", 9_000, 2048)), Row(("y", 500, 100))])
    assert small.texts() == (["a", "t, us", "m, KiB"], [["x", "9.000", "2.0"], ["y", "0.500", "0.1"]])
    assert small._replace(whole=250 * MS).texts()[1][0] == ["x", "0.0", "2.0"]
    own = small._replace(own_units=True)
    assert own.texts() == (["a", "t", "m"], [["x", "9.000 us", "2.00 KiB"], ["y", "0.500 us", "100 bytes"]])


def test_a_view_as_a_page():
    page = Document(render("blocks.jinja", SAMPLE))
    head, heading, gemm, *_ = page.tables[0]
    assert head[1:4] == ["before, ms", "after", "change"]
    assert heading == ["kernels"]
    assert gemm[:5] == ["\u2003gemm a < b", "12.00", "6.00", "-6.00", "5.00 to 7.00"]
    assert {
        ("section", "id", "facts"),
        ("tr", "class", "faded"),
        ("td", "class", "n better"),
    } <= page.attributes
    assert ("td", "data-v", "-6000000") in page.attributes
    assert "drawn" in page.words
    assert "run <code>a &lt; b</code>" in render("blocks.jinja", [Notes(["run `a < b`"])])
    rows = [Row((f"r{n}", n)) for n in range(MOST_AT_ONCE + 5)]
    table = Table([Column("a"), Column("b", Kind.COUNT)], rows, name="many")
    text = render("blocks.jinja", [table])
    assert text.count("<tr hidden>") == 5
    assert f"show all {len(rows)}" in text


def test_a_view_as_markdown_folds_what_follows_its_first_table():
    found = markdown(SAMPLE)
    shown, folded = found.split("<details>")
    assert shown.startswith("**amp: 12.00 → 6.00 ms per step, 2.00x \\(90% interval 1.71 to 2.40x\\)**\n\n")
    assert "| `gemm` | 12.00 | 6.00 | -6.00 | 5.00 to 7.00 | 3.0 | 2.00x | 50.0% | +1.00% | 1,234 |" in shown
    assert "- replay: yes: it fits" in folded
    assert "- two\n\n</details>" in folded


def test_no_name_is_markup():
    nasty = '</script><b>"x"</b>\x1b[31m|`@team`'
    blocks = [
        Headline(nasty),
        Text(nasty, nasty),
        Code(nasty),
        Title(nasty, "id", nasty),
        Facts([(nasty, nasty)]),
        Figures([(nasty, nasty, nasty)], nasty),
        Notes([nasty]),
        Table(
            [Column(nasty), Column(nasty, Kind.TIME)],
            [Row((nasty, nasty), nasty), Row((nasty,), style=HEADING)],
        ),
    ]
    for text in (render("blocks.jinja", blocks), notebook_html(blocks)):
        assert "<b>" not in text
        assert "<script" not in text
        assert "\x1b" not in text
    assert "\x1b" not in text_of(blocks)
    assert "<b>" not in "".join(part for at, part in enumerate(markdown(blocks).split("`")) if at % 2 == 0)


# A sweep's screen: what stands for many refused scenarios, several traces, notes that all share


def recorded(name="a.parquet"):
    return SweepTrace(name, "recorded", 10_000_000, 10_000_000, 0.0, ("recorded by hand",))


def of(answers, refused, varied, traces=("a.parquet",)):
    return Sweep("ddp", varied, {}, [recorded(trace) for trace in traces], answers, refused)


def test_a_trace_that_was_not_replayed_is_told():
    sweep = of([], [Refused("b", {"workers": 2}, "no step")], {"workers": [2]}, ("a", "b"))
    sweep.traces[1] = SweepTrace("b", None, None, None, None, reason="no step")

    assert "  b   not replayed" in view_text(sweep, top=5)


# The views of what-ifs, explanations, replays and overviews: the answer first, then what it rests on


RECORDING = {
    "event_ns": {"forward": 1000, "backward": 1000, "optimizer": 1000},
    "input_ns": 0,
    "module_ns": 0,
    "annotation_ns": 0,
    "inside_ns": 200,
    "before_share": 0.75,
    "heads": [],
    "step_hooks_ns": 0,
}


def small_run(factor=1.0):
    """Three steps of 20 us, 2 of them recording; without a profiler they took 18, times the factor."""
    step = "op a 0 8 phase=forward\nop b 12 18 phase=forward"
    known = {"profiler_cost": RECORDING, "unprofiled_step_ns": [round(factor * 18_000)] * 3}
    return repeated(step, 20, times=3, **known)


def test_what_a_step_waits_for_adds_up_and_the_rest_is_never_the_largest(replay):
    before, after = daydream.whatif(replay, "amp").breakdowns()
    *rows, whole = cause_table(before, after).rows

    for side in (1, 2, 3):
        assert sum(row.cells[side] for row in rows) == whole.cells[side]
    *named, rest = [max(row.cells[1:3]) for row in rows]
    assert rest <= max(named)
    many = {cause.value: 100 - at for at, cause in enumerate(PathCause)}
    *named, rest, _ = cause_table({"by_cause": many}, {"by_cause": many}).rows
    assert max(row.cells[1] for row in named) >= rest.cells[1]


def test_where_the_step_was_measured_without_a_profiler_the_prediction_starts_from_that():
    def add(graph):
        graph.insert_after(graph.select(name="^a$"), "new work", kind="cpu", duration_ns=3_000)

    # The correction finds 18 us; it took 9. What the change adds is 3 on either.
    found = view_text(daydream.whatif(small_run(factor=0.5), add))

    assert found.startswith("add: 9.00 -> 12.00 us per step, 0.75x")


def test_a_prediction_that_says_nothing_leads_with_that_and_why():
    comparison = daydream.whatif(
        shared_replay("kineto/mi300x_sglang_decode_graph_replay.json.gz"), "scale", on="gpu", factor=0.5
    )
    first, *rest = view_text(comparison).splitlines()

    assert first.startswith("scale: cannot be predicted from this trace; replay error")
    assert f"because {comparison.reason}" in " ".join(" ".join(rest).split())
    assert not any("change" in line.split() for line in rest)
    assert suggestion(comparison) is None


def test_of_a_very_long_recording_nothing_more_is_simulated(replay, monkeypatch):
    comparison = daydream.whatif(replay, "amp")
    monkeypatch.setattr("daydream.predict.suggest.MOST_TASKS", 10)

    assert suggestion(comparison) is None


def test_a_range_on_both_sides_of_1x_is_undecided():
    assert step_change_text(100, 100, 0.909, 1.111).endswith(", 1.00x (may help or hurt: 0.91 to 1.11x)")
    assert step_change_text(1000, 980, 0.999, 1.042).endswith(", 1.02x (90% interval 1.00 to 1.04x)")
    assert step_change_text(100, 80, 1.111, 1.429).endswith(", 1.25x (90% interval 1.11 to 1.43x)")
    assert step_change_text(100, 120, 0.769, 0.909).endswith(", 0.83x (90% interval 0.77 to 0.91x)")
    assert step_change_text(100, 80, 1.111).endswith(", 1.25x (90% interval 1.11x or more)")


def test_steps_that_all_replay_exactly_have_no_worst_one():
    replay = daydream.replay(repeated("op a 0 8", 10, times=31))
    assert len(replay.steps) > 12
    assert f"  each of the {len(replay.steps)} steps replays with an error of 0.00%\n" in view_text(replay)
    assert "worst of" in view_text(replay, verbose=True)
    replay.steps[7].error = 10.0

    assert f"worst of {len(replay.steps)} steps; --json has them all" in view_text(replay)


# Where a step's time goes
