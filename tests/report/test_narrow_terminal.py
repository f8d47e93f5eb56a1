"""What the reports look like on terminals of several widths: nothing but names is cut, nothing is steered."""

from __future__ import annotations

import io
import re

import pytest

import daydream
from daydream.report.text.console import show
from daydream.report.text.difference import difference_text
from daydream.report.text.explain import explain_text
from daydream.report.text.layout import (
    WIDTH,
    Facts,
    Figures,
    Headline,
    Screen,
    Table,
    Title,
    Words,
    notes,
)
from daydream.report.text.overview import overview
from daydream.report.text.overview_text import info_text
from daydream.report.text.ranking import ranking_text
from daydream.report.text.results import replay_text, whatif_text
from daydream.report.text.scaling import scaling_text
from daydream.report.text.sweep import sweep_text

CODE = re.compile(r"\x1b\[[0-9;]*m")
FIGURE = re.compile(r"[-+]?\d[\d,.]*[%x]?")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def coloured(monkeypatch):
    """Return what a terminal of some columns is sent for a report, as lines."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def call(blocks, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal = Terminal()
        show(blocks if isinstance(blocks, Screen) else Screen(blocks), terminal)
        return terminal.getvalue().splitlines()

    return call


@pytest.fixture
def shown(coloured):
    """Return the lines as they are read."""
    return lambda blocks, columns: [CODE.sub("", line).rstrip() for line in coloured(blocks, columns)]


@pytest.fixture(scope="module")
def screens(replay):
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    explanation = daydream.explain(replay)
    return {
        "info": info_text(overview(replay.graph.trace)),
        "replay": replay_text(replay),
        "replay -v": replay_text(replay, verbose=True),
        "whatif": whatif_text(comparison),
        "whatif -v": whatif_text(comparison, verbose=True),
        "explain": explain_text(explanation),
        "explain -v": explain_text(explanation, verbose=True),
        "rank": ranking_text(daydream.rank(replay, ["amp", "fused-adam"]), top=4),
        "compare": difference_text(daydream.compare(comparison, replay)),
        "scaling": scaling_text(daydream.scaling(replay, [1, 8], gradient_mb=100.0, cluster="dgx-a100")),
        "sweep": sweep_text(daydream.sweep(replay, "scale", {"factor": [0.5, 0.8]}, on="gpu"), top=5),
    }


VERBOSE = ("replay -v", "whatif -v", "explain -v")
SCREENS = ("info", "replay", "whatif", "explain", "rank", "compare", "scaling", "sweep", *VERBOSE)


@pytest.mark.parametrize("name", SCREENS)
def test_a_terminal_as_wide_as_the_text_shows_the_text(screens, shown, name):
    lines = screens[name].splitlines()

    wide = shown(screens[name], max(WIDTH, *map(len, lines)))
    assert [line.replace("\N{RIGHTWARDS ARROW}", "->") for line in wide] == lines


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("name", SCREENS)
def test_every_report_fits(screens, shown, name, columns):
    lines = shown(screens[name], columns)

    assert max(map(len, lines)) <= columns, "\n".join(lines)


@pytest.mark.parametrize("name", SCREENS)
def test_a_usual_terminal_hides_no_figure(screens, shown, name):
    lines = shown(screens[name], 80)

    assert sorted(FIGURE.findall(" ".join(lines))) == sorted(FIGURE.findall(screens[name]))


def test_a_narrow_table_has_no_more_lines_than_rows(screens, shown):
    (table,) = (block for block in screens["whatif -v"].blocks if isinstance(block, Table))

    assert len(shown([table], 80)) == len(table.rows)


def test_only_the_first_column_of_a_table_is_cut(shown):
    head, row = shown([Table([["name", "before", "after"], ["n" * 90, "1.0", "2.0"]])], 80)

    assert len(row) == 80
    assert re.fullmatch(r"  n+…     1\.0    2\.0", row)
    assert head.split() == ["name", "before", "after"]


def test_no_figure_is_cut_however_narrow_the_terminal_is(shown):
    figures = ["1,234.567", "+1,234.567", "1,516 -> 1,543", "337.6 to 505.4"]
    lines = shown([Table([["name", "a", "b", "c", "d"], ["n" * 90, *figures]])], 40)

    assert re.fullmatch(rf"  n+…  {re.escape('  '.join(figures))}", lines[-1])


def test_heads_of_figures_are_broken_before_a_name_is_cut_short(shown):
    table = Table([["optimization", "predicted, ms", "step, ms"], ["n" * 20, "1.0", "2.0"]])

    assert shown([table], 42) == [
        "                        predicted,  step,",
        "  optimization                  ms     ms",
        "  nnnnnnnnnnnnnnnnnnnn         1.0    2.0",
    ]


def test_words_are_wrapped_in_their_column_and_spare_columns_left_out(shown):
    rows = [["name", "spare", "bound by"], ["n" * 12, "1.0", "CPU, copies and launches"]]
    table = Table(rows, words=["bound by"], spare=[1])

    assert "1.0" in shown([table], 50)[1]
    assert shown([Table(rows, spare=[1])], 45) == [
        "  name                          bound by",
        "  nnnnnnnnnnnn  CPU, copies and launches",
    ]
    assert [line.split() for line in shown([table], 41)] == [
        ["name", "spare", "bound", "by"],
        ["nnnnnnnnnnnn", "1.0", "CPU,", "copies", "and"],
        ["launches"],
    ]


def test_the_last_column_says_what_fits(shown):
    table = Table(
        [["cause", "ms"], ["kernels", "1.0"]], rest=[lambda _: "mostly", lambda room: f"{'n' * 60}"[:room]]
    )

    assert shown([table], 60)[1] == "  kernels  1.0   " + "n" * 43
    assert Screen([table]).splitlines()[1] == "  kernels  1.0   " + "n" * 60


def test_figures_go_on_below_the_first(shown):
    line = "step time   " + "   ".join(f"measured {number} ms" for number in range(100, 106))

    assert shown([Figures(line)], 80) == [
        "  step time   measured 100 ms   measured 101 ms   measured 102 ms",
        "              measured 103 ms   measured 104 ms   measured 105 ms",
    ]


def test_a_terminal_of_ascii_gets_no_other_character(coloured, monkeypatch):
    monkeypatch.setattr(Terminal, "encoding", "ascii")

    assert coloured([Table([["name", "x"], ["n" * 90, "1.0"]])], 60)[1] == "  " + "n" * 53 + "  1.0"
    assert coloured([Headline("amp: 2.0 -> 1.0 ms per step")], 60) == ["amp: 2.0 -> 1.0 ms per step"]


def test_an_answer_is_one_line_and_breaks_at_its_bracket_where_a_terminal_is_narrow(coloured, shown):
    answer = Headline(
        f"amp: 16.6 -> 8.8 ms per step, 1.89x (90 % interval {'1.5 to 2.6x' * 2}); replay error"
    )

    assert Screen([answer]) == answer
    (line,) = coloured([answer], 120)
    assert line == answer.replace("->", "\N{RIGHTWARDS ARROW}").replace("1.89x", "\x1b[32m1.89x\x1b[0m")
    assert shown([answer], 60) == [
        "amp: 16.6 \N{RIGHTWARDS ARROW} 8.8 ms per step, 1.89x",
        "  (90 % interval 1.5 to 2.6x1.5 to 2.6x); replay error",
    ]


def test_a_table_may_have_no_rows(shown):
    assert shown([Table([["name", "before"]], spare=[1])], 60) == ["  name  before"]


def test_what_is_piped_is_whole():
    assert len(Screen([Table([["name", "x"], ["n" * 90, "1.0"]])]).splitlines()[1]) == 97


def test_changes_and_speedups_have_a_colour_and_other_figures_none(coloured):
    rows = [
        ["step", "error", "speedup", "change"],
        ["a", "+1.0 %", "1.20x", "-3.2"],
        ["b", "-1.0 %", "0.80x", "+3.2"],
    ]
    _, better, worse = coloured([Table(rows)], 80)

    assert better == "  a     +1.0 %  \x1b[32m  1.20x\x1b[0m  \x1b[32m  -3.2\x1b[0m"
    assert worse == "  b     -1.0 %  \x1b[31m  0.80x\x1b[0m  \x1b[31m  +3.2\x1b[0m"
    same = coloured([Table([rows[0], ["c", "0.0 %", "1.00x", "0.0"]])], 80)[1]
    assert "\x1b" not in same


def test_what_is_no_part_of_the_step_is_not_judged(coloured):
    rows = [["part", "change"], ["a", "+1.0"], ["meanwhile", ""], ["  idle", "+1.0"]]
    lines = coloured([Table(rows, judged=2)], 80)

    assert ["\x1b[31m" in line for line in lines] == [False, True, False, False]


def test_answers_have_a_colour(coloured):
    answers = Facts([("replay", "yes: good"), ("layer", "no: none"), ("type", "partly: some")], answers=True)
    lines = coloured([answers], 80)

    assert [CODE.findall(line)[:1] for line in lines] == [["\x1b[32m"], ["\x1b[31m"], []]


HOSTILE = "[bold red]gemm[/] :smile: \x1b[31mred\x1b]0;title\x07 [/nothing]"


@pytest.mark.parametrize(
    "block",
    [
        Table([[HOSTILE, HOSTILE], [HOSTILE, HOSTILE]], words=[HOSTILE]),
        Table([["a", "b"], ["c", "d"]], rest=[lambda _: HOSTILE] * 2),
        Facts([(HOSTILE, HOSTILE)]),
        Facts([("", HOSTILE)], answers=True),
        Words(HOSTILE),
        Figures(HOSTILE),
        Title(HOSTILE),
        Headline(HOSTILE),
        HOSTILE,
        *notes([HOSTILE])[2:],
    ],
)
def test_a_name_is_no_markup_and_steers_no_terminal(coloured, block):
    text = "\n".join(coloured([block], 300))

    assert "[bold red]gemm[/] :smile: ?[31mred?]0;title? [/nothing]" in text
    assert not re.search(r"\x1b(?!\[[0-9;]*m)|\x1b\[31m|\x07", text)


def test_reports_judge_the_step_and_not_what_runs_meanwhile_or_differs_from_a_prediction(screens, coloured):
    def judged(screen):
        return [line for line in coloured(screen, 96) if re.search(r"\x1b\[3[12]m *[-+]", line)]

    beside = coloured(screens["whatif -v"], 96)
    start = next(at for at, line in enumerate(beside) if "meanwhile" in line)
    assert judged(screens["whatif"])
    assert judged(screens["whatif -v"])
    beside = beside[start : beside.index("", start)]
    assert not any("\x1b[3" in line for line in beside)
    assert any(re.search(r"[-+]\d", line) for line in beside)
    assert not judged(screens["compare"])  # of a prediction and the replay
