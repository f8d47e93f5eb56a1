"""What each optimization does to memory, worked out by hand."""

import numpy as np
import pytest
from two_blocks import (
    ALWAYS,
    BATCH,
    LAYER,
    WEIGHT,
    WIDTH,
    edited,
    held_when,
    predict_memory,
    two_blocks,
)

import daydream
from daydream.memory.allocations import AFTER, BEFORE, OWN_ERROR
from daydream.memory.before import let_states_shrink
from daydream.memory.lifetimes import allocations
from daydream.memory.narrow import lstm_workspace
from daydream.memory.prediction import changed
from daydream.trace.memory_events import MemoryEvents
from daydream.transforms.compose import memory_changes, parse
from daydream.transforms.registry import find, names

# What optimizations do to memory: a step of two blocks, every figure worked out by hand


LOSS = 4
RANDOM = 5056  # the state of torch's generator for CPUs


@pytest.fixture(scope="module")
def trace():
    return two_blocks()


def peak(trace, name, **options):
    return predict_memory(trace, name, options).after_bytes


def told(found):
    """The range without what any change may be off besides."""
    own = round(found.after_bytes * OWN_ERROR)
    return found.low_bytes + own, found.high_bytes - own


def test_the_step_as_it_is(trace):
    # in the optimizer: the batch, the loss, both gradients, and two temporaries of one parameter
    found = predict_memory(trace, "cpu", {"speedup": 2.0})

    assert found.before_bytes == ALWAYS + LAYER + LOSS + 2 * WEIGHT + 2 * WEIGHT
    assert found.after_bytes == found.low_bytes == found.high_bytes == found.before_bytes
    assert (found.device, found.before_reserved_bytes, found.capacity_bytes) == ("cpu", None, None)


def test_a_larger_batch_leaves_weights_and_their_gradients(trace):
    assert peak(trace, "batch-size", factor=2.0) == ALWAYS + 2 * LAYER + LOSS + 4 * WEIGHT
    # of 64 samples the backward pass holds most: x, a0, a1, ga and the gradient that ReLU makes of it
    assert peak(trace, "batch-size", factor=32.0) == ALWAYS + LOSS + 5 * 32 * LAYER


def test_without_shapes_what_grows_is_a_range(trace):
    held = allocations(trace)
    held.trace = without_shapes(trace)

    found = predict_memory(held, "batch-size", {"factor": 2.0})
    # The batch is twice as large for sure, all else of the passes may be; the optimizer's temporaries stay.
    assert found.after_bytes == ALWAYS + 2 * LAYER + LOSS + 4 * WEIGHT
    assert told(found) == (found.after_bytes, found.after_bytes)

    found = predict_memory(held, "batch-size", {"factor": 32.0})
    assert found.after_bytes == ALWAYS + LOSS + 5 * 32 * LAYER
    assert told(found) == (ALWAYS + 32 * LAYER + LOSS + 4 * WEIGHT, found.after_bytes)


def without_shapes(trace):
    texts = {**trace.texts, "shapes": []}
    columns = {**trace.columns, "shapes": np.full(len(trace), -1)}
    return daydream.Trace(columns, texts, trace.metadata, trace.memory)


def test_accumulation_holds_gradients_through_the_second_batch(trace):
    held = edited(trace, "gradient-accumulation", batches=2)

    # The first batch's gradients are there when the second one's loss goes backward.
    ask = held.where(op="mse_loss_backward") & (held["step"] == 1)
    first, second = np.sort(held["begin"][ask])
    gradients = held.where(kind="gradient") & (held["step"] == 1)
    assert gradients.sum() == 2
    assert (held["begin"][gradients] > first).all()
    assert (held["begin"][gradients] < second).all()
    assert (held["end"][gradients] > second).all()
    # Gradients of the second are added and go: of each only one allocation more.
    added = (held["bytes"] == WEIGHT) & held.where(kind="temporary", phase="backward") & (held["step"] == 1)
    assert added.sum() == 2
    # 64 samples a batch: x, a0, a1, ga, gy1 of the second batch, and the gradients of the first
    large = peak(trace, "batch-size+gradient-accumulation", factor=32.0, batches=2)
    assert large == ALWAYS + LOSS + 5 * 32 * LAYER + 2 * WEIGHT


