"""Random numbers in compiled code on a CPU: what drawing them takes replaces what torch took."""

import pytest
from graph.small_traces import op, trace

from daydream import build
from daydream.model.compiled_calls import (
    DRAW_NS,
    FUSED_LOOP_NS,
    READ_DRAWN_NS,
    SEEDS_NS,
    compile_cpu_calls,
    random_numbers_ns,
)

ONE, TWO = "[[10,100],[],[]]", "[[10,100],[10,100]]"


def dropped(draw="aten::bernoulli_", *, ahead=None, behind=None):
    """Return the graph of a dropout of 1,000 elements, forward and backward: 10 us to draw, 4 to multiply.

    With a softmax ahead of it, or a normalization behind: no product is between them.
    """
    rows = [
        op("aten::dropout", 10, 30, phase="forward", shapes=ONE, dtype="float", sequence=7),
        op(draw, 12, 22, phase="forward", shapes=ONE, dtype="float", sequence=7),
        op("aten::mul", 24, 28, phase="forward", shapes=TWO, dtype="float", sequence=7),
        op("MulBackward0", 50, 56, phase="backward", shapes="[[10,100]]", dtype="float", sequence=7),
        op("aten::mul", 51, 55, phase="backward", op="aten::mul", shapes=TWO, dtype="float"),
    ]
    if ahead:
        rows += [op(ahead, 2, 8, phase="forward", shapes=ONE, dtype="float", sequence=6)]
        rows += [op(f"{ahead}_backward_data", 60, 66, phase="backward", shapes=TWO, dtype="float")]
    if behind:
        rows += [op(behind, 32, 38, phase="forward", shapes=ONE, dtype="float", sequence=8)]
    return build(trace(*rows, steps=(0, 80)))


def drawn_ns(graph):
    """Return what random numbers add to forward and to backward."""
    cpu = graph.select(kind="cpu", phase=("forward", "backward"))
    added = random_numbers_ns(cpu, cpu.of(cpu.ids[:0], cpu.words))
    return [added[cpu.where(phase=phase).ids].sum() for phase in ("forward", "backward")]


@pytest.mark.parametrize(
    ("around", "passes"),
    [
        ({}, (1, 1)),
        ({"behind": "aten::native_layer_norm"}, (3, 1)),  # the mean, the variance, the output
        ({"ahead": "aten::native_layer_norm"}, (1, 1)),  # done before the mask is read
        ({"ahead": "aten::_softmax"}, (1, 2)),  # its gradient takes a sum first
    ],
)
def test_each_element_is_drawn_by_itself_and_its_mask_read_in_each_pass(around, passes):
    forward, backward = drawn_ns(dropped(**around))

    assert forward == pytest.approx(SEEDS_NS + 1_000 * (DRAW_NS + passes[0] * READ_DRAWN_NS))
    assert backward == pytest.approx(1_000 * passes[1] * READ_DRAWN_NS)


def test_the_loop_takes_the_drawing_and_not_the_time_that_torch_took():
    times = {}
    for draw in ("aten::bernoulli_", "aten::add_"):
        graph = dropped(draw)
        compile_cpu_calls(graph)
        times[draw] = graph.select(name="fused loop", phase="forward").total("duration_ns")
    least = 1_000 * (DRAW_NS + READ_DRAWN_NS) + SEEDS_NS + FUSED_LOOP_NS
    assert least <= times["aten::bernoulli_"] <= least + 4_000  # the multiplication
    assert times["aten::add_"] < 15_000
