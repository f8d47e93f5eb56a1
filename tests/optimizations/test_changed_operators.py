"""Pruning, quantization, rematerialization, replaced operators: each answer worked out by hand, and laws."""

import pytest
from daydream.optimizations._products import pruning, quantize
from daydream.optimizations._substitution import replace
from daydream.optimizations.checkpointing import rematerialize
from recorded import SMALLEST, Program, does_not_apply, makespan, noted, ns_by_name, refusals

from daydream import NotApplicableError
from daydream.costs import KernelTable
from daydream.transforms.compose import edit_of, parse

A100, T4, V100, H100 = "NVIDIA A100-SXM4-80GB", "Tesla T4", "Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3"
MI300X = "AMD Instinct MI300X"
RATE = 100  # B/ns of the trace's streaming work
GEMM, PRODUCT_NS = "ampere_bf16_s16816gemm", 10_005
# 1024 x 1024 by 1024 x 1024: 2.147 GFLOP are 6,883 ns at the A100's 312 TFLOP/s, 6.3 MB 3,086 ns
SQUARE = "1024 1024x1024 1024x1024"
# 16 x 4096 by 4096 x 4096: the weight is nearly all of the 34 MB, and those are nearly all of the time
THIN, THIN_NS = "4096 16x4096 4096x4096", 20_005
WEIGHT = 4096 * 4096


def recorded(*calls, device=A100, trains=False):
    """(op, phase, kernel, ns, shapes, dtype) one after the other; kernels take 5 ns at least."""
    program = Program()
    program.rates()
    for op, phase, kernel, duration, shapes, dtype in calls:
        program.op(op, phase, (kernel, duration), shapes=shapes, dtype=dtype)
    if trains:
        program.op("aten::add", "backward", ("add", 7), shapes="4")
    return program.graph(devices=[{"id": 0, "name": device}])


def product(shapes=SQUARE, ns=PRODUCT_NS, dtype="bfloat16", phase="forward"):
    return ("aten::addmm", phase, GEMM, ns, shapes, dtype)


def square(device=A100, trains=False):
    return recorded(product(), device=device, trains=trains)


# Pruning


def test_two_of_four_halves_arithmetic_up_to_the_speedup_that_is_asked_for():
    graph = recorded(product())
    pruning(graph, product_speedup=2.0)
    assert ns_by_name(graph, phase="forward") == {GEMM: SMALLEST + 5_000}
    graph = recorded(product())
    pruning(graph)
    assert ns_by_name(graph, phase="forward") == {GEMM: 6_670}  # 10,005 / 1.5


def test_while_training_the_gradient_of_the_input_gains_and_that_of_the_weight_does_not():
    batch = "1024 4096x1024 1024x1024"
    to_input, to_weight = "4096x1024 1024x1024", "1024x4096 4096x1024"
    graph = recorded(
        product(batch, 40_005), ("aten::mm", "backward", "dX", 40_005, to_input, "bfloat16"),
        ("aten::mm", "backward", "dW", 40_005, to_weight, "bfloat16"),
        ("aten::add_", "optimizer", "update", 62_920, "1024x1024 1024x1024 -", "bfloat16"),
    )  # fmt: skip
    pruning(graph, product_speedup=1.25)
    assert ns_by_name(graph, phase="backward") == {"dX": 32_004, "dW": 40_005}
    # each weight of 2 B is read, and written twice at 9/16
    compress = round(1024 * 1024 * 2 * (1 + 2 * 9 / 16) / RATE)
    assert ns_by_name(graph, phase="forward") == {
        "prune and compress weight": pytest.approx(SMALLEST + compress, abs=2),
        GEMM: 32_004,
    }


def test_zeros_anywhere_make_nothing_faster_and_masks_cost_three_passes():
    graph = recorded(product(), trains=True)
    pruning(graph, sparsity="0.9")
    mask = round(3 * 2 * 1024 * 1024 / RATE)
    assert ns_by_name(graph, phase="forward") == {"mask of weight": SMALLEST + mask, GEMM: PRODUCT_NS}


# Quantization


