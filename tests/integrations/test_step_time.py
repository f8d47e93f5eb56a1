"""The fixture `assert_step_time`, in a pytest of its own, and what it holds a step to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_project import PROJECT

import daydream
from daydream.integrations.step_time import StepTime

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GPU = EXAMPLES / "synthetic_gpt_gpu.json.gz"  # 16.57 ms a step; with amp 10.22, 8.47 to 11.96
SUITE = """
import pytest

def test_measured(assert_step_time):
    assert_step_time(GPU).below(17).not_slower_than(GPU)

def test_predicted(assert_step_time):
    assert_step_time(GPU, whatif="amp").below(11)

def test_too_long(assert_step_time):
    assert_step_time(GPU, whatif="amp", math_speedup=1.5).below(11)
"""


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(GPU)


def test_a_pytest_elsewhere_finds_the_fixture(tmp_path):
    (tmp_path / "test_steps.py").write_text(SUITE.replace("GPU", repr(str(GPU))))
    plugin = PROJECT["entry-points"]["pytest11"]["daydream"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:daydream", "-p", plugin, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "AssertionError: amp on " in done.stdout
    assert "at most 11 ms are allowed" in done.stdout
    assert "step_time.py" not in done.stdout  # the failure is shown where the test is


def test_the_plugin_loads_nothing_until_it_is_used():
    code = """
import sys
import daydream.integrations.pytest_plugin
print(*[name for name in ("numpy", "pyarrow", "click", "daydream.predict") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_limit_is_held_to_the_nanosecond(replay):
    step_ns = replay.basis_ns  # what a prediction is compared with
    StepTime(GPU).below(step_ns / 1e6)
    with pytest.raises(AssertionError, match=r"a step takes 16\.57 ms, at most 16\.573 ms are allowed"):
        StepTime(GPU).below((step_ns - 1) / 1e6)
    with pytest.raises(AssertionError):
        StepTime(GPU).below(float("nan"))


def test_a_prediction_says_its_range():
    with pytest.raises(
        AssertionError, match=r"10\.22 ms \(90% interval 8\.47 ms to 11\.96 ms\), at most 8 ms"
    ):
        StepTime(GPU, whatif="amp").below(8)


def test_percents_are_of_the_baseline():
    slower = StepTime(GPU, whatif="scale", factor=2.0, on="gpu")
    share = slower.step_ns / StepTime(GPU).step_ns - 1
    assert share > 0.5
    slower.not_slower_than(GPU, percent=100 * share + 0.001)
    with pytest.raises(AssertionError, match="longer than 16"):
        slower.not_slower_than(GPU, percent=100 * share - 0.001)


def test_a_trace_that_does_not_replay_is_to_be_recorded_again(monkeypatch):
    step = StepTime(GPU)
    monkeypatch.setattr(type(step._replay), "error", 0.05)
    with pytest.raises(AssertionError, match=r"the replay is \+5\.0% off.*record again"):
        step.below(100)


def test_a_step_that_cannot_be_predicted_passes_no_gate(monkeypatch):
    step = StepTime(GPU, whatif="amp")
    step.step_ns, step._why = None, "no kernel is known"
    with pytest.raises(AssertionError, match="cannot be predicted, because no kernel is known"):
        step.below(100)


def test_what_is_no_trace_is_an_error_of_its_own():
    with pytest.raises(daydream.TraceError):
        StepTime("no/such/file.parquet").below(1)
