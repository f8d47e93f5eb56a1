"""Phases and layers of host rows, and through them of device rows."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kineto_text import (
    ENGINE,
    MAIN,
    call,
    document,
    kernel,
    note,
    op,
    phases,
    row,
    rows_named,
    training,
    write,
)

from daydream.collect.derive.by_parameter import cut_by_parameter
from daydream.collect.importers import import_trace
from daydream.trace.schema import PHASES

NODE = "autograd::engine::evaluate_function: "


def node(name, ts, dur, number, *, tid=ENGINE):
    """A node of autograd of the forward operator with this number."""
    return op(NODE + name, ts, dur, tid=tid, Sequence_number=number, Fwd_thread_id=1)


def module(name, ts, dur, *, tid=MAIN):
    return row("python_function", f"nn.Module: {name}", ts, dur, tid=tid)


# Phases


def test_phases_of_a_training_step(imported):
    trace = imported(training(3))
    found = phases(trace, "operator", "annotation")
    assert found["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == {"data"}
    assert found["aten::linear"] == {"forward"}
    assert found["aten::mse_loss"] == {"loss"}
    assert found[f"{NODE}AddmmBackward0"] == {"backward"}
    assert found[f"{NODE}torch::autograd::AccumulateGrad"] == {"backward"}
    assert found["Optimizer.step#SGD.step"] == {"optimizer"}
    assert found["aten::add_"] == {"optimizer"}
    assert found["aten::item"] == {"other"}
    assert found["ProfilerStep#1"] == {None}
    on_device = phases(trace, "kernel")
    assert on_device == {
        "ampere_sgemm_32x32_tn": {"forward"},
        "reduce_kernel<float>": {"loss"},
        "mse_backward<float>": {"backward"},
        "ampere_sgemm_32x32_nt": {"backward"},
        "multi_tensor_apply<float>": {"optimizer"},
    }


def test_accumulated_gradients_have_several_forward_passes(imported):
    events = []
    for index in range(2):
        at, seq = 300 * index, index + 1
        events += [
            op("aten::mul", at + 10, 20, Sequence_number=seq),
            op("aten::silu", at + 40, 20),
            node("MulBackward0", at + 100, 50, seq),
        ]
    events += [op("aten::clip", 500, 20), note("Optimizer.step#SGD.step", 600, 50), op("aten::item", 700, 5)]
    found = phases(imported(events), "operator")
    assert found["aten::mul"] == found["aten::silu"] == {"forward"}
    assert found["aten::clip"] == found["aten::item"] == {"other"}


def test_old_names_of_autograd_nodes_are_backward(imported):
    trace = imported(
        [
            op("aten::relu", 0, 10),
            op("ReluBackward1", 50, 20, tid=ENGINE),
            op("aten::threshold_backward", 55, 10, tid=ENGINE),
            op("torch::autograd::AccumulateGrad", 80, 10, tid=ENGINE),
            call("cudaEventQuery", 95, 1, 1, tid=ENGINE),
        ]
    )
    assert {name: phase for name, [phase] in phases(trace, "operator", "runtime").items()} == {
        "aten::relu": "forward",
        "ReluBackward1": "backward",
        "aten::threshold_backward": "backward",
        "torch::autograd::AccumulateGrad": "backward",
        "cudaEventQuery": "backward",
    }


@pytest.mark.parametrize(
    "names", [("forward", "backward", "optimizer"), ("## Forward ##", "## BACKWARD ##", "Optimizer step")]
)
def test_named_ranges_set_the_phase_where_nothing_better_is_known(imported, names):
    events = []
    for index, name in enumerate(names):
        events += [
            note(name, 100 * index, 90),
            call("cudaLaunchKernel", 100 * index + 10, 5, index + 1),
            kernel(f"kernel {index}", 100 * index + 20, 5, index + 1),
        ]
    found = phases(imported(events), "kernel")
    assert found == {"kernel 0": {"forward"}, "kernel 1": {"backward"}, "kernel 2": {"optimizer"}}


# Layers


def test_layers_come_from_module_frames_and_reach_the_backward(imported):
    frames = []
    for step in range(2):
        at = 1000 * step
        frames += [
            module("Net_0", at + 95, 80),
            module("Linear_0", at + 98, 60),
        ]
    trace = imported([*training(2), *frames])
    [line, _] = rows_named(trace, "ampere_sgemm_32x32_tn")
    assert trace.values("layer", [line]) == ["Net_0.Linear_0"]
    for name in (
        "ampere_sgemm_32x32_nt",
        f"{NODE}AddmmBackward0",
        f"{NODE}torch::autograd::AccumulateGrad",
    ):
        assert set(trace.values("layer", rows_named(trace, name))) == {"Net_0.Linear_0"}
    assert set(trace.values("layer", rows_named(trace, "aten::mse_loss"))) == {None}


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_ranges_with_a_whole_path_are_taken_as_they_are(imported, category):
    trace = imported(
        [
            row(category, "nn.Module: encoder", 0, 100),
            row(category, "nn.Module: encoder.layers.0", 10, 80),
            op("aten::linear", 20, 10),
        ]
    )
    assert trace.values("layer", rows_named(trace, "aten::linear")) == ["encoder.layers.0"]
    assert trace.values("kind", rows_named(trace, "encoder")) == ["module"]


def test_a_backward_node_belongs_to_the_last_forward_operator_with_its_number(imported):
    trace = imported(
        [
            module("A_0", 0, 15),
            op("aten::mul", 2, 5, Sequence_number=7),
            module("B_0", 20, 15),
            op("aten::detach", 22, 5, Sequence_number=7),
            node("MulBackward0", 50, 10, 7),
            module("C_0", 70, 15),
            op("aten::later", 72, 5, Sequence_number=7),
        ]
    )
    assert trace.values("layer", rows_named(trace, f"{NODE}MulBackward0")) == ["B_0"]


def test_forward_threads_keep_their_numbers_apart(imported):
    other = MAIN + 50
    events = []
    for seq in range(3):
        events += [
            module(f"Main_{seq}", 10 * seq, 9),
            op("aten::a", 10 * seq + 1, 5, Sequence_number=seq),
            module(f"Other_{seq}", 10 * seq, 9, tid=other),
            op("aten::b", 10 * seq + 1, 5, tid=other, Sequence_number=seq + 1),
        ]
    events += [
        op("NodeBackward0", 100, 5, tid=ENGINE, Sequence_number=0, Fwd_thread_id=1),
        op("NodeBackward0", 110, 5, tid=ENGINE, Sequence_number=3, Fwd_thread_id=2),
    ]
    trace = imported(events)
    assert trace.values("layer", rows_named(trace, "NodeBackward0")) == ["Main_0", "Other_2"]


def test_a_module_that_is_run_again_outside_its_parents_keeps_its_path(imported):
    trace = imported(
        [
            module("Net_0", 0, 50),
            module("Block_0", 5, 40),
            module("Conv2d_0", 10, 20),
            op("aten::conv2d", 12, 5),
            module("Block_0", 105, 40, tid=ENGINE),
            module("Conv2d_0", 110, 20, tid=ENGINE),
            op("aten::conv2d", 112, 5, tid=ENGINE),
        ]
    )
    assert trace.values("layer", rows_named(trace, "aten::conv2d")) == ["Net_0.Block_0.Conv2d_0"] * 2


def test_the_module_hierarchy_argument_names_the_layer(imported):
    trace = imported(
        [
            op("aten::linear", 0, 50, Module_Hierarchy="Net.fc1"),
            op("aten::addmm", 10, 20, Module_Hierarchy=""),
        ]
    )
    assert trace.values("layer", rows_named(trace, "aten::linear")) == ["Net.fc1"]


ADD, MUL, SQRT, STEP = range(4)


def test_parameters_that_take_the_same_operators():
    names = [STEP, MUL, ADD] * 3
    shapes = ["[]", "[4]", "[4]", "[]", "[4]", "[4]", "[]", "[2,4]", "[2,4]"]

    assert cut_by_parameter(names, shapes, [["[4]", "[4]", "[2,4]"]]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_nothing_is_said_of_operators_that_do_not_fit():
    assert cut_by_parameter([ADD, MUL, SQRT], ["[4]", "[4]", "[2]"], [["[4]", "[2]"]]) == []
    factored = [STEP, MUL, SQRT, STEP, ADD]  # of a matrix, then of a vector
    assert cut_by_parameter(factored, ["[]", "[2,4]", "[2,1]", "[]", "[4]"], [["[2,4]", "[4]"]]) == []
    assert cut_by_parameter([ADD, ADD], ["[4]", "[2]"], [["[4]", "[8]"]]) == []
    assert cut_by_parameter([ADD], ["[4]"], [["[4]", "[4]"]]) == []
    assert cut_by_parameter([ADD], ["[4]"], []) == []


LOADER, EACH_US = 102, 1000
SHARED = Path(__file__).parents[3] / "shared" / "traces"
Work = list[tuple[int, str]]  # of one step, in order: thread and kernel


def run(tmp_path, work, *, ranges=None, steps=4):
    """Steps whose launches follow one another, 20 us apart; ranges lie around launches of the main one."""
    events = []
    for step in range(steps):
        at = EACH_US * step
        events.append(note(f"step {step}", at, EACH_US - 10))
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
