"""What is known of the public traces, found again by the importer; skipped where they are not at hand."""

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from daydream.collect.importers import import_trace
from daydream.trace.schema import DEVICE_KINDS

SHARED = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")

STEP_TIMES_MS = {
    "a100_resnet_ddp_rank0of2": [219.8, 225.0],
    "v100_recsys_rank1of2_copy_waits": [117.1, 114.8, 123.1, 116.7, 116.1],
    "mi300x_resnet_ddp_checkpoint_rank0of8": [19.0, 18.6],
    "v100_resnet50_loader_workers_0": [149.6, 149.8, 149.5, 154.3, 154.5],
    "v100_resnet50_loader_workers_4": [122.5, 123.2, 118.6, 119.7, 122.2],
}
# kernels (collectives among them), copies, memsets, device rows without a launch
ROWS = {
    "a100_resnet_ddp_rank0of2": (2700, 960, 114, 0),
    "v100_recsys_rank1of2_copy_waits": (9876, 4856, 900, 614),
    "mi300x_resnet_ddp_checkpoint_rank0of8": (2995, 550, 108, 968),
    "v100_resnet50_loader_workers_0": (8772, 12, 312, 0),
    "v100_resnet50_loader_workers_4": (8868, 12, 378, 0),
    "rtx2080ti_linear_40_iterations": (8716, 0, 1640, 0),
    "rtx2080ti_resnet_30_iterations": (9628, 123, 362, 0),
    "gpu_user_annotation": (130, 10, 0, 0),
    "mi250_toy_training": (14, 2, 0, 0),
    "h100_qwen_0.5b_inference": (1465, 1, 241, 509),
    "mi300x_qwen_0.5b_inference": (1516, 1, 0, 463),
    "mi300x_sglang_decode_graph_replay": (555, 3, 0, 0),
    "vllm_decode_graph_replay": (425, 9, 0, 0),
}


@cache
def imported(name):
    path = SHARED / name if "/" in name else SHARED / "kineto" / f"{name}.json.gz"
    return import_trace([path])


def covered_ms(trace):
    return [step["measured_ns"] / 1e6 for step in trace.metadata["steps"] if step["covered"]]


@pytest.mark.parametrize("name", STEP_TIMES_MS)
def test_step_times_run_from_completion_to_completion(name):
    assert [round(time, 1) for time in covered_ms(imported(name))] == STEP_TIMES_MS[name]


@pytest.mark.parametrize("name", ROWS)
def test_rows_and_orphans(name):
    trace = imported(name)
    kernels, copies, memsets, orphans = ROWS[name]
    assert trace.is_kind("kernel", "collective").sum() == kernels
    assert trace.is_kind("memcpy").sum() == copies
    assert trace.is_kind("memset").sum() == memsets
    assert (trace.is_kind(*DEVICE_KINDS) & (trace["parent"] < 0)).sum() == orphans


def test_the_buckets_of_a_ddp_step():
    trace = imported("a100_resnet_ddp_rank0of2")
    lines = np.flatnonzero(trace.is_kind("collective"))
    found = list(
        zip(
            trace.values("collective", lines),
            trace.values("elements", lines),
            trace.values("dtype", lines),
            strict=True,
        )
    )
    reduced = [elements for name, elements, dtype in found if name == "all_reduce" and dtype == "float32"]
    assert reduced == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040] * 3
    assert sorted(entry for entry in found if entry[0] == "broadcast") == sorted(
        [("broadcast", 53_120, "float32"), ("broadcast", 53, "int64")] * 3
    )
    assert trace.values("bytes", lines[2:3]) == [2_049_000 * 4]
    per_step = Counter(trace.values("step", lines))
    assert per_step == {0: 7, 1: 7, 2: 7}


