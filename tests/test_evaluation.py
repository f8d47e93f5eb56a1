"""What validation promises: figures, changed answers, laws, what may be found wrong."""

import sys

import answers
import evaluate
import falsify
import page
import pytest
import ranges
import sanity
from answer_truths import Truth
from answers import compare, report
from click.testing import CliRunner
from machine.programs import PROGRAMS
from shared import EXAMPLES, ROOT

import daydream
from daydream import cli
from daydream.cli import confirm
from daydream.predict.graph_diff import MODEL_ERROR
from daydream.transforms.registry import names

# The evaluation page: rows as CSV, and tables that are computed from them


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


# How `validation/answers.py` compares answers: what differs, who owns it, what is nearer to the truth


QUESTION = "whatif scale --on gpu --factor 0.5"
TRUTHS = {"t": [Truth("scale", {"on": "gpu", "factor": 0.5}, ratio=0.8)]}


def answer(predicted, replayed=1000, half=50, **more):
    low, high = predicted - half, predicted + half
    return {
        "/predicted_ns": predicted,
        "/replayed_ns": replayed,
        "/predicted_low_ns": low,
        "/predicted_high_ns": high,
        **more,
    }


def differences(old, new, truths=None):
    found = compare({"t": {QUESTION: old}}, {"t": {QUESTION: new}}, truths or {})
    return found, {row.key: row.owner for row in found.rows}


def test_a_difference_that_nobody_owns_is_printed(capsys):
    found, rows = differences(answer(500), answer(600))
    assert rows == {"/predicted_ns": "", "/predicted_low_ns": "", "/predicted_high_ns": ""}
    assert report("x", found) == 1
    assert f"t | {QUESTION} | predicted_ns: 500 -> 600, and 2 more" in capsys.readouterr().out


def of_the_gpu(row):
    """An answer about the GPU."""
    return "--on gpu" in row.question and row.key == "/predicted_ns"


def test_a_predicate_owns_what_it_is_true_of(monkeypatch, capsys):
    monkeypatch.setattr(answers, "OWNERS", (of_the_gpu,))
    found, rows = differences(answer(500), answer(600))
    assert rows == {"/predicted_ns": "of_the_gpu", "/predicted_low_ns": "", "/predicted_high_ns": ""}
    assert report("x", found) == 1
    assert "1 An answer about the GPU." in capsys.readouterr().out


def test_no_predicate_owns_what_moved_away_from_the_truth_by_more_than_its_interval(monkeypatch):
    monkeypatch.setattr(answers, "OWNERS", (lambda row: True,))
    found, rows = differences(answer(810), answer(1200), TRUTHS)
    assert all(owner.startswith("FARTHER from the truth") for owner in rows.values())
    assert report("x", found) == 1
    nearer, rows = differences(answer(900), answer(810), TRUTHS)
    assert set(rows.values()) == {"<lambda>"}
    assert nearer.holds == [(False, True)]  # 800 is measured: 850 to 950, then 760 to 860
    assert nearer.off[0][0] > nearer.off[0][1]


# Mutations of recordings are reproducible, and an answer that a law or the machine refutes is found


BUSY = ("gpu_bound", None)  # one thread, which waits for the loss at the end of each step


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(falsify.recorded(BUSY)[0]).recording


def judged(replay, truths):
    found = falsify.Judged(0, "gpu_bound", ["nothing"], answers=4)
    falsify.hold(found, replay, truths, frozenset(falsify.QUESTIONS))
    return found


@pytest.mark.parametrize(("true", "wrong"), [(0.9, 1), (0.52, 0)])
def test_a_confident_wrong_answer_is_found(replay, true, wrong):
    assert len(judged(replay, {("gpu", 0.5): true}).wrong) == wrong


# Every optimization on a trace, held against laws: on a machine model's trace and a shipped one


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "tiny_machine.json.gz"
    PROGRAMS["multi_stream"]().run(steps=6).write(path, 2, 4)
    shipped = EXAMPLES / "mlp_cpu.json.gz"
    return [sanity.judge(f"kineto/{each.stem}", each, names()) for each in (path, shipped)]


def test_every_optimization_predicts_or_says_why_not_and_no_law_is_broken(answered):
    assert [each.findings for each in answered] == [[], []]
    (_, laws), (_, rows) = sanity.tables(answered)
    assert [row["laws broken"] for row in laws] == ["0", "0"]
    assert sorted({row["optimization"].split()[0] for row in rows}) == sorted(names())
    assert [row for row in rows if bool(row["speedup, bound by"]) == bool(row["why not"])] == []


def test_the_page_lists_every_optimization():
    shown = page.OPTIMIZATIONS.read_text(encoding="utf-8").partition("<!-- end")[0]
    assert shown.partition("-->")[2].strip() == "\n".join(page.listed()).strip()
