"""`daydream explain` as typed: the text, the JSON object, a change explained, errors in one line."""


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
