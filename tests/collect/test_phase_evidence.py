"""Phases where no autograd range was recorded: by thread, by ranges of the program, by names of kernels."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kineto_text import ENGINE, MAIN, call, document, kernel, note, write

from daydream.collect.importers import import_trace
from daydream.trace.schema import PHASES

LOADER, STEP = 102, 1000
SHARED = Path(__file__).parents[3] / "shared" / "traces"
Work = list[tuple[int, str]]  # of one step, in order: thread and kernel


def run(tmp_path, work, *, ranges=None, steps=4):
    """Steps whose launches follow one another, 20 us apart; ranges lie around launches of the main one."""
    events = []
    for step in range(steps):
        at = STEP * step
        events.append(note(f"step {step}", at, STEP - 10))
        for name, (first, last) in (ranges or {}).items():
            events.append(note(name, at + 20 * first + 5, 20 * (last - first) + 18))
        for place, (thread, name) in enumerate(work):
            number = 100 * step + place + 1
            events.append(call("cudaLaunchKernel", at + 20 * place + 10, 5, number, tid=thread))
            events.append(kernel(name, at + 20 * place + 20, 10, number))
    return import_trace([write(tmp_path / "trace.json", document(events))])


def told(trace, step=2):
    """Return the kernels of a step and their phases, in order."""
    rows = np.flatnonzero(trace.is_kind("kernel") & (trace["step"] == step))
    return list(zip(trace.values("name", rows), trace.values("phase", rows), strict=True))


FORWARD = [(MAIN, "gemm"), (MAIN, "relu"), (MAIN, "gemm")]
UPDATE = [
    (MAIN, "multi_tensor_apply_kernel<Lists>"),
    (MAIN, "fill"),
    (MAIN, "multi_tensor_apply_kernel"),
]
SIX = ["forward"] * 3 + ["backward"] * 4 + ["optimizer"] * 3


def test_a_thread_that_the_update_follows_is_the_autograd_engine(tmp_path):
    trace = run(tmp_path, [*FORWARD, *[(ENGINE, "gemm")] * 4, *UPDATE])
    assert [phase for _, phase in told(trace)] == SIX
    assert trace.metadata["phases_assumed"] == 0


def test_a_thread_that_runs_in_ranges_named_backward_is_the_engine(tmp_path):
    work = [*FORWARD, *[(ENGINE, "gemm")] * 4, (MAIN, "add")]
    trace = run(tmp_path, work, ranges={"Forward": (0, 2), "Backward": (3, 6)})
    assert [phase for _, phase in told(trace)] == ["forward"] * 3 + ["backward"] * 4 + ["other"]


def test_a_loader_that_launches_is_no_engine(tmp_path):
    work = [*FORWARD, *[(ENGINE, "gemm")] * 4, *UPDATE, (LOADER, "flip"), (LOADER, "flip")]
    trace = run(tmp_path, work)
    assert [phase for _, phase in told(trace)][:10] == SIX
    assert [phase for name, phase in told(trace) if name == "flip"] != ["backward"] * 2


def test_transposed_convolutions_on_the_calling_thread_are_forward(tmp_path):
    forward = [(MAIN, "implicit_gemm_dgrad"), (MAIN, "relu"), (MAIN, "implicit_gemm_dgrad")]
    backward = [(ENGINE, "wgrad"), (ENGINE, "gemm"), (ENGINE, "wgrad"), (ENGINE, "gemm")]
    assert [phase for _, phase in told(run(tmp_path, [*forward, *backward, *UPDATE]))] == SIX
    alone = run(tmp_path, forward)
    assert {phase for _, phase in told(alone)} == {"forward"}


def test_one_thread_is_told_by_names_of_kernels(tmp_path):
    names = ["gemm", "relu", "gemm", "relu_backward", "gemm", "conv_wgrad", "igemm_wrw"]
    trace = run(tmp_path, [*((MAIN, name) for name in names), *UPDATE])
    assert [phase for _, phase in told(trace)] == SIX


def test_the_program_s_own_range_counts_for_more_than_lists(tmp_path):
    work = [*FORWARD, *[(ENGINE, "gemm")] * 4, *UPDATE]
    trace = run(tmp_path, work, ranges={"forward": (0, 2), "backward": (3, 9)})
    assert Counter(phase for _, phase in told(trace)) == {"forward": 3, "backward": 7}
    adam = [*FORWARD, *[(ENGINE, "gemm")] * 4, (MAIN, "multi_tensor_apply_kernel<FusedAdamFunctor>")]
    trace = run(tmp_path, adam, ranges={"forward": (0, 2), "backward": (3, 7)})
    assert Counter(phase for _, phase in told(trace))["optimizer"] == 1


def test_lambda_is_no_optimizer(tmp_path):
    trace = run(tmp_path, [(MAIN, "multi_tensor_apply<fused_lambda>"), (MAIN, "add<lambda()#1>")])
    assert {phase for _, phase in told(trace)} == {"forward"}


def test_device_work_without_a_launch_is_told_by_its_name(tmp_path):
    events = [
        call("cudaLaunchKernel", 0, 5, 1), kernel("gemm", 10, 5, 1),
        kernel("norm_backward", 20, 5, 77), kernel("FusedAdam", 30, 5, 78), kernel("gemm", 40, 5, 79),
    ]  # fmt: skip
    trace = import_trace([write(tmp_path / "trace.json", document(events))])
    rows = np.flatnonzero(trace.is_kind("kernel"))
    assert trace.values("phase", rows) == ["forward", "backward", "optimizer", None]


@pytest.mark.parametrize(
    ("name", "backward"),
    [
        ("nsys/rtx3070ti_transformer_training_nvtx", (0.42, 0.46)),
        ("pairs/vit_a100/4workers", (0.68, 0.74)),
        ("pairs/a10_gpt_small/small_1024", (0.5, 0.6)),
        ("pairs/unet3d_a100/4gpu_nobroadcast", (0.45, 0.55)),
    ],
)
def test_shared_nsys_traces_have_a_backward_pass(name, backward):
    path = SHARED / f"{name}.sqlite.gz"
    if not path.exists():
        pytest.skip(f"the shared trace {name} is not here")
    trace = import_trace([path])
    rows = trace.is_kind("kernel")
    time = trace["duration_ns"][rows].astype(float)
    share = time[trace["phase"][rows] == PHASES.index("backward")].sum() / time.sum()
    assert backward[0] <= share <= backward[1]
