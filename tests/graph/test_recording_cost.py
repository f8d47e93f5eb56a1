"""What recording typically costs, for traces of torch.profiler that do not say what it cost."""

import copy
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import EXAMPLES, view_text
from small_graphs import kernels, named
from small_traces import NO_COST, call, kernel, op, row, trace

import daydream
from daydream import build
from daydream.collect.derive.quality import TYPICAL
from daydream.graph.profiler_overhead import cost_of_recording, overhead_scale, without_profiler
from daydream.predict.basis import recording_share, timed_steps
from daydream.report.info import overview
from daydream.trace.memory_events import MemoryEvents

OWN = {
    "event_ns": {"forward": 1000},
    "input_ns": 0,
    "module_ns": 0,
    "annotation_ns": 0,
    "inside_ns": 0,
    "before_share": 1.0,
    "heads": [],
    "step_hooks_ns": 0,
    "rounds": 4,
}
PERIOD = 100  # us of a step


def busy(**metadata):
    """Return steps of 100 us in which a kernel takes 90, and the CPU 60 with 10 operators, ahead of it."""
    #  thread   |op 6|op 6| ... 10 of them|          the last one waits for the kernel
    #  stream     +3 |kernel 90                      |
    rows = []
    borders = [0.0]
    for n in range(4):
        at = n * PERIOD
        rows += [op("op", at + 6 * k, at + 6 * k + 6, phase="forward") for k in range(10)]
        rows += [call("cudaLaunchKernel", at + 1, at + 3, n + 1), kernel("k", at + 7, at + 97, n + 1)]
        rows += [call("cudaDeviceSynchronize", at + 60, at + 100)]
        borders.append(at + PERIOD)
    return trace(*rows, steps=tuple(borders), **{"profiler_cost": None, **metadata})


def faster(factor):
    def scale(graph):
        kernels(graph).scale(factor)

    return scale


def test_only_traces_of_torch_profiler_with_a_device_have_a_typical_cost():
    seen = busy()
    assert cost_of_recording(seen) is TYPICAL
    assert cost_of_recording(busy(profiler_cost=OWN)) == OWN
    for others in ({"profiler": "rocprofv3"}, {"versions": {"nsys": "2026.2"}}, {"vendor": "npu"}):
        assert cost_of_recording(busy(**others)) is None
    assert cost_of_recording(trace("op a 0 5", steps=(0, 5), profiler_cost=None)) is None  # no device
    ranges = [
        row("annotation", "a", 0, 9, pid=1, tid=1),
        """
            call cudaLaunchKernel 1 3 correlation=1
            kernel k 4 8 correlation=1
        """,
    ]
    assert cost_of_recording(trace(*ranges, steps=(0, 9), profiler_cost=None)) is None  # no operators


def test_a_cpu_that_shows_after_a_change_is_predicted_without_what_recording_typically_costs():
    replay = daydream.replay(busy())
    found = daydream.whatif(replay, faster(0.01))

    # each of ten events costs 1,390 ns, of 6,000: those of one step are all in its 60 us
    share = recording_share(replay.recording.graph, replay.graph)
    assert share == pytest.approx(13_900 / 60_000, rel=0.1)
    assert found.basis == found.to_json()["basis"] == replay.basis == "estimated"
    assert found.measured_ns is None
    assert found.replay_error is None
    assert found.recorded.replayed_ns == pytest.approx(found.replayed_ns, abs=2_000)  # the device decides
    assert found.recorded.predicted_ns - found.predicted_ns == pytest.approx(13_900, rel=0.1)
    assert found.recorded.measured_ns == replay.measured_ns
    assert any("does not say what recording cost" in note for note in found.notes)


def recorded(*times, unprofiled=None, shapes=(), **metadata):
    """Return a collected trace of a first step and of steps that took so many us, two operators each."""
    borders = list(accumulate((times[0], *times), initial=0.0))
    rows = []
    for number, (begin, end) in enumerate(pairwise(borders)):
        shape = shapes[number - 1] if number and shapes else "[[4, 4]]"
        middle = (begin + end) / 2
        rows += [op("aten::mm", begin, middle, shapes=shape), op("aten::add", middle, end, shapes=shape)]
    metadata = {"collected": {"steps": len(times)}, **metadata}
    if unprofiled is not None:
        metadata["unprofiled_step_ns"] = [round(1000 * unprofiled)] * 3
        metadata.setdefault("profiler_cost", NO_COST)
    return trace(*rows, steps=tuple(borders), **metadata)


