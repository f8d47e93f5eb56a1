"""What recording typically costs, for traces of torch.profiler that do not say what it cost."""

from itertools import accumulate, pairwise

import pytest
from small_graphs import kernels
from small_traces import NO_COST, call, kernel, op, row, trace

import daydream
from daydream.collect.recording_cost import TYPICAL
from daydream.graph.profiler_overhead import cost_of_recording
from daydream.predict.basis import recording_share

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
