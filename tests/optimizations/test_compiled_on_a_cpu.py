"""Compiled code on a CPU: what stays, what becomes a loop, and what it costs beside its calculation."""

import json

import pytest
from daydream.optimizations.compile import compile as compile_
from graph.small_graphs import names
from recorded import Program, does_not_apply
from shapes import dims

from daydream.costs.device.call_scaling import cpu_overheads
from daydream.model.compiled_calls import (
    FUSED_LOOP_NS,
    LEAST,
    STORE_NS,
    WHOLE,
    channels_last_factors,
    fused_bodies_ns,
    masks_ns,
)

ROWS, WIDE = 64, 256  # activations of 64 KB: large enough that an operator on them has a body
ACTIVATION = [[ROWS, WIDE]]
PRODUCT = [[WIDE], [ROWS, WIDE], [WIDE, WIDE], [], []]
PYTHON = 5_000


def call(program, name, phase, ns, shapes=None, *inner, layer="body"):
    """Record an operator that takes `ns` by itself behind its inner calls, and Python behind it."""
    with program.range(
        name,
        "operator",
        phase=phase,
        op=name,
        shapes=shapes and json.dumps(dims(shapes)),
        dtype="float32",
        layer=layer,
    ):
        for each in inner:
            call(program, *each, layer=layer)
            program.now -= PYTHON
        program.now += ns
    program.now += PYTHON


def perceptron(**columns):
    """A linear layer, two element-wise calls, a view; a loss; their backward pass; an update."""
    program = Program()
    call(program, "aten::linear", "forward", 2_000, ACTIVATION,
         ("aten::t", "forward", 1_000), ("aten::addmm", "forward", 100_000, PRODUCT), **columns)  # fmt: skip
    call(program, "aten::sigmoid", "forward", 20_000, ACTIVATION, **columns)
    call(program, "aten::tanh", "forward", 30_000, ACTIVATION, **columns)
    call(program, "aten::view", "forward", 1_000, ACTIVATION, **columns)
    call(program, "aten::mse_loss", "loss", 9_000, ACTIVATION * 2, layer="loss")
    call(program, "MseLossBackward0", "backward", 9_000, None, layer="loss")
    call(program, "TanhBackward0", "backward", 1_000, None,
         ("aten::tanh_backward", "backward", 30_000, ACTIVATION * 2), **columns)  # fmt: skip
    call(program, "AddmmBackward0", "backward", 1_000, None,
         ("aten::mm", "backward", 100_000, PRODUCT[1:3]), **columns)  # fmt: skip
    call(program, "torch::autograd::AccumulateGrad", "backward", 3_000, None, **columns)
    for _ in range(9):
        call(program, "aten::add_", "optimizer", 4_000, "8 8 -", layer=None)
    return program.graph(vendor="cpu")


def test_library_calls_stay_and_what_lies_between_becomes_a_loop():
    graph = perceptron()
    loss = graph.select(layer="loss").duration_ns.tolist()
    compile_(graph)
    assert names(graph.select(phase="forward")) == "guards and wrappers, aten::addmm, fused loop, wrappers"
    assert names(graph.select(phase="backward", layer="body")) == (
        "guards and wrappers, fused loop, aten::mm, wrappers, torch::autograd::AccumulateGrad"
    )
    assert graph.select(layer="loss").duration_ns.tolist() == loss
    assert len(graph.select(phase="optimizer")) == 9


def test_a_loop_has_the_work_of_its_parts_without_their_overheads_and_intermediates():
    graph = perceptron()
    parts = graph.select(phase="forward", op=r"sigmoid|tanh")
    loops = parts.stretches(graph.select(op="mse_loss"))
    overheads, _ = cpu_overheads(graph, parts)
    bodies = (parts.duration_ns - overheads).sum()
    assert bodies > 0
    # both read and write as much: of four passes two are left
    assert fused_bodies_ns(graph, loops).tolist() == pytest.approx([bodies * 2 / 4])
    compile_(graph)
    (loop,) = graph.select(name="fused loop", phase="forward").duration_ns.tolist()
    assert loop == pytest.approx(FUSED_LOOP_NS + bodies / 2, abs=1)


@pytest.mark.parametrize(
    ("behind", "shapes", "stored"),
    [
        ("aten::addmm", PRODUCT, False),
        ("aten::native_layer_norm", [[ROWS, WIDE], [], [WIDE], [WIDE], []], False),
        ("aten::mean", ACTIVATION, True),
        (None, None, True),
    ],
)
def test_a_mask_is_stored_where_nothing_keeps_what_a_relu_returns(behind, shapes, stored):
    program = Program()
    call(program, "aten::relu", "forward", 1_000, None, ("aten::clamp_min", "forward", 20_000, ACTIVATION))
    if behind:
        call(program, behind, "forward", 50_000, shapes)
    graph = program.graph(vendor="cpu")
    tasks = graph.select(phase="forward")
    added = masks_ns(tasks, tasks.where(within="addmm"))
    assert added.sum() == pytest.approx(STORE_NS * ROWS * WIDE if stored else 0)


@pytest.mark.parametrize("layer", ["lstm", None])
def test_nothing_left_to_compile_is_refused(layer):
    program = Program()
    call(program, "aten::lstm", "forward", 90_000, None, layer=layer)
    call(program, "aten::tanh", "forward", 20_000, ACTIVATION, layer=layer and "act")
    does_not_apply("LSTM, GRU, RNN", compile_, program.graph(vendor="cpu"))


# Attention, masks behind graph breaks, layouts of convolutions


@pytest.mark.parametrize(("breaks", "share"), [(0, 0.0), (1, 0.5), (2, 1.0), (5, 1.0)])
def test_behind_a_break_a_mask_is_stored_though_a_product_keeps_the_output(breaks, share):
    program = Program()
    for place in range(3):  # two places between products
        call(program, "aten::addmm", "forward", 50_000, PRODUCT)
        if place < 2:
            call(program, "aten::relu", "forward", 1_000, None,
                 ("aten::clamp_min", "forward", 20_000, ACTIVATION))  # fmt: skip
    graph = program.graph(vendor="cpu")
    tasks = graph.select(phase="forward")
    added = masks_ns(tasks, tasks.where(within="addmm"), breaks)
    assert added.sum() == pytest.approx(2 * share * STORE_NS * ROWS * WIDE)


@pytest.mark.parametrize(
    ("channels", "left"),
    [(16, WHOLE["forward"]), (20, LEAST), (28, WHOLE["forward"]), (24, 0.75), (5, LEAST)],
)
def test_a_convolution_channels_last_pads_no_channels(channels, left):
    program = Program()
    shapes = [[4, channels, 12, 12], [channels, channels, 3, 3], [], [], [], [], [], [], []]
    call(program, "aten::convolution", "forward", 1_000, shapes,
         ("aten::mkldnn_convolution", "forward", 90_000, shapes))  # fmt: skip
    call(program, "aten::mm", "forward", 9_000, PRODUCT[1:3])
    tasks = program.graph(vendor="cpu").select(phase="forward")
    found = channels_last_factors(tasks)
    by_op = dict(zip(tasks.op.tolist(), found.tolist(), strict=True))
    assert by_op["aten::mkldnn_convolution"] == pytest.approx(left)
    assert by_op["aten::mm"] == 1
