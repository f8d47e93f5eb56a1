"""`daydream explain` as typed: the text, the JSON object, a change explained, errors in one line."""

import json


def test_a_saving_is_what_the_named_what_if_predicts(ask):
    found = json.loads(ask("explain --trace step.parquet --json").out)
    answers = [cost["whatifs"][0] for cost in found["avoidable"] if cost["saving_ns"] is not None]
    best = answers[0]
    asked = json.loads(ask(*best["command"][1:], "--trace", "step.parquet", "--json").out)

    assert found["basis"] == asked["basis"] == "estimated"
    assert asked["predicted_ns"] == best["predicted_ns"]
    assert asked["replayed_ns"] - asked["predicted_ns"] == best["saving_ns"]


def test_a_change_can_be_explained(ask):
    done = ask("explain --whatif amp --trace step.parquet")

    assert done.code == 0
    assert "after amp (replay error " in " ".join(done.out.split())


def test_errors_take_a_line(ask):
    missing = ask("explain --trace nothing.parquet")
    unknown = ask("explain --whatif apm --trace step.parquet")

    assert (missing.code, missing.out) == (1, "")
    assert (unknown.code, unknown.out) == (1, "")
    assert "Did you mean 'amp'?" in unknown.err
    assert "Traceback" not in missing.err + unknown.err
