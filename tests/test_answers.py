"""How `validation/answers.py` compares answers: what differs, who owns it, what is nearer to the truth."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "validation"))
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


RECORDED = {"/recorded/measured_ns": 900}  # what is said where another step is answered about


def differences(old, new, kept=None, truths=None, question=QUESTION):
    found = compare({"t": {question: old}}, {"t": {question: new}}, {"t": kept or {}}, truths or {})
    return found, {row.key: row.owner for row in found.rows}


def test_a_difference_that_nobody_owns_is_printed(capsys):
    found, rows = differences(answer(500), answer(600))
    assert rows == {"/predicted_ns": "", "/predicted_low_ns": "", "/predicted_high_ns": ""}
    assert report("x", found) == 1
    assert f"t | {QUESTION} | predicted_ns: 500 -> 600, and 2 more" in capsys.readouterr().out


def test_another_step_is_owned_where_all_answers_are_about_it():
    world = {f"unprofiled: {QUESTION}": answer(600, 1200)}
    assert set(differences(answer(500), answer(600, 1200, **RECORDED), world)[1].values()) == {"of_one_basis"}
    assert set(differences(answer(500), answer(600, 1200), world)[1].values()) == {""}
    assert set(differences(answer(500), answer(650, 1200, **RECORDED), world)[1].values()) == {
        "",
        "of_one_basis",
    }


def test_no_predicate_owns_what_moved_away_from_the_truth_by_more_than_its_interval():
    world = {f"unprofiled: {QUESTION}": answer(1200)}
    found, rows = differences(answer(810), answer(1200, **RECORDED), world, TRUTHS)
    assert all(owner.startswith("FARTHER from the truth") for owner in rows.values())
    assert report("x", found) == 1
    nearer, rows = differences(
        answer(900), answer(810, **RECORDED), {f"unprofiled: {QUESTION}": answer(810)}, TRUTHS
    )
    assert set(rows.values()) == {"of_one_basis"}
    assert nearer.holds == [(False, True)]
    assert nearer.off[0][0] > nearer.off[0][1]
