"""What a worker of `fully_shard` holds of a step of two blocks, worked out by hand."""

from __future__ import annotations

import pytest
from two_blocks import (
    LAYER,
    WEIGHT,
    cut_before_the_last_backward_pass,
    edited,
    held_when,
    predict_memory,
    two_blocks,
)

from daydream.memory.allocations import BEFORE, OWN_ERROR

LOSS = 4


@pytest.fixture(scope="module")
def trace():
    return two_blocks()


def test_fully_sharded_units_are_whole_while_they_are_used(trace):
    held = edited(trace, "fsdp", stage=3, workers=2, layers="blocks.*")

    lasting = held["begin"] == BEFORE
    assert held["bytes"][held.where(kind="parameter")].tolist() == [WEIGHT // 2] * 2
    assert held["bytes"][lasting & held.where(kind="optimizer_state")].tolist() == [WEIGHT // 2] * 4
    # When the loss goes backward no unit is whole: only shares, x, a0, a1, ga and the loss are held.
    assert held_when(held, "aten::mse_loss_backward") == [LAYER] * 4 + [LOSS]
    # Of gradients a worker keeps its share when a unit is done.
    shares = held.where(kind="shard") & (held["bytes"] == WEIGHT // 2) & (held["step"] == 1)
    assert shares.sum() == 2


def units_at(held, op, block):
    """The whole units and flat buffers, in weights, when an operator of a block first asks in step 1."""
    asks = held.where(op=op, layer=f"blocks.{block}*") & (held["step"] == 1)
    there = held.held_at(held["begin"][asks].min()) & held.where(kind="shard") & (held["bytes"] == WEIGHT)
    return int(there.sum())


def test_flat_buffers_stay_until_the_next_unit(trace):
    held = edited(trace, "fsdp", stage=3, workers=2, layers="blocks.*")

    # forward: a unit and the flat buffer that it was copied from
    assert units_at(held, r"aten::addmm$", 0) == units_at(held, r"aten::addmm$", 1) == 2
    # backward of blocks.1: itself, and blocks.0 gathered ahead; of blocks.0: itself, and blocks.1's gradients
    assert units_at(held, r"threshold_backward$", 1) == units_at(held, r"threshold_backward$", 0) == 2
    held = edited(trace, "fsdp", stage=3, workers=2, layers="blocks.*", overlap=False)
    assert units_at(held, r"threshold_backward$", 1) == 1


def test_what_gloo_holds_of_units_gathered_ahead_is_a_range(trace):
    found = predict_memory(
        trace, "batch-size+fsdp", {"factor": 32.0, "stage": 3, "workers": 2, "layers": "blocks.*"}
    )
    own = round(found.after_bytes * OWN_ERROR)
    assert found.high_bytes - found.after_bytes == WEIGHT + own
    assert found.after_bytes - found.low_bytes == own


def test_stage_two_keeps_units_whole_between_the_passes(trace):
    held = edited(trace, "fsdp", stage=2, workers=2, layers="blocks.*")
    assert held_when(held, "aten::mse_loss_backward") == [WEIGHT] * 2 + [LAYER] * 4 + [LOSS]


def test_a_step_whose_backward_pass_asked_for_nothing_has_nothing_to_scatter():
    trace = cut_before_the_last_backward_pass()
    held = edited(trace, "fsdp", stage=2, workers=2, layers="blocks.*")

    scattered = held.where(kind="shard", phase="backward")
    assert sorted(set(held["step"][scattered].tolist())) == [0, 1]
