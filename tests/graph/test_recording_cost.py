"""What recording typically costs, for traces of torch.profiler that do not say what it cost."""

from math import hypot

import pytest
from small_graphs import kernels
from small_traces import call, kernel, op, row, trace

import daydream
from daydream.collect.recording_cost import TYPICAL
from daydream.graph.profiler_overhead import cost_of_recording
from daydream.predict.basis import recording_share
from daydream.predict.interval import ANOTHER_RUN, HIDDEN_CPU, RECORDING_ERROR
from daydream.predict.notes import cpu_share

OWN = {
    "event_ns": {"forward": 1000}, "input_ns": 0, "module_ns": 0, "annotation_ns": 0, "inside_ns": 0,
    "before_share": 1.0, "heads": [], "step_hooks_ns": 0, "rounds": 4,
}  # fmt: skip
PERIOD = 100  # us of a step


def busy(**metadata):
    """Return steps of 100 us in which a kernel takes 90, and the CPU 60 with 10 operators, ahead of it."""
    #  thread   |op 6|op 6| ... 10 of them|          the last one waits for the kernel
    #  stream     +3 |kernel 90                      |
    rows, borders = [], [0.0]
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
    assert cost_of_recording(trace(op("a", 0, 5), steps=(0, 5), profiler_cost=None)) is None  # no device
    ranges = [
        row("annotation", "a", 0, 9, pid=1, tid=1),
        call("cudaLaunchKernel", 1, 3, 1),
        kernel("k", 4, 8, 1),
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


def recording_ns(found):
    """Return half of what taking the cost out moves the answer by."""
    recorded = found.recorded
    moved = found.predicted_ns - found.replayed_ns * recorded.predicted_ns / recorded.replayed_ns
    return RECORDING_ERROR * abs(moved)


def test_the_range_holds_what_the_cost_may_be_off_and_how_another_run_is():
    found = daydream.whatif(busy(), faster(0.01))
    before, after = found.replay.cpu_share, cpu_share(found.waited_for_ns)

    assert before < 0.2
    assert after > 0.9
    assert found.uncertainty.recording == pytest.approx(recording_ns(found))
    waits = dict(found.waited_for_ns)
    hidden = waits["CPU"] - before * found.replayed_ns
    on_device = ANOTHER_RUN["device"] * (sum(waits.values()) - waits["CPU"])
    both = ANOTHER_RUN["CPU"] * (waits["CPU"] - hidden)
    assert found.uncertainty.rerun == pytest.approx(hypot(HIDDEN_CPU * hidden, both, on_device), rel=1e-3)
