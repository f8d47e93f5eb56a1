"""One view with every kind of block, as each renderer shows it; what narrow terminals leave out."""

from __future__ import annotations

from html_document import Document

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
)
from daydream.report.html.page import MOST_AT_ONCE, notebook_html, render
from daydream.report.markdown import markdown
from daydream.report.text import ASIDE, BETTER, TITLE, WORSE, lines, text_of

MS = 1_000_000
COLUMNS = (
    Column("part"), Column("before", Kind.TIME), Column("after", Kind.TIME), Column("change", Kind.CHANGE),
    Column("interval", Kind.INTERVAL, spare=2), Column("held", Kind.BYTES, spare=1),
    Column("times", Kind.RATIO),
    Column("share", Kind.PERCENT), Column("error", Kind.ERROR), Column("calls", Kind.COUNT), Column("unused"),
)  # fmt: skip
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
TEXT = """\
amp: 12.00 -> 6.00 ms per step, 2.00x (90% interval 1.71 to 2.40x)
  step time   measured 12.1 ms (mean of 3)   predicted 6.0 ms
  note: gemm is fast.
  in code: torch.autocast()

  part    before, ms  after  change  interval, ms  held, MiB  times  share   error  calls
  kernels
    gemm       12.00   6.00   -6.00  5.00 to 7.00        3.0  2.00x  50.0%  +1.00%  1,234
      a < b
    copy        3.00   4.00   +1.00                  unknown  0.75x  7.00%  -2.00%    2.5
  idle          2.00   3.00   +1.00
  and 2 more

recorded
  replay   yes: it fits
  layers   no: none

  a
  left

  b
  right

notes
  - one
  - two"""


def test_a_view_as_text():
    assert text_of(SAMPLE) == TEXT


def styles(blocks, room=120):
    return {piece.text.strip(): piece.style for line in lines(blocks, room) for piece in line if piece.style}


def test_on_a_terminal_less_time_is_green_more_is_red_and_what_is_neutral_or_faded_is_neither():
    found = styles(SAMPLE)
    assert (found["-6.00"], found["2.00x"], found["yes"], found["no"]) == (BETTER, BETTER, BETTER, WORSE)
    assert (found["+1.00"], found["0.75x"], found["copy"]) == (ASIDE, ASIDE, ASIDE)
    assert (found["kernels"], found["notes"], found["part"]) == (TITLE, TITLE, TITLE)
    slower = Table([Column("a"), Column("change", Kind.CHANGE)], [Row(("b", MS)), Row(("c", 0))])
    assert styles([slower]) == {"a": TITLE, "change, ms": TITLE, "+1.000": WORSE}


def test_where_there_is_no_room_columns_go_by_their_number_and_then_names_are_cut():
    def head(room):
        first, *others = ["".join(piece.text for piece in line) for line in lines([SAMPLE[4]], room)]
        assert room < 40 or max(map(len, [first, *others])) <= room
        return first.split()

    full = len(TEXT.splitlines()[5])
    held = len("  held, MiB")
    heads = [head(full - less) for less in (0, 1, held, held + 1)]
    assert ["held," in each for each in heads] == [True, False, False, False]
    assert ["interval," in each for each in heads] == [True, True, True, False]
    wide = Table([Column("name"), Column("time", Kind.TIME)], [Row(("k" * 40, MS))])
    _, row = ("".join(piece.text for piece in line) for line in lines([wide], 40))
    assert row == f"  {'k' * 25}...     1.000"
    assert len(row) == 40
    figures = Table([Kind.COUNT("workers"), Column("fits", spare=1)], [Row((64, "k" * 40))])
    assert ["".join(piece.text for piece in line) for line in lines([figures], 30)] == [
        "  workers",
        "       64",
    ]


def test_what_is_kept_of_a_long_name():
    name = "abcdefghijklmnopqrstuvwxyz"
    assert Column("", width=10).cut(name) == "abcdefg..."
    assert Column("", width=10, keep="end").cut(name) == "...tuvwxyz"
    assert Column("", width=10, keep="both").cut(name) == "abcd...xyz"


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


def test_a_view_in_a_notebook_has_sides_and_nothing_else():
    page = Document(notebook_html(SAMPLE[:8]))
    assert {name for _, name, _ in page.attributes} == {"style", "colspan"}
    assert {value for _, name, value in page.attributes if name == "style"} == {
        "text-align:left", "text-align:right", "opacity:0.5",
    }  # fmt: skip
    assert page.tables[0][2][1] == "12.00"


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
        Headline(nasty), Text(nasty, nasty), Code(nasty), Title(nasty, "id", nasty), Facts([(nasty, nasty)]),
        Figures([(nasty, nasty, nasty)], nasty), Notes([nasty]),
        Table(
            [Column(nasty), Column(nasty, Kind.TIME)],
            [Row((nasty, nasty), nasty), Row((nasty,), style=HEADING)],
        ),
    ]  # fmt: skip
    for text in (render("blocks.jinja", blocks), notebook_html(blocks)):
        assert "<b>" not in text
        assert "<script" not in text
        assert "\x1b" not in text
    assert "\x1b" not in text_of(blocks)
    assert "<b>" not in "".join(part for at, part in enumerate(markdown(blocks).split("`")) if at % 2 == 0)
