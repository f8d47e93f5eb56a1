"""`whatif --fail-above`: a gate for CI, which shows the answer and tells by its exit code."""

import json
from pathlib import Path
from types import SimpleNamespace

from command_line import daydream

from daydream.cli.whatif import above_gate

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "synthetic_gpt_gpu.json.gz"


def test_what_is_short_enough_passes_and_what_is_not_exits_with_3():
    asked = ("whatif", "amp", "--trace", EXAMPLE.name, "--fail-above")
    short, long = daydream(*asked, "11", folder=EXAMPLE.parent), daydream(*asked, "9", folder=EXAMPLE.parent)
    assert (short.code, long.code) == (0, 3)
    assert short.out == long.out  # the answer is there either way
    assert "gate failed" not in short.err
    assert "gate failed: 10.22 ms predicted, 9.00 ms allowed" in long.err
    assert json.loads(daydream(*asked, "8", "--json", folder=EXAMPLE.parent).out)["predicted_ns"] > 8e6


def test_a_limit_that_is_no_time_is_a_usage_error():
    for limit in ("soon", "-1", "nan"):
        done = daydream("whatif amp --trace", EXAMPLE.name, "--fail-above", limit, folder=EXAMPLE.parent)
        assert (done.code, done.out) == (2, "")
        assert "--fail-above" in done.err


def test_what_is_not_known_does_not_pass():
    assert "step is unknown" in above_gate(SimpleNamespace(predicted_ns=None), 9.5)
    assert above_gate(SimpleNamespace(predicted_ns=None), None) is None
