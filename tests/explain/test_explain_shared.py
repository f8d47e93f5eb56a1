"""What public traces suffer from, as `explain` tells it, each claim held against a what-if."""

import gzip
import shutil
from functools import cache

import pytest
from report.test_shared_screens import TRACES
from shared import shared_replay, shared_trace, view_text

import daydream
from daydream.report.views.explanation import beside, verdict


@cache
def explained(name):
    return daydream.explain(shared_replay(name))


def found(explanation, sort):
    return next(each for each in explanation.avoidable if each.sort == sort)


@pytest.fixture(scope="module")
def forward_passes(tmp_path_factory):
    """The explained trace of a GPU-bound model that a fast CPU launches."""
    packed = shared_trace("nsys/a100_gpt2.7b_forward_eager.sqlite.gz")
    path = tmp_path_factory.mktemp("nsys") / "trace.sqlite"
    with gzip.open(packed) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return daydream.explain(path)


def test_launch_calls_of_a_gpu_bound_model_are_queue_wait(forward_passes):
    launching = forward_passes.launch_calls

    assert forward_passes.bound == "GPU"
    assert launching.queue_wait_ns > 0.9 * launching.total_ns
    assert verdict(forward_passes).startswith("GPU-bound; most of the time in launch calls (")
    # The launches are no work: without any CPU cost nothing is saved, and with a device that
    # takes no time the waiting is gone.
    assert forward_passes.without_cpu.saving_ns < 0.001 * forward_passes.replayed_ns
    alone = daydream.explain(forward_passes.replay, "scale", on="gpu", factor=0.0)
    assert alone.launch_calls.queue_wait_ns < 0.01 * launching.queue_wait_ns
    assert alone.bound == "CPU"


def test_the_recommender_blocks_in_copies_from_the_device():
    explanation = explained("kineto/v100_recsys_rank1of2_copy_waits.json.gz")
    copies = [each for each in explanation.avoidable if each.sort == "blocking copies from the device"]

    assert {each.label for each in copies} == {"aten::copy_", "aten::_local_scalar_dense"}
    blocked = sum(each.cost_ns for each in copies)
    assert blocked > 0.2 * explanation.replayed_ns
    # Without these waits the calls stand no more; the device was busy meanwhile, so the step gains little.
    which = "aten::copy_|_local_scalar_dense"
    free = daydream.explain(explanation.replay, "remove-sync", which=which)
    assert free.synchronization_wait_ns < 0.05 * blocked
    assert sum(each.saving_ns for each in copies) < 0.05 * explanation.replayed_ns
    assert explanation.bound == "GPU"


def test_loading_without_workers_is_on_the_critical_path():
    explanation = explained("kineto/v100_resnet50_loader_workers_0.json.gz")
    loading = found(explanation, "data loading")

    assert "DataLoader" in loading.label
    assert loading.cost_ns > 0.15 * explanation.replayed_ns
    assert "29.5% data loading" in verdict(explanation)
    hidden = daydream.whatif(explanation.replay, "dataloader")
    # Three quarters of it as recorded; without the profiler the device is busy sooner.
    assert loading.saving_ns == hidden.replayed_ns - hidden.predicted_ns > 0.5 * loading.cost_ns
    recorded = hidden.recorded
    assert recorded.replayed_ns - recorded.predicted_ns > 0.75 * loading.cost_ns
    after = daydream.explain(explanation.replay, "dataloader")
    assert after.share("data loading") < 0.1 * explanation.share("data loading")


def test_the_all_reduce_of_a_cpu_bound_step_is_hidden_behind_the_cpu():
    explanation = explained("kineto/a100_resnet_ddp_rank0of2.json.gz")
    communication = explanation.communication

    assert communication.total_ns > 10_000_000
    assert communication.exposed_ns == 0
    assert communication.behind[0].cause == "launch-bound CPU"
    assert "all of it hidden" in " ".join(beside(explanation))
    assert daydream.whatif(explanation.replay, "scale", kind="collective", factor=0.0).speedup == 1
    # Once the CPU no longer launches each kernel, the collectives are on the critical path.
    graphs = daydream.explain(explanation.replay, "cuda-graphs")
    assert graphs.communication.exposed_ns > 0


def test_the_function_that_a_synchronization_stands_in_is_named_where_frames_were_recorded():
    explanation = explained("kineto/mi300x_bert_small_inference.json.gz")
    wait = found(explanation, "synchronization")

    assert wait.source.endswith("_attn_mask_utils.py(429): _prepare_4d_attention_mask_for_sdpa")
    assert wait.source in " ".join(view_text(explanation, verbose=True).split())
    alone = daydream.whatif(explanation.replay, "remove-sync", which="^aten::_local_scalar_dense$")
    assert wait.saving_ns == alone.replayed_ns - alone.predicted_ns > 0
    # Without frames operator and phase are named.
    without = found(
        explained("kineto/v100_resnet50_loader_workers_0.json.gz"), "blocking copies to the device"
    )
    assert without.source is None
    assert (without.label, without.phase) == ("aten::copy_", "forward")


def test_a_rank_that_the_others_wait_for_is_named():
    explanation = explained("kineto/v100_dlrm_4_of_8_ranks")
    waited = found(explanation, "stragglers")

    # As recorded it is rank 2; without the profiler rank 3 has most of the path that lies elsewhere.
    assert waited.label == "rank 3"
    assert set(waited.selected.rank.tolist()) <= {0, 1, 2, 3}
    alone = daydream.whatif(explanation.replay, "no-stragglers")
    assert waited.saving_ns == alone.replayed_ns - alone.predicted_ns
    after = daydream.explain(explanation.replay, "no-stragglers")
    assert not [each for each in after.avoidable if each.sort == "stragglers"]


@pytest.mark.parametrize("name", TRACES.values())
def test_shares_add_up(name):
    explanation = explained(name)

    assert abs(sum(each.ns for each in explanation.causes) - explanation.step_ns) <= len(explanation.causes)
    assert all(len(each.selected) for each in explanation.causes)


def test_a_lane_takes_no_longer_than_the_step_and_what_breaks_a_graph_is_named():
    replay = shared_replay("cases/cpu_moe_data_dependent_ops.json.gz")
    assert max(curve.own_ns for curve in daydream.curves(replay)) == replay.basis_ns
    with pytest.raises(daydream.NotApplicableError, match=r"item, .*masked_select"):
        daydream.whatif(replay, "compile")


def test_communication_beside_kernels_saves_less_than_its_share():
    explanation = explained("kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz")

    assert explanation.share("exposed communication") > 0.5
    assert explanation.without_communication.saving_ns < 0.5 * explanation.communication.exposed_ns
    assert explanation.bound == "GPU"
    assert "(then limited by other work)" in " ".join(view_text(explanation, verbose=True).split())