@pytest.mark.parametrize(
    ("times", "unprofiled", "said"),
    [
        ((100, 104, 97), None, None),
        ((100, 104, 97), 98, None),
        ((100, 100, 100, 100, 124), None, None),  # one in five
        ((119, 100, 90), 90, None),
        ((3964, 3347, 1484), 1401, "1 of 3 steps that do the same work took over 20% longer or shorter"),
        ((100, 125), None, "1 of 2 steps"),
        ((184, 180, 182), 99, "would take 0.182 ms, but those timed without a profiler took 0.099 ms"),
        ((110, 111, 109), 144.6, "with the profiler on (0.110 ms) than off (0.145 ms)"),
        ((94, 94, 94), 100, "with the profiler on (0.094 ms) than off (0.100 ms)"),
        ((96, 96, 96), 100, None),
    ],
)
def test_a_restless_machine_is_told_by_its_signs(times, unprofiled, said):
    found = daydream.replay(recorded(*times, unprofiled=unprofiled)).unrest

    assert (found is None) if said is None else (said in found)


# -- the unprofiled prediction ---------------------------------------------------------------------------

COST = {
    "event_ns": {"forward": 1000, "backward": 1000, "optimizer": 1000},
    "input_ns": 0,
    "module_ns": 0,
    "annotation_ns": 0,
    "inside_ns": 200,
    "before_share": 0.75,
    "heads": [],
    "step_hooks_ns": 0,
}


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
        op("a", 0, 5),
        op("b", 5, 10, shapes="[[2,3],[],[[4],[4],[4]]]"),
        op("c", 10, 15),
        input_ns=80,
        before_share=1.0,
    )

    assert [duration for _, duration, _ in pieces(graph)] == [
        5000 - 200 - (800 + 5 * 80),
        5000 - 200 - 800,
        5000 - 200,
    ]


def test_a_module_range_costs_what_its_hooks_do():
    graph = corrected(
        op("a", 0, 5),
        row("module", "fc", 6, 9, pid=100, tid=1),
        op("b", 12, 14),
        module_ns=1000,
        event_ns={},
        inside_ns=0,
    )

    assert pieces(graph) == [("a", 5000, 7000 - 750 - 250), ("b", 2000, 0)]


def test_our_own_hooks_at_the_end_of_a_step_cost_too():
    graph = corrected(
        op("a", 0, 5, phase="forward"),
        op("b", 9, 12, phase="forward"),
        steps=(0, 7, 12),
        step_hooks_ns=1500,
        event_ns={},
        inside_ns=0,
    )

    assert pieces(graph) == [("a", 5000, 4000 - 1500), ("b", 3000, 0)]


def test_recording_costs_as_many_times_more_as_heads_are_longer():
    rows = [
        """
        op outer 0 10
        op inner 3 6
    """
    ]
    seen = trace(*rows, profiler_cost={**COST, "heads": [["forward", "outer", "inner", 40, 1500.0]]})

    cost = seen.metadata["profiler_cost"]
    assert overhead_scale(seen, cost) == {"forward": 2, "backward": 2, "optimizer": 2}
    assert pieces(without_profiler(build(seen)))[1] == ("inner", 3000 - 2 * 200, 0)


def test_the_recording_of_memory_costs_where_it_happened():
    #  |a 5|gap 2|b 3|     an event in a, one in the gap, one of another thread
    seen = trace(
        """
        op a 0 5
        op b 7 10
    """,
        profiler_cost={**COST, "event_ns": {}, "memory_ns": 300},
    )
    thread, pid = int(seen["tid"][0]), int(seen["pid"][0])
    seen.memory = MemoryEvents(
        {
            "time_ns": np.array([2000, 6000, 8000]),
            "bytes": np.array([512, -512, 512]),
            "pid": np.array([pid] * 3),
            "tid": np.array([thread, thread, thread + 1]),
        }
    )

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
        part
        for at in (0, 20, 40)
        for part in (op("a", at, at + 8, phase="forward"), op("b", at + 12, at + 18, phase="forward"))
    ]
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
        "measured_ns": 20_000,
        "replayed_ns": 20_000,
        "predicted_ns": 20_000 - 3_000,
    }


# One question, one answer: which step answers are about, and that all places give the same figures of it.


MS = 1_000_000


def timed(times, recorded=(20 * MS,) * 4):
    trace = daydream.Trace({}, {}, {"unprofiled_step_ns": times})
    found = timed_steps(trace, recorded)
    assert found is not None
    return found


