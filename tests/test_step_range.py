"""A range of steps is answered as if only these had been recorded, and little more of a file is read."""

import numpy as np
import pytest
from graph.small_traces import note, op, trace
from machine.programs import PROGRAMS

import daydream
from daydream import Trace
from daydream.errors import TraceError
from daydream.trace import recorded_steps as module
from daydream.trace import trace_file
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.recorded_steps import LongRow, StepRange, TypicalRun, is_range, recorded_time, typical_run

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


# Of a long recording some steps stand for all: a run whose mean step is that of all, and answers say so.


ROWS = 500_000  # a run of 200,000 of them is enough: two steps of five


def recording(*ranks, without=()):
    """Return the metadata of steps that took so many ns, by rank; those at some places are not covered."""
    return {
        "steps": [
            {"rank": rank, "covered": place not in without, "measured_ns": ns}
            for rank, times in enumerate(ranks)
            for place, ns in enumerate(times)
        ]
    }


def test_of_equal_steps_the_last_are_taken():
    assert typical_run(recording([10] * 100), ROWS) == TypicalRun(60, 100, 100, 0.0)


def test_what_comes_now_and_then_is_in_the_run_as_often_as_in_the_recording():
    """Every tenth step takes 50: the mean is 14, and any 40 steps hold four of them."""
    run = typical_run(recording([50 if place % 10 == 9 else 10 for place in range(100)]), ROWS)

    assert run == TypicalRun(60, 100, 100, 0.0)


def test_where_no_run_is_like_all_steps_all_are_looked_at():
    """One step takes 1000, 99 take 10: with it every run is longer by more than 1 %, without it shorter."""
    assert typical_run(recording([10] * 50 + [1000] + [10] * 49), ROWS) is None


@pytest.mark.parametrize(
    "metadata", [{}, {"steps": []}, recording([0] * 100), recording([10] * 50, without=range(50))]
)
def test_without_judged_steps_nothing_is_left_out(metadata):
    assert typical_run(metadata, ROWS) is None


def covered(trace):
    return sum(bool(step["covered"]) for step in trace.metadata["steps"])


@pytest.mark.parametrize("name", ["amp", "cuda-graphs"])
def test_the_answer_is_that_of_all_steps(long, name):
    """The machine's steps are alike: some of them tell what all do, to the run's own 1 %."""
    some, all_ = (daydream.whatif(of, name) for of in (long, daydream.load(long)))

    assert some.replayed_ns == pytest.approx(all_.replayed_ns, rel=module.ALIKE)
    assert some.speedup == pytest.approx(all_.speedup, rel=module.ALIKE)


# How much of a recording its steps are, and what lies outside.


MS = 1_000_000


def of_ranges(rows, steps):
    """Return a trace of ranges (name, begin, end in ms) with steps (begin, end in ms, covered)."""
    names = [name for name, _, _ in rows]
    columns = {
        "kind": np.zeros(len(rows), np.int8), "name": np.arange(len(rows)),
        "start_ns": np.array([begin * MS for _, begin, _ in rows]),
        "duration_ns": np.array([(end - begin) * MS for _, begin, end in rows]),
    }  # fmt: skip
    listed = [
        {
            "name": f"step {number}", "rank": 0, "start_ns": begin * MS, "end_ns": end * MS,
            "completion_ns": end * MS, "measured_ns": (end - begin) * MS, "covered": covered,
        }
        for number, (begin, end, covered) in enumerate(steps)
    ]  # fmt: skip
    return Trace(columns, {"kind": ["annotation"], "name": names}, {"steps": listed})


BORDERS = [(400, 500, False), (500, 600, True), (600, 700, True)]


def test_what_lies_in_no_step_is_named():
    rows = [
        ("run", 0, 1000), ("load weights", 10, 300), ("read file", 20, 290), ("compile", 310, 390),
        ("step", 400, 700), ("evaluate", 710, 990),
    ]  # fmt: skip
    found = recorded_time(of_ranges(rows, BORDERS))
    assert found is not None
    assert (found.covered_share, found.outside_share) == (0.2, 0.7)
    assert [(each.where, each.duration_ns // MS) for each in found.outside] == [
        ("before", 400),
        ("behind", 300),
    ]
    assert [(row.name, row.duration_ns // MS) for row in found.outside[0].longest] == [
        ("load weights", 290),
        ("compile", 80),
    ]
    assert found.note() == (
        "The covered steps are 20% of the recording; in no step are 400 ms before them (load weights 290 "
        "ms, compile 80.0 ms) and 300 ms behind them (evaluate 280 ms). Predictions leave that time out."
    )
    assert found.to_json()["outside"][1]["longest"] == [{"name": "evaluate", "duration_ns": 280 * MS}]


def test_a_stall_between_steps_is_named():
    steps = [(0, 100, False), (100, 200, True), (400, 500, True)]
    found = recorded_time(of_ranges([("run", 0, 500), ("save", 210, 380)], steps))
    assert found is not None
    (stall,) = found.outside
    assert (stall.where, stall.longest) == ("between", (LongRow("save", 170 * MS),))


def test_without_rows_or_steps_nothing_is_told():
    assert recorded_time(of_ranges([("run", 0, 5)], [])) is None
    assert recorded_time(of_ranges([], BORDERS)) is None
