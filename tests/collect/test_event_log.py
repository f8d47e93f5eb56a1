"""EventLog: begin and end give the same trace as times logged afterwards, nested and on threads."""

import itertools
import threading
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daydream
from daydream.collect.live.recorder import Phase
from daydream.collect.live.timed_steps import WARM_UP, Alternating, UnprofiledSteps
from daydream.errors import HandleError, TraceError
from daydream.handles import DebugHandleMap, Handle
from daydream.predict.confirm import Blocks


def ticking():
    """Return a clock that is ten later each time it is looked at."""
    return itertools.count(1_000, 10).__next__


def logged(*events):
    """Return a log of (identifier, start, end), of a thread where one is named."""
    log = daydream.EventLog()
    for identifier, start, end, *thread in events:
        log.record(identifier, start, end, **({"thread": thread[0]} if thread else {}))
    return log


def same(one, other):
    columns = one.columns.keys() == other.columns.keys()
    rows = all(one.values(name) == other.values(name) for name in one.columns)
    return columns and rows and one.metadata == other.metadata and one.handles == other.handles


MAP = DebugHandleMap({
    "mlp": [Handle("aten::linear", layer="mlp.0", phase="forward"), Handle("aten::relu", layer="mlp.1")],
    "head": [Handle("aten::linear", layer="head", phase="backward")],
})  # fmt: skip


def test_an_event_is_logged_that_ends_with_an_error():
    log = daydream.EventLog(clock=ticking())
    with pytest.raises(ZeroDivisionError), log.event(0):
        raise ZeroDivisionError
    assert log.to_trace().values("duration_ns") == [10]


def test_threads_log_at_the_same_time():
    log, after = daydream.EventLog(), daydream.EventLog()
    together = threading.Barrier(4)

    def work():
        for piece in ("outer", "inner"):
            together.wait()
            with log.event(piece):
                together.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = log.to_trace()
    assert len(trace) == 8
    assert len(set(trace.values("tid"))) == 4
    for row in range(8):  # as a run time does that tells them all from one thread
        start = trace.values("start_ns")[row] + trace.metadata["origin_ns"]
        end = start + trace.values("duration_ns")[row]
        after.record(trace.values("name")[row], start, end, thread=trace.values("tid")[row])
    assert same(after.to_trace(), trace)


@settings(max_examples=50, deadline=None)
@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12), st.integers(1, 3))
def test_any_nesting_is_the_same_either_way(shape, threads):
    one, other = daydream.EventLog(clock=ticking()), daydream.EventLog()

    def run(log, inner, depth):
        with log.event(depth):
            for each in inner:
                run(log, each, depth + 1)

    for _ in range(threads):
        run(one, shape, 0)
    trace = one.to_trace()
    for event in reversed(one._events):
        other.record(event.identifier, event.start_ns, event.end_ns)
    assert same(other.to_trace(), trace)


def test_a_log_answers_what_a_recording_does():
    #  three steps of |mlp 40|10|head 30|, and 20 between them; half of head is 15 a step
    log = daydream.EventLog()
    for begin in (0, 100, 200):
        log.record_step(begin, begin + 80)
        log.record("mlp", begin, begin + 40)
        log.record("head", begin + 50, begin + 80)
    trace = log.to_trace(MAP)
    assert [step["measured_ns"] for step in trace.metadata["steps"]] == [None, 100, 100]
    assert trace.metadata["step_source"] == "steps of the event log"
    assert trace.values("layer") == [None, "mlp.0", "head"] * 3
    assert trace.values("phase")[1:3] == ["forward", "backward"]
    assert daydream.replay(trace).replayed_ns == 100
    answer = daydream.whatif(trace, "scale", layer="head", factor=0.5)
    assert answer.predicted_ns == 100 - 15


def test_a_log_is_saved_with_its_map(tmp_path):
    log = daydream.EventLog(clock=ticking())
    with log.event("mlp"):
        pass
    trace = log.to_trace(MAP)
    trace.save(tmp_path / "log.parquet")
    assert same(daydream.load(tmp_path / "log.parquet"), trace)


def test_what_the_map_does_not_have_is_said():
    log = logged(("mlp", 0, 10), ("copy", 10, 20))
    trace = log.to_trace(MAP)
    assert trace.values("layer") == ["mlp.0", None]
    assert trace.metadata["notes"][0].startswith("The map does not have 1 identifier of the log, as 'copy'")


def test_identifiers_are_of_one_kind():
    log = logged(("mlp", 0, 10))
    with pytest.raises(HandleError, match="the identifier 3 is of another kind than 'mlp'"):
        log.record(3, 10, 20)
    with pytest.raises(HandleError, match="3 is of another kind"), log.event(3):
        pass
    assert len(log) == 1


@pytest.mark.parametrize("identifier", [None, "", 1.5, True, -1, ("a",)])
def test_what_is_no_identifier_is_refused(identifier):
    with pytest.raises(HandleError):
        daydream.EventLog().record(identifier, 0, 10)


@pytest.mark.parametrize(
    "times", [(-1, 10), (0.5, 10), (0, float("nan")), (0, True), ("0", 10), (0, 2**62), (None, 10)]
)
def test_what_is_no_time_is_refused(times):
    with pytest.raises(
        HandleError, match=r"'mlp' was logged with .*; whole numbers of 0 or more were needed"
    ):
        daydream.EventLog().record("mlp", *times)


def test_events_that_overlap_on_one_thread_are_refused():
    log = logged(("a", 0, 10, 1), ("b", 5, 15, 1))
    said = "'a' from 0 to 10 ns and 'b' from 5 to 15 ns overlap on one thread, and neither lies in the other"
    with pytest.raises(TraceError, match=said):
        log.to_trace()