def test_one_checkpoint_among_twenty_timed_steps_is_left_out_and_named():
    times = [15 * MS] * 20
    times[11] = 1_515 * MS
    found = timed(times)

    assert (found.mean_ns, found.left_out) == (15 * MS, (1_515 * MS,))
    assert found.added_ns == 75 * MS  # 1.5 s in twenty steps
    assert found.notes() == ["1 of 20 timed steps took 1.51 s and is left out; it would add 75 ms per step."]


@pytest.mark.parametrize("first", [0, 7])
def test_a_loader_that_stalls_every_eighth_step_counts(first):
    times = [15 * MS] * 20
    times[first::8] = [80 * MS] * len(times[first::8])
    found = timed(times)

    assert found.left_out == ()
    assert found.mean_ns == round(np.mean(times))
    assert found.spread > 0.2
    assert found.notes() == []


def test_the_recorded_step_is_one_object_beside_the_answer():
    replay = daydream.replay(EXAMPLES / "train_gpt_h200.parquet")
    found = daydream.whatif(replay, "amp")

    assert (found.basis, found.measured_ns) == ("unprofiled", 16_848_513)
    assert found.replay_error == pytest.approx(0.0036, abs=1e-4)  # before any calibration
    assert found.recorded.measured_ns == replay.measured_ns
    assert found.recorded.predicted_ns == 15_084_065
    assert found.speedup == pytest.approx(1.593, abs=1e-3)
    assert "with the profiler: 16.91 -> 15.08 ms, 1.12x, replay error 0.00%" in view_text(found)


def test_the_step_is_scaled_to_the_measured_one_as_far_as_its_cpu_goes():
    replay = daydream.replay(EXAMPLES / "mlp_cpu.json.gz")
    assert (replay.basis, replay.basis_measured_ns, replay.basis_error) == (
        "recorded",
        replay.measured_ns,
        replay.error,
    )
    on_device = daydream.replay(EXAMPLES / "train_gpt_h200.parquet")
    assert on_device.basis_ns == 16_908_459  # it waits for the device: no scaling of the CPU shortens it


def test_a_recording_without_steps_says_that_it_is_taken_as_one():
    rows = [op("aten::mm", 10 * at, 10 * at + 9) for at in range(5)]
    recorded = trace(*rows, steps=(0, 50), step_source="the whole recording: no markers, no period")
    recorded.metadata["steps"][0]["covered"] = True
    found = daydream.whatif(recorded, "scale", on="cpu", factor=0.5)

    said = "no steps found: the whole recording, 0.049 ms, is taken as one"
    replay, screen = found.replay, found.to_json()
    ranking = daydream.rank(replay, ["fused-adam"], pairs=0, with_curves=False)
    texts = [
        view_text(found),
        view_text(replay),
        view_text(ranking, top=1),
        view_text(daydream.explain(replay)),
        view_text(overview(recorded)),
    ]
    assert [str(text).splitlines()[0].strip() for text in texts] == [said] * len(texts)
    assert screen["notes"][0] == replay.to_json()["notes"][0] == ranking.to_json()["notes"][0] == said
    assert found.predicted_ns < found.predicted_high_ns == found.replayed_ns


def test_a_change_that_leaves_nothing_of_the_step_is_refused_if_it_takes_work_away():
    rows = [op("aten::mm", 10 * at, 10 * at + 10, op="aten::mm", phase="forward") for at in range(6)]
    recorded = trace(*rows, steps=(0, 20, 40, 60))
    found = daydream.whatif(recorded, "compile")  # no call of a library is known of these
    assert found.predicted_ns is found.predicted_low_ns is found.speedup is found.to_json()["speedup"] is None
    assert "cannot be predicted" in view_text(found)
    assert "nothing would be left of the step" in found.reason
    assert daydream.whatif(recorded, "scale", on="cpu", factor=0.0).predicted_ns == 0


def test_a_ranking_whose_intervals_tell_nothing_says_so():
    replay = daydream.replay(EXAMPLES / "mlp_cpu.json.gz")
    ranking = daydream.rank(replay, ["fused-adam"], pairs=0, with_curves=False)
    (row,) = ranking.optimizations
    wide = row.but(speedup_low=0.5, speedup_high=2.0)

    assert not ranking.cannot_tell
    told = ranking.but(optimizations=[wide])
    assert told.cannot_tell
    assert view_text(told, top=1).splitlines()[0].startswith("this recording cannot tell what helps")
