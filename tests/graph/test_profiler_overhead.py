"""The unprofiled prediction: what recording cost is taken out of the time around each event."""

import copy

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import named
from small_traces import op, row, trace

import daydream
from daydream import build
from daydream.graph.profiler_overhead import overhead_scale, without_profiler
from daydream.trace.memory_events import MemoryEvents

COST = {
    "event_ns": {"forward": 1000, "backward": 1000, "optimizer": 1000}, "input_ns": 0, "module_ns": 0,
    "annotation_ns": 0,    "inside_ns": 200, "before_share": 0.75, "heads": [], "step_hooks_ns": 0,
}  # fmt: skip


def pieces(graph):
    """Return (name, duration, gap) of the tasks, in ns."""
    tasks = graph.select()
    return list(zip(tasks.name.tolist(), tasks.duration_ns.tolist(), tasks.gap_ns.tolist(), strict=True))


def corrected(*rows, steps=(), **cost):
    return without_profiler(build(trace(*rows, steps=steps, profiler_cost={**COST, **cost})))


def test_the_cost_of_an_event_is_taken_from_around_it():
    #  |outer 4|inner 2|outer 4|gap 2|next 3|     of 1000 ns 600 come before, 200 in, 200 behind
    graph = corrected(op("outer", 0, 10), op("inner", 4, 6), op("next", 12, 15))

    assert pieces(graph) == [
        ("outer", 4000 - 200 - 600, 0),
        ("inner", 2000 - 200, 0),
        ("outer", 4000 - 200, 2000 - 200 - 600),
        ("next", 3000 - 200, 0),
    ]


def test_what_a_piece_is_too_short_for_is_taken_from_the_next_ones():
    #  |a 0.1|b 0.1|c 5|     each has 200 within; a also what is before b and behind itself, in no gap
    graph = corrected(op("a", 0, 0.1), op("b", 0.1, 0.2), op("c", 0.2, 5.2))

    overhead = 200 + (600 + 200 + 200) + (600 + 200 + 200)  # all but c's own share behind it
    assert pieces(graph) == [("a", 0, 0), ("b", 0, 0), ("c", 5200 - overhead, 0)]


def test_every_recorded_input_costs():
    graph = corrected(
        op("a", 0, 5), op("b", 5, 10, shapes="[[2,3],[],[[4],[4],[4]]]"), op("c", 10, 15),
        input_ns=80, before_share=1.0,
    )  # fmt: skip

    assert [duration for _, duration, _ in pieces(graph)] == [
        5000 - 200 - (800 + 5 * 80), 5000 - 200 - 800, 5000 - 200,
    ]  # fmt: skip


def test_a_module_range_costs_what_its_hooks_do():
    graph = corrected(
        op("a", 0, 5), row("module", "fc", 6, 9, pid=100, tid=1), op("b", 12, 14),
        module_ns=1000, event_ns={}, inside_ns=0,
    )  # fmt: skip

    assert pieces(graph) == [("a", 5000, 7000 - 750 - 250), ("b", 2000, 0)]


def test_our_own_hooks_at_the_end_of_a_step_cost_too():
    graph = corrected(
        op("a", 0, 5, phase="forward"), op("b", 9, 12, phase="forward"), steps=(0, 7, 12),
        step_hooks_ns=1500, event_ns={}, inside_ns=0,
    )  # fmt: skip

    assert pieces(graph) == [("a", 5000, 4000 - 1500), ("b", 3000, 0)]


def test_recording_costs_as_many_times_more_as_heads_are_longer():
    rows = [op("outer", 0, 10), op("inner", 3, 6)]
    seen = trace(*rows, profiler_cost={**COST, "heads": [["forward", "outer", "inner", 40, 1500.0]]})

    cost = seen.metadata["profiler_cost"]
    assert overhead_scale(seen, cost) == {"forward": 2, "backward": 2, "optimizer": 2}
    assert pieces(without_profiler(build(seen)))[1] == ("inner", 3000 - 2 * 200, 0)


def test_the_recording_of_memory_costs_where_it_happened():
    #  |a 5|gap 2|b 3|     an event in a, one in the gap, one of another thread
    seen = trace(op("a", 0, 5), op("b", 7, 10), profiler_cost={**COST, "event_ns": {}, "memory_ns": 300})
    thread, pid = int(seen["tid"][0]), int(seen["pid"][0])
    seen.memory = MemoryEvents({
        "time_ns": np.array([2000, 6000, 8000]), "bytes": np.array([512, -512, 512]),
        "pid": np.array([pid] * 3), "tid": np.array([thread, thread, thread + 1]),
    })  # fmt: skip

    graph = without_profiler(build(seen))

    assert pieces(graph) == [("a", 5000 - 300, 2000 - 300), ("b", 3000, 0)]


operators = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 2)), min_size=1, max_size=12
)


def apart(given):
    """Return a trace of operators behind each other on two threads, with cost."""
    at = {1: 0, 2: 0}
    rows = []
    for pause, length, tid in given:
        begin = at[tid] + pause
        at[tid] = begin + length
        rows += [op("outer", begin, begin + length, tid=tid), op("inner", begin, begin + length / 2, tid=tid)]
    return trace(*rows, profiler_cost=copy.deepcopy(COST))


@given(operators)
def test_no_cost_changes_nothing(given):
    seen = apart(given)
    seen.metadata["profiler_cost"].update(event_ns={}, inside_ns=0)
    before = build(seen)

    assert pieces(without_profiler(before)) == pieces(before)


@given(operators, st.integers(0, 30_000))
def test_no_task_becomes_negative_and_no_more_than_the_cost_goes(given, cost):
    seen = apart(given)
    seen.metadata["profiler_cost"]["event_ns"] = {"forward": cost}
    before = build(seen)
    after = without_profiler(before)

    assert after.lint() == []
    assert (after.duration_ns >= 0).all()
    assert (after.gap_ns >= 0).all()
    taken = (before.duration_ns + before.gap_ns - after.duration_ns - after.gap_ns).sum()
    assert 0 <= taken <= (cost + 1) * len(seen)


def small_run(factor=1.0):
    """Return three steps of 20 us, two operators with pauses between them; 2 us are recording.

    Without a profiler they took 18 us, times the factor.
    """
    rows = [
        part for at in (0, 20, 40)
        for part in (op("a", at, at + 8, phase="forward"), op("b", at + 12, at + 18, phase="forward"))
    ]  # fmt: skip
    times = [round(factor * ns) for ns in (18_000, 19_000, 17_000)]
    return trace(*rows, steps=(0, 20, 40, 60), profiler_cost=COST, unprofiled_step_ns=times)


def test_a_what_if_is_predicted_without_the_profiler():
    def halve_b(graph):
        named(graph, "b").scale(0.5)

    result = daydream.whatif(small_run(), halve_b)
    b = 6000 - 200  # without what recording took within

    assert result.predicted_ns == 18_000 - b // 2
    assert result.to_json()["replayed_ns"] == 18_000
    assert result.to_json()["recorded"] == {
        "measured_ns": 20_000, "replayed_ns": 20_000, "predicted_ns": 20_000 - 3_000
    }  # fmt: skip
