"""Ranges that are steps by their own names: what counts up, what engines call steps, what only looks so."""

from typing import Any

import pytest
from kineto_text import ENGINE, MAIN, call, kernel, note, op

STEP = 1000  # us
Events = list[dict[str, Any]]


def loop(names, *, inner=None, outside_us=0, tid=MAIN):
    """A loop of steps 1,000 us apart: a range of 900 us with four kernels of 100 us, and one behind it.

    step  |range.........................|
    inner   |0   |1   |2   |3   |
    call     l    l    l    l              l
    """
    events = []
    for step, name in enumerate(names):
        at = STEP * step
        events.append(note(name, at, 900, tid=tid))
        for part in range(4):
            ids, begin = 10 * step + part, at + 10 + 200 * part
            if inner:
                events.append(note(inner[part], begin, 150, tid=tid))
            events.append(op("aten::mm", begin + 10, 50, tid=tid))
            events.append(call("cudaLaunchKernel", begin + 20, 10, ids, tid=tid))
            events.append(kernel("gemm", begin + 40, 100, ids))
        if outside_us:
            events.append(call("cudaLaunchKernel", at + 950, 10, 10 * step + 9, tid=tid))
            events.append(kernel("other", at + 970, outside_us, 10 * step + 9, stream=8))
    return events


@pytest.fixture
def steps(imported):
    def load(events):
        trace = imported(events)
        return trace.metadata["step_source"], [step["name"] for step in trace.metadata["steps"]]

    return load


@pytest.mark.parametrize(
    "names",
    [
        ["step 7", "step 8", "step 9"],
        ["step_12", "step_13", "step_14"],
        ["Warm-up Step 1", "Warm-up Step 2", "Warm-up Step 3"],
        ["[Trainer]TrainIter3", "[Trainer]TrainIter4", "[Trainer]TrainIter5"],
        ["train_step", "train_step", "train_step"],
        ["batch 0", "batch 100", "batch 200"],
        ["execute_model", "execute_model", "execute_model"],
        ["step[DECODE bs=32]", "step[EXTEND bs=1 tokens=512]", "step[DECODE bs=33]"],
        ["execute_context_1(128)_generation_0(0)", "execute_context_0(0)_generation_1(1)"],
        ["frame 3", "frame 4", "frame 5"],
    ],
)  # fmt: skip
def test_ranges_that_say_they_are_steps_are(steps, names):
    source, found = steps(loop(names))
    assert found == names
    assert source.startswith("ranges such as ")


def test_a_single_step_of_an_engine_is_a_step(steps):
    assert steps(loop(["step[DECODE bs=32]"])) == ("ranges such as 'step'", ["step[DECODE bs=32]"])


@pytest.mark.parametrize(
    "names",
    [
        ["layer 0", "layer 1", "layer 2"],
        ["Block_3", "Block_4", "Block_5"],
        ["conv1", "conv2", "conv3"],
        ["h1", "h2", "h3"],
        ["micro batch 0", "micro batch 1", "micro batch 2"],
        ["epoch 0", "epoch 1", "epoch 2"],
        ["optimizer step 1", "optimizer step 2", "optimizer step 3"],
        ["nn::BatchNorm step 1", "nn::BatchNorm step 2", "nn::BatchNorm step 3"],
        ["encoder.layers.0", "encoder.layers.1", "encoder.layers.2"],
        ["frame 3", "frame 5", "frame 4"],  # no counter
        ["frame 3", "frame 4"],  # too few to tell
        ["tile 0 of 1", "tile 1 of 2", "tile 2 of 3"],  # two numbers grow
    ],
)
def test_ranges_that_only_carry_a_number_are_no_steps(steps, names):
    source, _ = steps(loop(names))
    assert not source.startswith("ranges such as")


def test_the_outer_ranges_are_the_steps(steps):
    names = ["iteration 0", "iteration 1", "iteration 2"]
    inner = ["batch 0", "batch 1", "batch 2", "batch 3"]
    assert steps(loop(names, inner=inner))[1] == names
    assert steps(loop(names, inner=["step 1"] * 4))[1] == names


def test_steps_hold_most_of_the_work(steps):
    names = ["step 0", "step 1", "step 2"]
    assert steps(loop(names, outside_us=390))[1] == names
    source, _ = steps(loop(names, outside_us=450))
    assert not source.startswith("ranges such as")


def test_ranges_that_overlap_are_no_steps(steps):
    events = loop(["frame 0", "frame 1", "frame 2"])
    for event in events:
        if event["name"].startswith("frame"):
            event["dur"] = 1500
    source, _ = steps(events)
    assert not source.startswith("ranges such as")


def test_each_thread_counts_for_itself(steps):
    def both():
        yield from loop(["step 0", "step 1", "step 2"])
        for step in range(6):  # a loader that counts faster and launches nothing of its own
            yield note(f"step {step}", 500 * step, 300, tid=ENGINE)

    assert steps(list(both()))[1] == ["step 0", "step 1", "step 2"]
