"""What-ifs about communication on a real rank of two, held against sums made from its recorded times.

Two steps count. In each the gradients of ResNet-50, 102 MB, are reduced in five buckets on a stream
of their own. The CPU is what bounds the step: it launches the optimizer's first kernel, which waits
for the last bucket, long after that has been reduced. How long transfers may get before the step
feels it can be read off the recording.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import daydream
from daydream.simulate import simulate

RESNET50_BYTES = 25_557_032 * 4
STEPS = (1, 2)  # those that count


@dataclass(frozen=True)
class Recorded:
    """One step's all-reduces, and when its update began and ended on the device; in ns."""

    start: np.ndarray
    duration: np.ndarray
    nbytes: np.ndarray
    update_ns: int
    update_start: int
    update_end: int

    def reduced(self, factor):
        """Return when the last bucket is reduced, one behind another, each in `factor` times its time."""
        end = 0.0
        for start, duration in zip(self.start, self.duration, strict=True):
            end = max(start, end) + factor * duration
        return end

    def later(self, reduced):
        """Return how much later the step ends when the last bucket is reduced at that time."""
        return max(0.0, reduced + self.update_ns - self.update_end)


def recorded(replay, step):
    trace = replay.graph.trace
    frame = trace.to_pandas()
    frame = frame[frame.step == step]
    reduced = frame[(frame.kind == "collective") & (frame.collective == "all_reduce")].sort_values("start_ns")
    update = frame[(frame.phase == "optimizer") & (frame.kind == "kernel")]
    return Recorded(
        start=reduced.start_ns.to_numpy(),
        duration=reduced.duration_ns.to_numpy(),
        nbytes=reduced.bytes.to_numpy(),
        update_ns=int(update.duration_ns.sum()),
        update_start=int(update.start_ns.min()),
        update_end=int((update.start_ns + update.duration_ns).max()),
    )


def delays(comparison):
    return [step["predicted_ns"] - step["replayed_ns"] for step in comparison.to_json()["steps"]]


def test_five_buckets_hold_the_gradients_of_the_network(replay):
    for step in STEPS:
        assert recorded(replay, step).nbytes.sum() == RESNET50_BYTES
        assert len(recorded(replay, step).nbytes) == 5


def starts(graph):
    """Return when each task of a graph starts, by its id."""
    timeline = simulate(graph)
    start = np.zeros(int(timeline.task.max()) + 1, np.int64)
    start[timeline.task] = timeline.start_ns
    return start


def test_each_bucket_waits_for_its_gradients_and_the_update_for_the_buckets(replay):
    longer = 200_000_000
    before = starts(replay.graph)
    for number in range(5):
        graph = replay.graph.copy()
        buckets = graph.select(kind="collective", collective="all_reduce", step=STEPS[0])
        kernels = graph.select(kind="kernel", phase="backward", step=STEPS[0])
        order = graph.columns["order"]
        behind = order[kernels.launch] < order[buckets.launch[number]]
        graph.tasks(kernels.ids[behind][-1:]).set(duration_ns=longer)  # of the bucket's last gradient
        after = starts(graph)
        assert (after[buckets.ids[:number]] == before[buckets.ids[:number]]).all()
        assert (after[buckets.ids[number:]] - before[buckets.ids[number:]] > longer / 2).all()

    graph = replay.graph.copy()
    last = graph.select(kind="collective", collective="all_reduce", step=STEPS[0]).ids[-1:]
    graph.tasks(last).set(duration_ns=longer)
    after = starts(graph)
    update = graph.select(kind="kernel", phase="optimizer", step=STEPS[0])
    assert (after[update.ids] >= after[last] + longer).all()
    assert (before[update.ids] < before[last] + longer).all()


def test_one_bucket_for_all_begins_with_the_last_gradient(replay):
    # On half the bandwidth all is transferred behind the start of the last bucket; five were still hidden.
    second = recorded(replay, STEPS[1])
    by_hand = second.later(second.start[-1] + 2 * second.duration.sum())
    assert by_hand > 10_000_000
    one = daydream.whatif(replay, "bucket-size+network", bucket_mb=100, bandwidth_factor=0.5)
    assert delays(one)[1] == pytest.approx(by_hand, abs=500_000)
    assert delays(daydream.whatif(replay, "bucket-size", bucket_mb=100))[1] == pytest.approx(0, abs=200_000)

    reduced = one.graph.select(kind="collective", collective="all_reduce")
    assert reduced.bytes.tolist() == [RESNET50_BYTES] * 3


def test_smaller_buckets_cost_the_cpu_their_launches(replay):
    graph = replay.graph
    smaller = daydream.whatif(replay, "bucket-size", bucket_mb=1)
    count = len(smaller.graph.select(kind="collective", collective="all_reduce", step=1))
    assert count > 50
    # Nothing waits for transfers, so a step is longer by one launch for each bucket that there is more.
    launches = (count - 5) * graph.facts.launch_cost_ns
    assert delays(smaller) == pytest.approx([launches, launches], rel=0.5)
