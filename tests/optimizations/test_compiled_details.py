"""Compiled code on a CPU: attention, masks behind graph breaks, and layouts of convolutions, by hand."""

from __future__ import annotations

import pytest
from daydream.optimizations.compile import compile as compile_
from recorded import Program
from test_compiled_on_a_cpu import ACTIVATION, PRODUCT, ROWS, WIDE, call

from daydream.model.compiled_kernels import LEAST, READ_NS, STORE_NS, WHOLE, channels_last_factors, masks_ns


def test_attention_that_torch_writes_out_is_taken_apart():
    program = Program()
    heads = [[16, 20, 20], [16, 20, 20]]
    call(program, "aten::_scaled_dot_product_attention_math", "forward", 1_000, None,
         ("aten::bmm", "forward", 20_000, heads),
         ("aten::_softmax", "forward", 90_000, [[16, 20, 200], [], []]),
         ("aten::bmm", "forward", 20_000, heads))  # fmt: skip
    graph = program.graph(vendor="cpu")
    compile_(graph)
    forward = graph.select(phase="forward").where(lambda tasks: tasks.duration_ns > 0)
    assert forward.name.tolist() == [
        "guards and wrappers", "aten::bmm", "fused loop", "aten::bmm", "wrappers",
    ]  # fmt: skip


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


@pytest.mark.parametrize(("behind", "reads"), [(None, 1), ("norm", 2), ("norm, product, sum, norm", 4)])
def test_a_mask_is_read_in_each_pass_over_the_gradient_that_it_cuts(behind, reads):
    program = Program()
    calls = {
        "norm": ("aten::native_layer_norm_backward", [*(ACTIVATION * 2), [], [], [], [WIDE], [WIDE], []]),
        "product": ("aten::mm", PRODUCT[1:3]),
        "sum": ("aten::add", [*(ACTIVATION * 2), []]),
    }
    with program.range("aten::relu", "operator", phase="forward", op="aten::relu", layer="a", sequence=7):
        call(program, "aten::clamp_min", "forward", 20_000, ACTIVATION)
    with program.range("ReluBackward0", "operator", phase="backward", layer="a", sequence=7):
        call(program, "aten::threshold_backward", "backward", 20_000, [*(ACTIVATION * 2), []])
    for each in (behind or "").split(", ") if behind else []:
        name, shapes = calls[each]
        call(program, name, "backward", 20_000, shapes)
    graph = program.graph(vendor="cpu")
    tasks = graph.select(phase=("forward", "backward"))
    added = masks_ns(tasks, tasks.where(within="mm$"))
    backward = added[graph.select(phase="backward").ids].sum()
    assert backward == pytest.approx(reads * READ_NS * ROWS * WIDE)


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


def test_a_convolution_of_a_series_keeps_its_layout():
    program = Program()
    call(program, "aten::convolution", "forward", 9_000, [[4, 20, 12], [20, 20, 3]])
    assert channels_last_factors(program.graph(vendor="cpu").select(phase="forward")).tolist() == [1]
