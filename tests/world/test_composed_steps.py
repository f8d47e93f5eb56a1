"""Steps composed of blocks: schedules, launches, collectives and memory, each worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from daydream.costs.network.cluster_names import find_cluster
from daydream.errors import DaydreamError
from daydream.plan import search
from daydream.world import compose as module
from daydream.world.compose import (
    Block,
    Exchange,
    Model,
    Pass,
    Strategy,
    compose,
    peaks,
)
from validation.strategies import Row, b200_rows, blocks_of, ci_rows, judged, megatron_rows

LAYER = Block("layer", Pass(1), Pass(2), parameters=10, input_bytes=1, saved_bytes=8, workspace_bytes=3)


class Free:
    """A cluster whose collectives take a tenth of a ns a byte, messages nothing."""

    gpus_per_node = 8

    def holding(self, world_size):
        """Return it: it is as large as it must be."""
        return self

    def time_ns(self, collective, nbytes, world_size, *, per_node):
        """Return the time."""
        return 0.0 if collective == "send" else nbytes / 10


def model(layers=4, block=LAYER, **how):
    """Return a model of equal layers; 2 + 4 + 12 bytes are kept of a parameter."""
    return Model((block,) * layers, **how)


@pytest.mark.parametrize("micro_batches", [4, 8, 403])
def test_1f1b_waits_for_one_micro_batch_a_stage_that_follows(micro_batches):
    #  stage 3 is first busy after 3 forward passes; stage 0 waits last for 3 backward ones
    found = compose(model(), Strategy(pp=4, micro_batches=micro_batches), Free())
    assert found.step_ns == (micro_batches + 3) * (1 + 2)
    assert found.parts["bubble"] == 3 * (1 + 2)
    assert sum(found.parts.values()) == found.step_ns


def test_two_chunks_a_stage_halve_the_bubble():
    found = compose(model(8), Strategy(pp=4, chunks=2, micro_batches=8), Free())
    assert found.step_ns == 8 * 2 * 3 + 3 * 3


def test_messages_delay_each_stage_that_follows():
    class Slow(Free):
        def time_ns(self, collective, nbytes, world_size, *, per_node):
            return 5.0

    # F, message, F; B, message, B
    assert compose(model(2), Strategy(pp=2), Slow()).step_ns == 1 + 5 + 1 + 2 + 5 + 2


def test_a_block_ends_no_earlier_than_it_is_launched():
    #  thread |    5    |1|        GPU waits for the first block, then works 10 behind it
    #  GPU              |1|      10       |
    slow, long = Block("a", Pass(1, 5), Pass(0)), Block("b", Pass(10, 1), Pass(0))
    found = compose(Model((slow, long)), Strategy(), Free())
    assert found.step_ns == 5 + 10
    assert found.parts["launch"] == 15 - 11


def test_a_thread_runs_ahead_over_passes_unless_it_waits():
    block = Block("layer", Pass(1, 4), Pass(9, 4))
    ahead = compose(Model((block,)), Strategy(micro_batches=2), Free())
    assert ahead.step_ns == 4 + 9 + 1 + 9  # launched beside the backward pass
    waits = compose(Model((block,), synchronous=True), Strategy(micro_batches=2), Free())
    assert waits.step_ns == 2 * (4 + 9)


def test_collectives_of_a_block_are_waited_for():
    block = replace(LAYER, forward=Pass(1, 0, (Exchange("tp", "all_reduce", 30, 2),)))
    found = compose(model(1, block), Strategy(tp=2), Free())
    assert (found.step_ns, found.parts["tp"]) == (1 + 2 * 3 + 2, 6)
    beside = replace(LAYER, backward=Pass(9, 0, (Exchange("tp", "all_reduce", 30, 2, beside_ns=2),)))
    assert compose(model(1, beside), Strategy(tp=2), Free()).parts["tp"] == 2 * (3 - 2)
    assert compose(model(1, block), Strategy(), Free()).step_ns == 3  # alone there is nothing to exchange


def test_gradients_follow_the_backward_pass_or_hide_in_it():
    one = replace(LAYER, backward=Pass(20))
    after = compose(model(2, one), Strategy(dp=2), Free())
    assert after.parts["gradients"] == 2 * 10 * 4 / 10
    beside = compose(model(2, one), Strategy(dp=2, overlap=True), Free())
    assert beside.parts["gradients"] == 2 * 10 * 4 / 10 / 2  # of the last block
    sharded = compose(model(2, one), Strategy(dp=2, sharded_optimizer=True), Free())
    assert sharded.parts["gradients"] == 2 * 10 * (4 + 2) / 10


def test_the_optimizer_updates_what_a_gpu_keeps():
    how = {"optimizer_ns": 0.5}
    assert compose(model(2, **how), Strategy(dp=4), Free()).parts["optimizer"] == 20 * 0.5
    sharded = Strategy(dp=4, sharded_optimizer=True)
    assert compose(model(2, **how), sharded, Free()).parts["optimizer"] == 20 * 0.5 / 4


def test_fsdp_gathers_ahead_of_blocks_and_waits_for_the_first(monkeypatch):
    #  a block's 10 parameters of 2 bytes are gathered, its gradients of 4 reduced
    block = replace(LAYER, forward=Pass(50), backward=Pass(50))
    monkeypatch.setattr(module, "SHARDING_NS", (0, 0))
    found = compose(model(2, block), Strategy(fsdp=2), Free())
    assert found.step_ns == (2 + 50 + 50) * 2
    assert found.parts["fsdp"] == 4
    # hooks and launches of each block, before its forward pass and around its backward pass
    monkeypatch.setattr(module, "SHARDING_NS", (300, 400))
    launched = compose(model(2, block), Strategy(fsdp=2), Free())
    assert launched.step_ns == 2 * 300 + 2 * 400


def test_memory_of_1f1b_is_of_as_many_micro_batches_as_stages_follow():
    kept = 10 * (2 + 4 + 12)
    assert peaks(model(), Strategy(pp=4, micro_batches=8)) == tuple(kept + n * 8 + 3 for n in (4, 3, 2, 1))
    # interleaved: 2 (p - s - 1) + (v - 1) p + 1 chunks
    chunks = peaks(model(8), Strategy(pp=4, chunks=2, micro_batches=8))
    assert chunks == tuple(2 * kept + n * 8 + 3 for n in (11, 9, 7, 5))


def test_memory_of_shards_and_of_checkpointing():
    whole = 20 * (2 + 4)
    assert peaks(model(2), Strategy(dp=4, sharded_optimizer=True)) == (whole + 20 * 12 / 4 + 2 * 8 + 3,)
    again = Strategy(checkpointing=True)
    assert peaks(model(2), again) == (20 * 18 + 2 * 1 + 8 + 3,)
    assert compose(model(2), again, Free()).step_ns == 2 * (1 + 1 + 2)
    sharded = 20 * 18 / 2 + 10 * (2 * 2 + 4)  # one block whole, the next one coming
    assert peaks(model(2), Strategy(fsdp=2)) == (sharded + 2 * 8 + 3,)


def test_experts_have_as_many_replicas_fewer_as_ranks_divide_them():
    block = replace(LAYER, expert_parameters=100)
    one = Strategy(dp=8, ep=4, sharded_optimizer=True)
    kept = 110 * (2 + 4) + 10 * 12 / 8 + 100 * 12 / 2
    assert peaks(model(1, block), one) == (kept + 8 + 3,)


@pytest.mark.parametrize("strategy", [
    Strategy(dp=4, tp=2, micro_batches=4), Strategy(pp=4, dp=4, micro_batches=8, overlap=True),
    Strategy(fsdp=16), Strategy(pp=2, tp=8, chunks=2, micro_batches=4),
])  # fmt: skip
def test_more_bandwidth_is_never_slower(strategy):
    block = Block(
        "layer", Pass(1e6, 5e5, (Exchange("tp", "all_reduce", 1e7, 2),)), Pass(2e6), 1e8, input_bytes=1e7
    )
    cluster = find_cluster("dgx-h100")
    steps = [compose(model(8, block), strategy, cluster.scaled(bandwidth=by)).step_ns for by in (0.25, 1, 4)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[2]


@pytest.mark.parametrize(("layers", "strategy", "words"), [
    (3, Strategy(pp=2), "pp does not divide the layers"),
    (8, Strategy(pp=2, chunks=2, micro_batches=3), "stages that divide the micro-batches"),
    (4, Strategy(dp=2, ep=4), "ep does not divide the GPUs"),
])  # fmt: skip
def test_what_does_not_divide_is_refused(layers, strategy, words):
    with pytest.raises(DaydreamError, match=words):
        compose(model(layers), strategy, Free())


@pytest.mark.slow  # a process that imports torch
def test_blocks_of_an_emulated_script():
    """Layers of Megatron-LM on two ranks: their sums are hidden by products of the weights' gradients."""
    pytest.importorskip("torch", reason="emulation needs torch")
    row = Row(
        "", "", 1, ("--hidden=256", "--heads=8", "--sequence=64", "--vocabulary=512"), (4,), run="vtrain"
    )
    row.strategy = search.Strategy(tp=2)
    first, layer, last = blocks_of(row.shape)
    assert [block.is_layer for block in (first, layer, last)] == [False, True, False]
    # Halves of 12 matrices with their biases; norms and the biases behind sums are whole.
    assert layer.parameters == 12 * 256**2 / 2 + (3 + 4) * 256 / 2 + 6 * 256
    assert layer.input_bytes == 64 * 256 * 2
    assert layer.forward.exchanges == (Exchange("tp", "all_reduce", 64 * 256 * 2, 2),)
    assert all(one.beside_ns > 0 for one in layer.backward.exchanges)
    assert layer.forward.cpu_ns == 14 * 58_000  # operators with a kernel
    assert layer.backward.gpu_ns > layer.forward.gpu_ns > 0


