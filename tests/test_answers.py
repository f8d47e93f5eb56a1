"""How `validation/answers.py` compares answers: what differs, who owns it, what is nearer to the truth."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "validation"))
import answers
from answer_truths import Truth
from answers import compare, report

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


def test_no_predicate_owns_what_moved_away_from_the_truth_by_more_than_its_interval(monkeypatch, capsys):
    monkeypatch.setattr(answers, "OWNERS", (lambda row: True,))
    found, rows = differences(answer(810), answer(1200), TRUTHS)
    assert all(owner.startswith("FARTHER from the truth") for owner in rows.values())
    assert report("x", found) == 1
    assert "predicted_ns: 810 -> 1,200" in capsys.readouterr().out
    nearer, rows = differences(answer(900), answer(810), TRUTHS)
    assert set(rows.values()) == {"<lambda>"}
    assert nearer.holds == [(False, True)]  # 800 is measured: 850 to 950, then 760 to 860
    assert nearer.off[0][0] > nearer.off[0][1]
