"""A range of steps is answered as if only these had been recorded, and little more of a file is read."""

import numpy as np
import pytest
from graph.small_traces import note, op, trace
from machine.programs import PROGRAMS

import daydream
from daydream.errors import TraceError
from daydream.trace import trace_file
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.step_range import StepRange, is_range
from daydream.trace.trace import Trace

STEPS = 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace of twelve steps, with memory that was recorded."""
    path = tmp_path_factory.mktemp("recorded") / "trace.json"
    PROGRAMS["multi_stream"]().run(steps=16).write(path, 3, 2 + STEPS)
    trace = daydream.load(path)
    assert len(trace.metadata["steps"]) == STEPS
    times = np.arange(5) * 1000
    trace.memory = MemoryEvents({"time_ns": times, "bytes": np.full(5, 512)})
    trace.metadata["held_before"] = {"0": {"allocated_bytes": 1, "reserved_bytes": 2}}
    return trace


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Write a trace in small row groups."""
    monkeypatch.setattr(trace_file, "ROW_GROUP", 64)

    def write(trace):
        trace.save(tmp_path / "trace.parquet")
        return tmp_path / "trace.parquet"

    return write


def values(trace):
    """Return what stands in each column."""
    return {name: trace.values(name) for name in trace.columns}


@pytest.mark.parametrize(
    ("text", "meant"),
    [("2:5", (2, 5)), ("2:", (2, None)), (":5", (0, 5)), (":", (0, None)), ("07:8", (7, 8))],
)
def test_a_range_is_written_as_in_python(text, meant):
    assert is_range(text)
    assert StepRange.parse(text) == meant


@pytest.mark.parametrize(
    "text", ["", "5", "auto", "-1:3", "1:2:3", "a:b", "1 :2", "\N{SUPERSCRIPT TWO}:3", "9" * 10 + ":"]
)
def test_other_texts_are_no_ranges(text):
    assert not is_range(text)
    with pytest.raises(TraceError, match="no range of steps"):
        StepRange.parse(text)


@pytest.mark.parametrize("steps", ["0:4", "1:2", "5:9", "8:", f"{STEPS - 1}:", "3:100"])
def test_a_file_holds_of_a_range_what_the_trace_does(recorded, save, steps):
    path = save(recorded)
    found, whole = daydream.load(path, steps=steps), recorded.of_steps(steps)

    assert values(found) == values(whole)
    assert found.metadata == whole.metadata
    assert 0 < len(found) < len(recorded)
    assert found.memory is None
    assert "held_before" not in found.metadata


def test_steps_of_a_range_replay_as_they_do_in_the_whole(recorded):
    whole = {step.name: step for step in daydream.replay(recorded).steps}
    found = daydream.replay(recorded.of_steps("5:9"))

    assert len(found.steps) == 4
    for step in found.steps:
        assert step.measured_ns == whole[step.name].measured_ns
        assert abs(step.error) <= 0.001


def test_each_rank_counts_its_own_steps(tmp_path):
    for rank in range(2):
        PROGRAMS["multi_stream"]().run(steps=8).write(tmp_path / f"rank{rank}.json", 2, 6)
    found = daydream.load(tmp_path, steps="2:4")

    steps = found.metadata["steps"]
    assert [step["rank"] for step in steps].count(0) == [step["rank"] for step in steps].count(1) == 3
    assert set(np.unique(found["rank"]).tolist()) == {0, 1}
    assert len(daydream.replay(found).steps) == 4


def test_steps_that_no_trace_can_have_are_refused(recorded, save):
    broken = Trace(recorded.columns, recorded.texts, {**recorded.metadata, "steps": [{"name": "a"}] * 3})
    with pytest.raises(TraceError, match="its metadata has an unusable value"):
        daydream.load(save(broken), steps="1:2")
    none = Trace(recorded.columns, recorded.texts, {**recorded.metadata, "steps": []})
    with pytest.raises(TraceError, match="no steps at all"):
        none.of_steps("1:2")


def test_a_range_around_all_steps_ends_with_the_last_that_is_kept():
    """`fit` lasts from 0 to 500 us, of which the steps 1 and 2 are 100 to 300, with that before them."""
    work = [op("work", 100 * n, 100 * n + 100) for n in range(5)]
    recorded = trace([note("fit", 0, 500), work], steps=(0, 100, 200, 300, 400, 500))
    recorded["step"][0] = -1
    found = recorded.of_steps("1:3")

    assert found.values("name") == ["fit", "work", "work", "work"]
    assert found.values("duration_ns") == [300_000, 100_000, 100_000, 100_000]
    assert set(daydream.replay(found).settled.times.values()) == {100_000}