def test_training_in_int8_is_fake_and_only_costs():
    graph = recorded(product(), trains=True)
    quantize(graph)
    size = 1024 * 1024
    read, rounded = SMALLEST + round(2 * size / RATE), SMALLEST + round(5 * size / RATE)
    assert ns_by_name(graph, phase="forward") == {
        "range of weight": read, "fake quantization of weight": rounded, "range of input": read,
        "fake quantization of input": rounded, GEMM: PRODUCT_NS,
    }  # fmt: skip
    graph = recorded(product(), trains=True)
    quantize(graph, operands="weights", scaling="static")
    assert ns_by_name(graph, phase="forward") == {"fake quantization of weight": rounded, GEMM: PRODUCT_NS}
    assert noted(graph, "Taken as training with fake quantization")


def test_inference_in_int8_runs_at_its_peak_and_quantizes_inputs():
    graph = recorded(product())
    quantize(graph)
    size = 1024 * 1024
    found = ns_by_name(graph, phase="forward")
    # twice the peak, at the share of it that is reached today; 1 B an operand element bounds less
    assert found.pop(GEMM) == SMALLEST + 5_000
    assert found == {
        "range of input": SMALLEST + round(2 * size / RATE),
        "quantization of input": SMALLEST + round(3 * size / RATE),
    }
    assert noted(graph, "Taken as inference")


def test_weights_alone_help_what_reads_them():
    graph = recorded(product(THIN, THIN_NS))
    quantize(graph, operands="weights")
    total = 2 * (WEIGHT + 2 * 16 * 4096 + 4096)
    assert ns_by_name(graph, phase="forward")[GEMM] == pytest.approx(
        SMALLEST + 20_000 * (total - WEIGHT) / total, abs=1
    )
    graph = recorded(product())  # bound by arithmetic, which stays
    does_not_apply("bound by reading its weight", quantize, graph, operands="weights")


# Operators on a CPU, with the nodes of their gradients


TENSOR = "64x1024 -"


def two_layers():
    program = Program()
    for _ in range(8):  # operators that tell the bandwidth: 2 x 1 MB in 1,000,000 ns and 2 B a ns
        program.host("aten::mul", "other", 1_000_000, shapes="250000 -")
        program.host("aten::mul_", "other", 500_000, shapes="250000 -")
    program.host("aten::gelu", "forward", 3_000, shapes=TENSOR, sequence=1, layer="up")
    product = "512 64x1024 1024x512"
    program.host("aten::addmm", "forward", 9_000, shapes=product, sequence=2, layer="down")
    for name, op, ns, sequence in (
        ("AddmmBackward0", "aten::mm", 18_000, 2),
        ("GeluBackward0", "aten::gelu_backward", 5_000, 1),
    ):
        with program.range(name, "operator", phase="backward", op=name, sequence=sequence):
            program.host(op, "backward", ns)
    return program.graph()


def work_of(graph):
    tasks = graph.select(kind="cpu", phase=("forward", "backward"))
    found = {}
    for name, ns in zip(tasks.op.tolist(), tasks.duration_ns.tolist(), strict=True):
        found[name] = found.get(name, 0) + ns
    return {name: ns for name, ns in found.items() if ns}


RECORDED = {"aten::gelu": 3_000, "aten::addmm": 9_000, "aten::mm": 18_000, "aten::gelu_backward": 5_000}


def test_what_is_run_again_comes_before_its_node():
    graph = two_layers()
    before = makespan(graph)
    rematerialize(graph)
    assert makespan(graph) == before + 3_000
    backward = graph.select(kind="cpu", phase="backward")
    names = [op for op, ns in zip(backward.op.tolist(), backward.duration_ns.tolist(), strict=True) if ns]
    assert set(names) >= {"aten::mm", "aten::gelu_backward"}
    order = graph.columns["order"]
    again = [int(i) for i in graph.select(op="^aten::gelu$").ids if graph.columns["repeat"][i] > 0]
    node = graph.select(op="^aten::gelu_backward$").ids[0]
    product_node = graph.select(op="^aten::mm$").ids[0]
    assert order[product_node] < order[again[0]] < order[node]