def test_a_checkpointed_block_keeps_its_output_and_makes_the_rest_again(trace):
    before, after = allocations(trace), edited(trace, "checkpointing", layers="blocks")

    # `blocks` is one block of both: a0 goes, its output a1 stays
    assert held_when(before, "aten::mse_loss_backward") == [LAYER] * 4 + [LOSS]  # x, a0, a1, ga
    assert held_when(after, "aten::mse_loss_backward") == [RANDOM] + [LAYER] * 3 + [LOSS]  # x, a1, ga
    # before the first gradient of the block all of it is made once more, y0 and y1 too
    again = after.where(phase="backward", op=r"aten::(addmm|relu)$") & (after["step"] == 1)
    assert again.sum() == 4
    ga, gy1 = (
        after["begin"][after.where(op=op) & (after["step"] == 1)].min()
        for op in ("mse_loss_backward", "threshold_backward")
    )
    assert ((after["begin"][again] > ga) & (after["begin"][again] < gy1)).all()


def test_frozen_layers_have_no_gradients_states_or_saved_inputs(trace):
    held = edited(trace, "freeze", layers="blocks.1*")

    of_block = np.array([(path or "").startswith("blocks.1") for path in held.texts("layer")])
    assert not (of_block & held.where(kind=("gradient", "optimizer_state"))).any()
    assert (of_block & held.where(kind="parameter")).sum() == 1
    # one gradient less, two moments less, and one parameter's temporaries as before
    assert peak(trace, "freeze", layers="blocks.1*") == ALWAYS - 2 * WEIGHT + LAYER + LOSS + 3 * WEIGHT


def test_what_runs_before_the_first_trained_layer_saves_nothing(trace):
    held = edited(trace, "freeze", layers="blocks.0*")

    # blocks.0 has no backward pass: a0 is what blocks.1 saves, and ga, gy1 the only gradients on their way
    assert held_when(held, "aten::mse_loss_backward") == [LAYER] * 4 + [LOSS]
    backward = held.where(phase="backward", kind="temporary") & (held["step"] == 1)
    assert held["bytes"][backward].tolist() == [LAYER, LAYER]


def test_a_fused_update_makes_nothing_on_its_way(trace):
    # then the backward pass holds most: x, the loss, both weights' gradients and gy0
    assert peak(trace, "fused-adam") == ALWAYS + LAYER + LOSS + 2 * WEIGHT + LAYER
    assert peak(trace, "fused-optimizer", kind="sgd") == 2 * WEIGHT + 2 * LAYER + LOSS + 2 * WEIGHT
    assert peak(trace, "fused-optimizer", kind="momentum") == 4 * WEIGHT + 2 * LAYER + LOSS + 2 * WEIGHT


def test_foreach_makes_a_temporary_for_all_parameters_at_once(trace):
    held = edited(trace, "foreach-optimizer")

    made = held.where(phase="optimizer", kind="temporary")
    assert held["bytes"][made].tolist() == [WEIGHT] * 2 * 3  # a root of each second moment, three steps
    assert len(set(held["begin"][made].tolist())) == 3  # all at once
    assert peak(trace, "foreach-optimizer") == ALWAYS + LAYER + LOSS + 2 * WEIGHT + 2 * WEIGHT


def test_removed_layers_take_what_they_hold_along(trace):
    assert peak(trace, "remove-layers", layers="blocks.1") == (
        ALWAYS - 3 * WEIGHT + LAYER + LOSS + WEIGHT + 2 * WEIGHT
    )


