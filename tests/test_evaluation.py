"""The evaluation page: rows as CSV, and tables that are computed from them."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "validation"))

import evaluate  # noqa: E402
import page  # noqa: E402
import ranges  # noqa: E402

from daydream import cli  # noqa: E402
from daydream.cli import confirm  # noqa: E402
from daydream.predict.graph_diff import MODEL_ERROR  # noqa: E402


def row(change, measured, predicted, *, recording="a"):
    inside = "yes" if predicted * 0.9 <= measured <= predicted * 1.1 else "no"
    error = f"{predicted / measured - 1:+.2%}"
    cells = (
        "cpu",
        "development",
        "GPT",
        change,
        recording,
        "step",
        "1",
        measured,
        predicted,
        "",
        "",
        error,
        inside,
    )
    return dict(zip(evaluate.COLUMNS, [*map(str, cells), "", ""], strict=True))


def test_a_change_is_the_median_of_its_recordings():
    rows = [
        row("half", 0.50, 0.50),
        row("half", 0.52, 0.50, recording="b"),
        row("half", 0.60, 0.50, recording="c"),
    ]
    (found,) = page.recorded(rows)

    assert (found.measured, found.predicted) == ("0.520", "0.500")
    assert found.error == pytest.approx(0.50 / 0.52 - 1, abs=5e-5)
    assert found.inside == (True, True, False)  # 0.45 to 0.55


def test_pairs_are_ranked_within_a_recording_where_the_measurement_can_tell():
    # half-less, half-more and half-as much right, less-more and less-as much wrong; 1.2 and 1.21 are too
    # near to count, and what is measured in another recording is compared with nothing here.
    rows = [
        row("half", 0.5, 0.5), row("less", 0.8, 1.0), row("more", 1.2, 0.9), row("as much", 1.21, 0.7),
        row("elsewhere", 0.1, 9.0, recording="b"),
    ]  # fmt: skip
    assert page.ranked(rows) == (3, 5)


def test_the_page_shows_what_the_rows_give():
    text = page.PAGE.read_text(encoding="utf-8")
    for name, lines in page.tables(page.ROWS):
        shown = text.partition(f"<!-- begin: {name} -->")[2].partition(f"<!-- end: {name} -->")[0]
        assert shown.strip().splitlines() == lines, name


def test_figures_of_the_readme_are_those_of_the_rows():
    shown = [line for _, lines in page.tables(page.ROWS) for line in lines]
    text = " ".join(page.README.read_text(encoding="utf-8").split())
    for name, sentence in page.of_readme(shown, page.ROWS):
        assert sentence in text, name


# -- what was measured ----------------------------------------------------------------------------------


def test_peaks_of_memory_are_predicted_from_the_trace_of_the_unchanged_step():
    found = [evaluate.answer(case) for case in evaluate.of_memory() if case.model == "CNN"]
    assert len(found) == 14
    assert not [one.refused for one in found if one.refused]
    assert all(abs(one.error) < 0.06 for one in found)


# -- ranges: fitted on some models, judged on another -------------------------------------------------


def pair(model, *, error, other=0.0, **affected):
    return ranges.Pair("cpu", model, error, {**dict.fromkeys(MODEL_ERROR, 0.0), **affected}, other)


def test_an_error_is_what_the_range_needs_to_hold_nine_pairs_of_ten():
    # Errors of 1 % to 11 % where half of the step is affected: the tenth of eleven needs 20 % of that half.
    errors = ranges.fit([pair("a", error=n / 100, kernels=0.5) for n in range(1, 12)])
    assert errors["kernels"] == pytest.approx(0.2)
    assert errors["moved"] == pytest.approx(0.2)  # no pair shows it: the largest of the others


def test_no_pair_is_judged_by_an_error_that_it_helped_to_fit():
    pairs = [pair("a", error=0.1, kernels=0.5), pair("b", error=0.2, kernels=0.5)]
    (a, of_a, mine), (b, of_b, others) = ranges.held_out(pairs)
    assert (a, of_a["kernels"], mine) == ("a", pytest.approx(0.4), pairs[:1])
    assert (b, of_b["kernels"], others) == ("b", pytest.approx(0.2), pairs[1:])


# -- the command ----------------------------------------------------------------------------------------


def test_judge_needs_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(confirm, "__file__", str(tmp_path / "daydream" / "cli" / "confirm.py"))
    done = CliRunner().invoke(cli.daydream, ["judge"])
    assert "this needs a checkout" in str(done.exception)


def test_judge_ends_as_the_evaluation_ends(monkeypatch):
    asked = []
    monkeypatch.setattr("subprocess.call", lambda words: asked.append(words) or 1)
    assert CliRunner().invoke(cli.daydream, ["judge", "--public", "here"]).exit_code == 1
    assert asked == [[sys.executable, ROOT / "validation" / "evaluate.py", "judge", "--traces", "here"]]
