"""`whatif --fail-above`: a gate for CI, which shows the answer and tells by its exit code."""

import json
from pathlib import Path
from types import SimpleNamespace

from command_line import daydream
from machine.programs import PROGRAMS

from daydream import whatif
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


def test_the_gate_is_about_the_step_of_the_first_line(tmp_path):
    # It waits for the CPU, and torch.profiler recorded it: what recording typically costs is taken out.
    PROGRAMS["cpu_bound"]().run(steps=8).write(tmp_path / "step.json", 3, 6)
    answer = whatif(tmp_path / "step.json", "scale", on="cpu", factor=0.5)
    told_ms, recorded_ms = answer.predicted_ns / 1e6, answer.recorded.predicted_ns / 1e6

    assert told_ms < recorded_ms
    assert above_gate(answer, told_ms) is None
    assert f"{told_ms:.2f} ms predicted" in above_gate(answer, 0.99 * told_ms)