def test_autocast_halves_products_and_what_follows_them_beside_copies_of_weights(trace):
    held = edited(trace, "autocast")

    # forward: y, a in 16 bits; x and both weights have copies for the backward pass. The loss, which is
    # expected inside of autocast, and ga, the gradient that it begins with, have 32 bits.
    half = LAYER // 2
    backward = held_when(held, "aten::mse_loss_backward")
    assert backward == [WEIGHT // 2] * 2 + [LAYER] * 2 + [half] * 3 + [LOSS]
    gradients = held.where(kind="gradient") & (held["step"] == 1)
    assert held["bytes"][gradients].tolist() == [WEIGHT, WEIGHT]  # cast to 32 bits
    casts = (held["bytes"] == WEIGHT // 2) & held.where(kind="temporary", phase="backward")
    assert casts.sum() == 2 * 3


def test_buckets_are_as_large_as_all_gradients(trace):
    now = predict_memory(trace, "cpu", {"speedup": 2.0}).before_bytes
    assert peak(trace, "ddp") == now + 2 * WEIGHT
    # Buckets that hold the gradients are there in the forward pass, too: at the peak it is the same.
    assert peak(trace, "ddp", gradient_as_bucket_view=True) == now
    held = edited(trace, "ddp", gradient_as_bucket_view=True)
    assert not held.where(kind="gradient").any()
    assert held["bytes"][held.where(kind="bucket")].tolist() == [2 * WEIGHT]


@pytest.mark.parametrize("as_views", [False, True])
def test_buckets_of_gradients_that_nothing_tells_are_said_not_to_count(trace, as_views):
    held = allocations(trace)
    held.become(held.where(kind="gradient"), "unknown")
    edited(held, "ddp", gradient_as_bucket_view=as_views)

    assert not held.where(kind="bucket").any()
    assert [note for note in held.notes if "Buckets are not counted in the peak" in note]
    assert not [note for note in edited(trace, "ddp").notes if "Buckets" in note]


@pytest.mark.parametrize("workers", [2, 4])
def test_sharded_states_are_a_share(trace, workers):
    held = edited(trace, "fsdp", stage=1, workers=workers)
    assert held["bytes"][held.where(kind="optimizer_state")].tolist() == [WEIGHT // workers] * 4
    assert held["bytes"][held.where(kind="parameter")].tolist() == [WEIGHT] * 2


def test_gradients_that_are_held_all_the_time_are_made_anew(trace):
    held = allocations(trace)
    gradients = np.flatnonzero(held.where(kind="gradient") & (held["step"] == 1))
    # as with set_to_none=False: the gradients last, and each backward pass makes what is added to them
    held["end"][gradients] = held["begin"][gradients] + 1
    lasting = held.where(kind="gradient") & (held["begin"] == BEFORE)
    held["end"][lasting] = AFTER
    edited(held, "zero-grad-none")
    assert not (held.where(kind="gradient") & held.lasting).any()


def test_an_update_by_servers_leaves_the_worker_no_states(trace):
    assert peak(trace, "p3", update="server") == 2 * WEIGHT + 2 * LAYER + LOSS + 2 * WEIGHT
    now = predict_memory(trace, "cpu", {"speedup": 2.0}).before_bytes
    assert peak(trace, "p3") == now


def test_deep_compression_keeps_what_was_not_sent(trace):
    found = predict_memory(trace, "dgc", {})
    assert found.after_bytes == found.before_bytes + 4 * WEIGHT
    assert told(found) == (found.before_bytes + 2 * WEIGHT, found.after_bytes)


def test_encoded_outputs_are_smaller_between_the_passes(trace):
    held = edited(trace, "gist", ratio=2.0)
    # a0 is read by blocks.1 and then encoded; a1 has no call of a layer behind it in the forward pass
    assert held_when(held, "aten::mse_loss_backward") == [LAYER] * 3 + [LAYER // 2, LOSS]


def test_offloaded_inputs_are_gone_between_the_passes(trace):
    held = edited(trace, "vdnn", layers="all")
    # x, the first linear layer's input, goes when the second one starts; its own, of the last, stays
    assert held_when(held, "aten::mse_loss_backward") == [LAYER] * 3 + [LOSS]
    x = held.where(kind="input") & (held["bytes"] == LAYER) & (held["step"] == 1)
    assert x.sum() == 2  # before, and when it comes back


def test_all_that_ship_say_what_they_do_but_those_that_cannot():
    unsaid = [name for name in names() if find(name).memory is None]
    assert unsaid == ["metaflow"]  # other layers, of which only the times are given


def test_a_replaced_activation_keeps_its_result_or_its_input(trace):
    at = "aten::mse_loss_backward"
    before = held_when(allocations(trace), at)
    assert before == [LAYER] * 4 + [LOSS]  # x, a0, a1, ga
    assert held_when(edited(trace, "replace", op="^aten::relu$", by="tanh"), at) == before
    # y0 and y1 besides: the product and the loss keep a0 and a1 as they did
    assert held_when(edited(trace, "replace", op="^aten::relu$", by="silu"), at) == [LAYER] * 6 + [LOSS]
    # y0 and y1 in the place of a0 and a1
    assert held_when(edited(trace, "replace", op="^aten::relu$", by="identity"), at) == before


def test_what_an_unknown_replacement_keeps_is_a_range(trace):
    found = predict_memory(trace, "replace", {"op": "^aten::relu$", "factor": 2.0})
    assert found.low_bytes <= found.after_bytes == found.before_bytes <= found.high_bytes


# What a worker of `fully_shard` holds


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


# Memory under autocast on a GPU: what is kept in 32 bits for itself, and what a factor of 32 bits widens


# What oneDNN takes for itself on a CPU, worked out by hand


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


def multiplied(case, trace=None):
    held = allocations(two_blocks() if trace is None else trace)
    return changed(held, memory_changes(parse("autocast"), {}), case)


def test_products_in_16_bits_hold_up_to_a_result_in_32_bits_and_both_operands():
    forward = LAYER + (LAYER + WEIGHT) // 2  # y = x w, of BATCH x WIDTH and WIDTH x WIDTH
    backward = WEIGHT + 2 * LAYER // 2  # of a weight's gradient
    assert (BATCH, WIDTH) == (2, 8)
    for case, part in (("least", 0), ("expected", 0.5), ("most", 1)):
        held = multiplied(case)
        scratch = held.where(kind="workspace") & (held["step"] == 1)
        # two layers: forward, the gradient of the weight; of the second also that of its input
        assert sorted(held["bytes"][scratch].tolist()) == sorted(
            [int(part * each) for each in (forward, forward, backward, backward, forward)]
        )


# The optimizer's state among what was held before a recording, worked out by hand


def on_a_gpu(before, **metadata):
    """The steps of Adam on a GPU whose totals tell that so many bytes were held before them."""
    trace = two_blocks()
    events = {name: trace.memory[name] for name in ("time_ns", "address", "bytes", "pid", "tid")}
    total = before + np.cumsum(events["bytes"])
    trace.memory = MemoryEvents(
        {**events, "device": np.zeros(len(total), np.int64), "allocated_bytes": total}
    )
    for name in ("parameters", "optimizers"):
        trace.metadata.pop(name)
    trace.metadata.update(metadata)
    return trace


def before(held, kind):
    return held["bytes"][held.where(kind=kind, on="gpu") & (held["begin"] == BEFORE)].tolist()


def test_adam_keeps_two_values_of_each_parameter_that_gets_a_gradient():
    #  held before: two weights of 256 bytes and two moments of each; 100 bytes nobody knows of
    held = allocations(on_a_gpu(2 * WEIGHT + 4 * WEIGHT + 100))
    assert before(held, "optimizer_state") == [WEIGHT] * 4
    assert before(held, "unknown") == [2 * WEIGHT + 100]
    assert any("assumed to be the optimizer's state" in note for note in held.notes)


def test_state_that_is_told_goes_or_is_shared():
    trace = on_a_gpu(6 * WEIGHT)
    assert before(edited(trace, "p3", update="server"), "optimizer_state") == []
    held = edited(trace, "fsdp", stage=1, workers=8)
    assert before(held, "optimizer_state") == [512] * 4  # 32 bytes, as the allocator rounds them
    assert before(held, "unknown") == [2 * WEIGHT]


@pytest.mark.parametrize(("case", "left"), [("least", 512), ("expected", 512), ("most", 4 * 512)])
def test_state_that_is_not_told_is_a_range(case, left):
    # 2,048 bytes are held before, of which 1,536 are the state: as described it has no room beside weights.
    adam = {"name": "Adam", "state_bytes": 3 * 512, "groups": []}
    trace = on_a_gpu(4 * 512, optimizers=[adam], parameters=[])
    held = allocations(trace)
    held.remove(held.where(kind="optimizer_state"))
    held["bytes"][held.where(kind="unknown", on="gpu") & (held["begin"] == BEFORE)] = 4 * 512
    held.case = case
    let_states_shrink(held)
    assert before(held, "unknown") == [left]
    assert held.doubted_cases == {"most"}


def test_a_copied_block_has_parameters_gradients_and_activations_of_its_own(trace):
    # blocks.1 twice: y1 and a1 come again, the copy has w, m, v and g
    held = edited(trace, "add-layers", count=1, layers="blocks.1")

    assert held_when(held, "aten::mse_loss_backward") == [LAYER] * 5 + [LOSS]
    assert held.where(kind="parameter").sum() == 3
    assert held.where(kind="optimizer_state").sum() == 6
    assert peak(trace, "add-layers", count=1, layers="blocks.1") == (
        ALWAYS + 3 * WEIGHT + LAYER + LOSS + 3 * WEIGHT + 2 * WEIGHT
    )


def test_a_stage_of_a_pipeline_holds_its_own_blocks(trace):
    found = predict_memory(trace, "pipeline", {"stages": 2, "micro_batches": 2})
    held = edited(trace, "pipeline", stages=2, micro_batches=2)

    assert sorted(set(held["rank"].tolist())) == [0, 1]
    for rank in (0, 1):
        own = held["rank"] == rank
        assert held["bytes"][own & held.where(kind="parameter")].tolist() == [WEIGHT]
    # 1F1B: the first of two stages holds activations of two halves of the batch, the last one's of one
    saved = held.where(kind="activation") & (held["bytes"] > LOSS) & (held["step"] == 1)
    assert {int(r): held["bytes"][saved & (held["rank"] == r)].tolist() for r in (0, 1)} == {0: [64], 1: [32]}
    assert found.after_bytes < found.before_bytes


@pytest.mark.parametrize(("operands", "rounded"), [("weights", WEIGHT), ("both", WEIGHT + LAYER)])
def test_rounded_operands_are_kept_with_a_byte_an_element(trace, operands, rounded):
    before, after = allocations(trace), edited(trace, "quantize", operands=operands)
    now, then = (sum(held_when(each, "aten::mse_loss_backward")) for each in (before, after))
    # x, which the program holds, and a0, which ReLU keeps, are there still
    assert then - now == 2 * (rounded + rounded // 4)
    assert sum(held_when(after, "aten::sqrt")) == sum(held_when(before, "aten::sqrt"))


def test_a_block_is_made_again_when_the_block_behind_it_is_gone(trace):
    held = edited(trace, "checkpointing", layers="blocks.*")

    again = held.where(phase="backward", op=r"aten::addmm$", layer="blocks.0*") & (held["step"] == 1)
    there = held.held_at(held["begin"][again][0]) & (held["begin"] > BEFORE)
    # x, gx, y0 made again; its state of random numbers and the current one; the loss, g1. Neither a0 nor a1
    assert sorted(held["bytes"][there].tolist()) == [LOSS, *[LAYER] * 3, WEIGHT, RANDOM, RANDOM]