# How predictions of strategies are judged, and what the tables' names tell


def test_predictions_are_judged_by_error_order_and_regret():
    rows = [Row(str(ms), "one", ms) for ms in (10.0, 20.0, 30.0, 40.0, 50.0)]
    rows += [Row(str(ms), "two", ms) for ms in (10.0, 12.0)]
    found = judged(rows, np.array([5.0, 15.0, 10.0, 20.0, 25.0, 6.0, 5.0]), np.zeros(7))
    assert found["scale"] == pytest.approx(2)  # of the first row
    one, two = found["groups"]
    assert one["spearman"] == pytest.approx(
        0.9
    )  # 1 - 6 (1 + 1) / (5 * 24): the second and the third changed places
    assert (one["regret"], two["regret"]) == (0, pytest.approx(0.2))
    assert two["best_predicted"] == "12.0"
    assert found["median_group_spearman"] == pytest.approx(0.9)  # a group of two does not count
    assert found["unscaled_median_error"] == 0.5


def test_names_tell_strategies():
    case = {"case": "llama3_70b_l12_tp2_cp4_pp1_dp1_seq32768_mbc4_cef", "model": "llama3-70b", "layers": "12"}
    (row,) = b200_rows([{**case, "real_ms": "1758", "real_allocated_gib": "68.43"}])
    assert row.strategy == search.Strategy(tp=2, cp=4, micro_batches=4, sharded_optimizer=True)
    assert row.script == ("--model=llama3-70b", "--sequence=32768")
    test = {"suite": "gpt", "golden": "golden_values_dev_dgx_h100.json", "iter_s": "0.1", "mem_max": ""}
    name = "gpt3_mcore_te_tp1_pp4_vp1_dist_optimizer_overlap_grad_reduce"
    known, unknown = ci_rows([{**test, "case": name}, {**test, "case": "t5_release"}])
    assert (known.run, known.layers, "--flash" in known.script) == ("h100", [12], False)
    assert known.strategy == search.Strategy(
        dp=2, pp=4, micro_batch=4, micro_batches=4, chunks=3, sharded_optimizer=True, overlap=True
    )
    assert "model_config.yaml" in unknown.why_not
    (shared,) = ci_rows([{**test, "case": "gpt3_mcore_te_tp2_pp1_resume_torch_dist_cp2_nondeterministic"}])
    assert shared.strategy == search.Strategy(dp=2, tp=2, cp=2, micro_batch=4, micro_batches=4)
    assert "--flash" in shared.script
    (both,) = ci_rows([{**test, "case": "t5_mcore_tp4_pp1", "golden": "golden_values_lts.json"}])
    assert (both.run, both.layers) == ("a100", [12, 12])
    (few,) = ci_rows(
        [{**test, "case": "bert_mcore_tp1_pp2_1node", "golden": "golden_values_dev_dgx_gb200.json"}]
    )
    assert few.strategy == search.Strategy(dp=2, pp=2, micro_batch=4, micro_batches=16)
    table = {
        "# GPUs": "8", "global batch": "16", "micro batch": "2", "hidden size": "1024", "# layers": "12",
        "tensor parallelism": "2", "data parallelism": "2", "pipeline parallelism": "2",
        "attention heads": "16", "sequence length": "1024", "iteration time (ms)": "100",
    }  # fmt: skip
    (one,) = megatron_rows([table])
    assert one.strategy == search.Strategy(dp=2, tp=2, pp=2, micro_batch=2, micro_batches=4)
    (many,) = megatron_rows([{**table, "Parameters (billion)": "3.6"}])
    assert many.strategy.checkpointing