@pytest.mark.parametrize("thread", [2, 3])
def test_steps_that_overlap_are_refused(thread):
    log = logged(("a", 0, 20, 1))
    log.record_step(0, 10, thread=2)
    log.record_step(5, 20, thread=thread)
    with pytest.raises(TraceError, match="step from 0 to 10 ns and step from 5 to 20 ns overlap"):
        log.to_trace()


def test_a_map_of_another_program_is_refused():
    log = logged(("other", 0, 10))
    with pytest.raises(HandleError, match="the log begins with 'other', the map with 'mlp'"):
        log.to_trace(MAP)


def test_an_empty_log_is_refused():
    log = daydream.EventLog()
    log.record_step(0, 10)
    with pytest.raises(TraceError, match="nothing was logged"):
        log.to_trace()


# -- blocks of steps with and without a change -----------------------------------------------------------


class Script:
    """A script whose steps take 10 ns, 7 with the change; time stands still otherwise."""

    def __init__(self):
        self.now, self.changed = 0, False
        self.log = []

    @contextmanager
    def change(self):
        self.changed = True
        yield
        self.changed = False

    def step(self):
        self.log.append(self.changed)
        self.now += 7 if self.changed else 10

    def blocks(self, *, rounds, steps):
        return Alternating(self.change, rounds=rounds, steps=steps, clock=lambda: self.now)


def run(script, steps):
    """Let the script take steps until there are enough."""
    while not steps.enough:
        script.step()
        steps.end_step()


def test_blocks_take_turns_every_other_round_backwards():
    script = Script()
    blocks = script.blocks(rounds=2, steps=2)
    run(script, blocks)

    assert blocks.result() == {"base": [10, 10], "again": [10, 10], "changed": [7, 7]}
    assert not script.changed
    one = 1 + 2  # a block: a step that does not count, and two that do
    warm = 1 + WARM_UP
    expected = [True] * warm + [False] * 2 * one + [True] * 2 * one + [False] * 2 * one
    assert script.log == expected
    assert sum(a != b for a, b in pairwise(script.log)) == 3


class Behind:
    """A device 10 ns a step behind a script whose own steps take 4 ns."""

    def __init__(self):
        self.now = self.done = 0
        self.waits = 0

    def step(self):
        self.now += 4
        self.done = max(self.done, self.now) + 10

    def settle(self):
        self.waits += 1
        self.now = max(self.now, self.done)
        return True


def test_a_device_that_is_behind_is_waited_for_where_the_steps_that_count_begin_and_end():
    script = Behind()
    blocks = Alternating(nullcontext, rounds=1, steps=3, clock=lambda: script.now, settle=script.settle)
    run(script, blocks)

    # Three steps from one wait to the next: the first is launched after 4 ns, then the device works 30 ns.
    assert blocks.result() == {kind: [pytest.approx(34 / 3)] for kind in ("base", "again", "changed")}
    assert script.waits == 2 * 4  # blocks: the warm-up and three


def test_steps_without_a_profiler_share_what_the_device_took():
    script = Behind()
    steps = UnprofiledSteps(3, clock=lambda: script.now, settle=script.settle)
    run(script, steps)

    assert steps.durations_ns() == [11, 11, 11]  # 34 ns of three
    assert script.waits == 2


def test_a_step_that_is_left_out_is_made_up_for():
    script = Script()
    blocks = script.blocks(rounds=1, steps=1)
    for _ in range(1 + WARM_UP + 1):
        script.step()
        blocks.end_step()
    script.now += 1_000  # the script saves a checkpoint
    blocks.leave_out()
    for _ in range(1 + 1 + 1 + 1 + 2):
        assert not blocks.enough
        script.step()
        blocks.end_step()
    assert blocks.enough
    assert blocks.result()["base"] == [10]


def test_a_script_that_ends_early_leaves_its_whole_rounds_and_no_change():
    script = Script()
    blocks = script.blocks(rounds=5, steps=1)
    for _ in range(1 + WARM_UP + 3 * 2 + 1):
        script.step()
        blocks.end_step()
    assert (blocks.rounds, script.changed) == (1, True)
    blocks.close()
    assert not script.changed
    assert {kind: len(times) for kind, times in blocks.result().items()} == dict.fromkeys(
        ("base", "again", "changed"), 1
    )


def test_ratios_are_taken_within_rounds():
    # The machine slows down by half in the second round: 5, 7.5, 5 are half of 10, 15, 10 each time.
    blocks = Blocks(base=[10.0, 15.0, 10.0], again=[10.0, 16.5, 10.0], changed=[5.0, 7.5, 5.0])
    assert (blocks.baseline_ns, blocks.confirmed_ns, blocks.speedup, blocks.control) == (10, 5, 2, 1)


def test_without_a_device_what_our_hooks_took_is_no_part_of_a_step():
    ticks = iter([0, 10, 20, 31, 42])
    steps = UnprofiledSteps(3, clock=lambda: next(ticks))
    while not steps.enough:
        steps.end_step()

    assert steps.durations_ns(hooks_ns=4) == [6, 7, 7]


def test_the_hooks_of_a_step_are_those_of_all_its_markers():
    phase = Phase(None)  # type: ignore[arg-type]
    assert phase.hooks_of_step_ns() == 0
    for last in (50, 53, 90):  # three steps of three backward passes each, and the begin of a fourth
        for duration in (3, 4, 5):
            phase.add_hook(duration, ended=False)
        phase.add_hook(last, ended=True)
    phase.add_hook(1_000, ended=False)

    assert phase.hooks_of_step_ns() == 3 + 4 + 5 + 53