def test_replaced_operators_take_their_nodes_along():
    graph = two_layers()
    assert work_of(graph) == RECORDED
    replace(graph, op="^aten::gelu$", factor=0.25)
    assert work_of(graph) == {**RECORDED, "aten::gelu": 750, "aten::gelu_backward": 1_250}
    graph = two_layers()
    replace(graph, layer="up", factor=2.0)
    assert work_of(graph) == {**RECORDED, "aten::gelu": 6_000, "aten::gelu_backward": 10_000}


# Times measured in place


def row(op, phase, before, after, shapes="[[64, 1024]]"):
    return {
        "op": op, "shapes": shapes, "dtype": "float32", "phase": phase, "before_ns": before,
        "duration_ns": after,
    }  # fmt: skip


GELU = [row("gelu", "forward", 2_000, 1_000), row("gelu", "backward", 4_000, 5_000)]


def predicted(name, rows, **options):
    graph = two_layers()
    edit_of(parse(name), options, KernelTable(rows, "cpu")).make(graph)
    return graph


def test_cheaper_keeps_its_ratio_and_dearer_pays_the_difference():
    graph = predicted("replace", GELU, op="^aten::gelu$")
    assert work_of(graph) == {**RECORDED, "aten::gelu": 1_500, "aten::gelu_backward": 6_000}
    said = "Measured in place: 1 call, whose 0.008 ms become 0.007 ms."  # 8,000 ns and 7,500
    assert any(said[:25] in note and "0.008 ms become" in note for note in graph.facts.notes)
    assert work_of(predicted("replace", GELU)) == work_of(graph)  # all that the table holds


@pytest.mark.parametrize(
    ("name", "op", "options"),
    [("pruning", "addmm", {}), ("quantize", "addmm", {}), ("rematerialize", "gelu", {})],
)
def test_every_change_of_an_operator_goes_by_what_was_measured(name, op, options):
    shapes = "[[512], [64, 1024], [1024, 512]]" if op == "addmm" else "[[64, 1024]]"
    rows = [row(op, "forward", 1_000, 1_400, shapes), row(op, "backward", 1_000, 1_000, shapes)]
    graph = predicted(name, rows, **options)
    assert work_of(graph) == {**RECORDED, f"aten::{op}": RECORDED[f"aten::{op}"] + 400}


def test_two_of_four_is_never_faster_than_its_bytes():
    total = WEIGHT + 2 * 16 * 4096 + 4096
    graph = recorded(product(THIN, THIN_NS))
    pruning(graph, product_speedup=2.0)
    assert ns_by_name(graph, phase="forward")[GEMM] == pytest.approx(
        SMALLEST + 20_000 * (1 - 7 / 16 * WEIGHT / total), abs=1
    )


def test_other_shapes_are_other_calls():
    other = [row("gelu", "forward", 2_000, 1_000, "[[64, 2048]]")]
    with pytest.raises(NotApplicableError, match="calibrate --tool"):
        predicted("replace", other, op="^aten::gelu$")
    graph = predicted("replace", other, op="^aten::gelu$", factor=0.5)
    assert work_of(graph) == {**RECORDED, "aten::gelu": 1_500, "aten::gelu_backward": 2_500}
    assert noted(graph, "which nothing measured")


def test_masks_and_rounding_on_a_cpu_go_by_its_own_operators():
    graph = two_layers()
    pruning(graph)
    mask = graph.select(name="mask of weight").duration_ns.tolist()
    # 3 passes over a weight of 2,097,152 B at the 2 B/ns of operators with a new result, and a small call
    assert mask == [pytest.approx(3 * 2_097_152 / 2, rel=0.01)]
    graph = two_layers()
    quantize(graph, scaling="static", operands="weights")
    assert graph.select(name="fake quantization").duration_ns.tolist() == [
        pytest.approx(9 * 524_288 / 2, rel=0.01)
    ]
    assert graph.select(name="mask of gradient").duration_ns.tolist() == [
        pytest.approx(9 * 524_288 / 2, rel=0.01)
    ]


test_operators_that_cannot_change_so_are_refused = refusals(globals())
