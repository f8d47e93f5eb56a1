"""Phases and layers of host rows, and through them of device rows."""

import pytest
from kineto_text import (
    ENGINE,
    MAIN,
    call,
    kernel,
    note,
    op,
    phases,
    row,
    rows_named,
    training,
)

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


def test_a_range_named_backward_that_holds_the_loss_leaves_it_to_the_loss(imported):
    trace = imported(
        [
            note("## backward ##", 0, 500),
            op("aten::cross_entropy_loss", 10, 50, Sequence_number=1),
            node("NllLossBackward0", 100, 50, 1),
        ]
    )
    assert phases(trace, "operator")["aten::cross_entropy_loss"] == {"loss"}


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
