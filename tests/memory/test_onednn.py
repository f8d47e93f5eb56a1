"""What oneDNN takes for itself on a CPU, worked out by hand."""

from __future__ import annotations

import pytest
from two_blocks import BATCH, LAYER, WEIGHT, WIDTH, two_blocks

from daydream.memory.lifetimes import allocations
from daydream.memory.narrow import lstm_workspace
from daydream.memory.prediction import changed
from daydream.transforms.compose import memory_changes, parse


def arguments(steps, samples, inputs, hidden):
    return [(steps, samples, inputs), (4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,)]


# 32 steps of 16 samples, 64 wide: gates 256 numbers a row, which are 272 (288 in 16 bits) so that rows do not
# lie 256 apart; results 64; two states and three gradients of 2 x 33 steps. All are whole pages.
GATES, RESULTS, STATE = 32 * 16 * 272 * 4, 32 * 16 * 64 * 4, 2 * 33 * 16 * 64 * 4


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (4, GATES + RESULTS + 2 * STATE + 3 * STATE),  # 2,039,808, as torch 2.13 asks for it
        (2, 32 * 16 * 288 * 2 + RESULTS // 2 + STATE + 3 * STATE),  # 1,441,792
    ],
)
def test_the_workspace_of_an_lstm(width, expected):
    assert lstm_workspace(arguments(32, 16, 64, 64), width) == expected


def test_each_part_of_a_workspace_begins_on_a_page():
    # 10 steps of 4 samples, 48 wide: 30,720 of gates are 8 pages, 7,680 of results 2, 16,896 a state 5 each
    assert lstm_workspace(arguments(10, 4, 48, 48), 4) == (8 + 2 + 5 * 5) * 4096


def test_other_shapes_have_no_workspace():
    assert lstm_workspace([(2, 3)], 4) == lstm_workspace([(2, 3, 4), (8,), (8, 2)], 4) == 0


def edited(case, trace=None):
    held = allocations(two_blocks() if trace is None else trace)
    return changed(held, memory_changes(parse("autocast"), {}), case)


def test_products_in_16_bits_hold_up_to_a_result_in_32_bits_and_both_operands():
    forward = LAYER + (LAYER + WEIGHT) // 2  # y = x w, of BATCH x WIDTH and WIDTH x WIDTH
    backward = WEIGHT + 2 * LAYER // 2  # of a weight's gradient
    assert (BATCH, WIDTH) == (2, 8)
    for case, part in (("least", 0), ("expected", 0.5), ("most", 1)):
        held = edited(case)
        scratch = held.where(kind="workspace") & (held["step"] == 1)
        # two layers: forward, the gradient of the weight; of the second also that of its input
        assert sorted(held["bytes"][scratch].tolist()) == sorted(
            [int(part * each) for each in (forward, forward, backward, backward, forward)]
        )