def test_collectives_without_arguments_get_their_sizes_from_annotations():
    trace = imported("kineto/v100_dlrm_4_of_8_ranks")
    assert trace.metadata["ranks"] == [{"rank": rank} for rank in range(4)]
    assert trace.metadata["world_size"] == 8
    ends = []
    for rank in range(4):
        lines = np.flatnonzero(trace.is_kind("collective") & (trace["rank"] == rank))
        lines = lines[np.argsort(trace["start_ns"][lines])]
        assert trace.values("collective", lines) == ["all_to_all"] * 4 + [
            "all_reduce",
            "all_to_all",
            "all_reduce",
            "all_reduce",
        ]
        assert trace.values("elements", lines) == [6144, 24, 384, 3392, 394_241, 6144, 112, 226_960]
        assert trace.values("dtype", lines) == ["float32", "int64", "int32", "int32"] + ["float32"] * 4
        ends.append(trace["start_ns"][lines] + trace["duration_ns"][lines])
    spread = np.ptp(np.array(ends), axis=0)
    assert spread.max() <= 7_000  # the ranks' clocks agree
    assert [step["covered"] for step in trace.metadata["steps"]] == [True, False, True, False]


def test_a_checkpointed_model_has_layers_in_forward_and_backward():
    trace = imported("mi300x_resnet_ddp_checkpoint_rank0of8")
    assert trace.is_kind("module").sum() == 450
    for phase in ("forward", "backward"):
        lines = np.flatnonzero(trace.is_kind("kernel") & (trace["phase"] == trace.code("phase", phase)))
        named = [layer for layer in trace.values("layer", lines) if layer is not None]
        assert len(named) > 0.95 * len(lines)
        assert all(layer.startswith("DistributedDataParallel_0") for layer in named)


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("v100_resnet50_loader_workers_0", {"data", "forward", "loss", "backward", "optimizer", "other"}),
        ("rtx2080ti_linear_40_iterations", {"forward", "loss", "backward", "optimizer", "other"}),
        ("h100_vit_inference", {"forward"}),
    ],
)
def test_operators_have_phases(name, phases):
    trace = imported(name)
    found = set(trace.values("phase", np.flatnonzero(trace.is_kind("operator"))))
    assert found == phases
    device = trace.is_kind(*DEVICE_KINDS)
    assert (trace["phase"][device] >= 0).all()


@pytest.mark.parametrize("name", ["a100_alexnet_cuda_sync", "a100_simple_add_cuda_sync"])
def test_sync_rows(name):
    trace = imported(name)
    lines = np.flatnonzero(trace.is_kind("sync"))
    assert Counter(trace.values("name", lines)) == {
        "Stream Wait Event": 20,
        "Stream Sync": 16,
        "Context Sync": 5,
    }


@pytest.mark.parametrize(
    "name", ["backward_thread", "triton_example", "gpu_only", "rank_missing", "rank_without_gpu"]
)
def test_odd_traces_are_imported(name):
    trace = imported(f"odd/{name}.json.gz")
    assert len(trace) > 0
    assert trace.metadata["steps"]


@pytest.mark.parametrize(
    ("name", "steps", "median", "p10", "p90", "most"),
    [
        ("rtx2080ti_linear_40_iterations", 39, 24.5, 20.6, 27.0, 59.3),
        ("rtx2080ti_resnet_30_iterations", 29, 171.2, 152.3, 755, 829),
    ],
)
def test_steps_cut_at_the_optimizer(name, steps, median, p10, p90, most):
    trace = imported(name)
    assert trace.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    times = np.array(covered_ms(trace))
    assert len(times) == steps
    assert [np.median(times), times.max()] == pytest.approx([median, most], rel=0.005)
    for share, stated in ((0.1, p10), (0.9, p90)):
        low, high = (np.quantile(times, share, method=method) for method in ("lower", "higher"))
        assert low * 0.995 <= stated <= high * 1.005


def test_a_trace_without_a_device_has_steps():
    trace = imported("odd/cpu_only.json.gz")
    assert covered_ms(trace) == pytest.approx([219.5, 424.3, 210.8, 220.1], abs=0.1)
    assert trace.metadata["vendor"] == "cpu"
