"""On a busy machine steps that disagree are captured once more, and only once."""

from __future__ import annotations

from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_recording import record  # noqa: E402

from daydream.collect.live import busy_machine  # noqa: E402
from daydream.collect.live.busy_machine import BusyMachine  # noqa: E402
from daydream.collect.live.captured_steps import CapturedSteps  # noqa: E402

BUSY, AT_REST = 0.75, 0.05
WAITED = "the script waited for a CPU in 75% of the time"


def recorded(tmp_path, monkeypatch, taken, apart, *, alone=True, iterations=16):
    """Record steps; so many are said to be apart in one capture and in the next. Return what was said."""
    monkeypatch.setattr(BusyMachine, "share", lambda _: taken)
    shares = {}

    def share(captured):
        first, _, _ = captured.ranges[0][0]
        shares[first] = shares.get(first, apart[min(len(shares), len(apart) - 1)])
        return shares[first]

    monkeypatch.setattr(CapturedSteps, "apart", property(share))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []

    def loop():
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    busy = BusyMachine(said.append, lambda: alone)
    trace = record(loop, tmp_path, iterations=iterations, busy=busy)
    return trace, said


def steps(trace):
    return [step["name"] for step in trace.metadata["steps"]]


def of_busy(trace):
    return [note for note in trace.metadata["notes"] if "machine was busy" in note]


def test_steps_that_disagree_are_captured_again(tmp_path, monkeypatch):
    trace, said = recorded(tmp_path, monkeypatch, BUSY, [0.5, 0.0])

    assert said == [
        f"the machine is busy: {WAITED}, and recorded steps will vary with that",
        "the captured steps disagree on this busy machine; capturing once more",
    ]
    assert len(steps(trace)) == 4
    assert steps(trace)[0] > "step 6"
    [note] = of_busy(trace)
    assert f"{WAITED}. The captured steps disagreed;" in note


def test_only_once_and_the_better_ones_are_kept(tmp_path, monkeypatch):
    trace, said = recorded(tmp_path, monkeypatch, BUSY, [0.5, 0.75])

    assert len(said) == 2
    assert steps(trace)[0] == "step 3"


@pytest.mark.parametrize(
    ("taken", "apart", "alone", "said"),
    [(BUSY, 0.25, True, 1), (BUSY, 0.5, False, 1), (AT_REST, 0.5, True, 0)],
)
def test_not_where_it_would_not_help(taken, apart, alone, said, tmp_path, monkeypatch):
    trace, told = recorded(tmp_path, monkeypatch, taken, [apart], alone=alone)

    assert len(told) == said
    assert steps(trace)[0] == "step 3"
    assert len(of_busy(trace)) == said


def test_a_script_that_ends_meanwhile_keeps_the_first(tmp_path, monkeypatch):
    trace, _ = recorded(tmp_path, monkeypatch, BUSY, [0.5, 0.0], iterations=9)

    assert steps(trace) == ["step 3", "step 4", "step 5", "step 6"]


def test_how_long_it_waited_counts_from_the_last_look_not_too_near(monkeypatch):
    looks = iter([(0, 0), (500_000_000, 100_000_000), (700_000_000, 200_000_000)])
    monkeypatch.setattr(busy_machine, "delay_ns", lambda _: now[1])
    monkeypatch.setattr(busy_machine.time, "perf_counter_ns", lambda: now[0])
    busy = BusyMachine()
    assert busy.share() == 0
    for now in looks:  # noqa: B007 - what is read
        busy.look()

    assert busy.share() == 200 / 700
    monkeypatch.setattr(busy_machine, "delay_ns", lambda _: open("/nowhere"))  # noqa: SIM115
    busy.look()
    assert busy.share() == 200 / 700


def test_steps_apart_are_those_far_from_the_usual_one():
    def of(*times):
        ends = list(accumulate((0, *times)))
        ranges = [(f"step {number}", 0, end) for number, end in enumerate(ends)]
        return CapturedSteps(None, (ranges, "markers"), {"step 9"}).apart

    assert of(100, 100, 119, 81) == 0.0
    assert of(100, 100, 121, 50) == 0.5
    assert of() == 0.0
