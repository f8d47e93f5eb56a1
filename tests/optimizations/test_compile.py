"""What torch.compile makes of a step, on GPUs and on a CPU: each answer worked out by hand."""

import json

import pytest
from daydream.optimizations._launches import cuda_graphs
from daydream.optimizations._substitution import replace
from daydream.optimizations.compile import compile as compile_
from graph.small_graphs import kernels, names
from graph.small_traces import dims, op, trace
from recorded import Program, does_not_apply, kernel_names, makespan, noted, ns_by_name, refusals

import daydream
from daydream import build, simulate
from daydream.costs.device.call_scaling import cpu_overheads
from daydream.graph.tables import Lane
from daydream.model import breaks_of
from daydream.model.compiled_calls import (
    BACKWARD,
    DRAW_NS,
    FORWARD,
    FUSED_LOOP_NS,
    LEAST,
    LIBRARY_CALL_NS,
    READ_DRAWN_NS,
    SEEDS_NS,
    STORE_NS,
    WHOLE,
    channels_last_factors,
    compile_cpu_calls,
    fused_bodies_ns,
    masks_ns,
    random_numbers_ns,
)

# Modes of `compile`, graph breaks, single modules, graphs of parts of a step: each worked out by hand


LAYERS = ("blocks.0", "blocks.1", "head")
ADD = [("vectorized_elementwise_kernel add", 5)]
MUL = [("vectorized_elementwise_kernel mul", 7)]
GEMM = [("ampere_sgemm", 20)]


def on_device(optimizer=True, asks=()):
    """A product and two element-wise kernels of each layer, forward and then backward."""
    program = Program()
    for phase, layers in (("forward", LAYERS), ("backward", LAYERS[::-1])):
        for layer in layers:
            shapes = "8x8 8x8"
            program.op("aten::mm", phase, *GEMM, shapes=shapes, layer=layer)
            program.op("aten::add", phase, *ADD, shapes=shapes, layer=layer)
            program.op("aten::mul", phase, *MUL, shapes=shapes, layer=layer)
    for name in asks:
        program.op(name, "forward", ("copy kernel", 5))
    if optimizer:
        program.op("aten::add_", "optimizer", *ADD, shapes="8x8", layer=None)
    return program.graph()


def launches(graph):
    return [name for name in graph.select(kind="cpu").name.tolist() if "aunch" in name]


# Graphs of parts


def test_only_the_forward_pass_is_a_graph():
    graph = on_device()
    before = launches(graph)
    cuda_graphs(graph, phase="forward", launch_us=0.001)
    # 9 launches of the forward pass become one; 9 of the backward pass and the update's stay
    assert launches(graph) == ["cudaGraphLaunch", *before[9:]]
    assert len(kernels(graph)) == 9 + 9 + 1


def test_a_call_that_launches_work_of_two_layers_is_no_part_of_a_graph_each():
    graph = on_device()
    first, second = (graph.select(kind="kernel", layer=layer, phase="forward") for layer in LAYERS[:2])
    graph.write("launch", second.ids[:1], first.launch[:1])
    does_not_apply(r"several of the layers 'blocks\.\*' at once", cuda_graphs, graph, layer="blocks.*")


# compile on a device


def test_only_modules_that_match_are_compiled_and_nothing_fuses_from_one_to_the_next():
    graph = on_device(optimizer=False)
    compile_(graph, layers="blocks.*")
    names = kernel_names(graph, phase="forward")
    assert names == ["ampere_sgemm", "fused chain"] * 2 + ["ampere_sgemm", ADD[0][0], MUL[0][0]]
    guards = graph.select(name="guards and wrappers")
    # no parameters are known: a call's costs alone, for two modules in each pass
    assert sorted(guards.duration_ns.tolist()) == sorted([FORWARD.call_ns, BACKWARD.call_ns] * 2)


@pytest.mark.parametrize("op", ["aten::item", "aten::_unique2"])
def test_operators_whose_result_python_asks_for_break_the_graph(op):
    costs = []
    for options in ({}, {"graph_breaks": 1}):
        graph = on_device(optimizer=False, asks=[op])
        compile_(graph, **options)
        costs.append(graph.select(name="guards and wrappers").total("duration_ns"))
    assert costs[0] == costs[1]
    does_not_apply("4 operators of a forward pass break the graph", compile_, on_device(asks=[op] * 4))


def test_reduce_overhead_launches_each_compiled_pass_as_one_graph():
    graph = on_device()
    last = launches(graph)[-1]
    compile_(graph, mode="reduce-overhead")
    assert launches(graph) == ["cudaGraphLaunch", "cudaGraphLaunch", last]
    assert graph.select(name="cudaGraphLaunch").duration_ns.tolist() == [15_000, 15_000]
    default = on_device()
    compile_(default)
    assert len(kernels(graph)) == len(kernels(default))


def test_max_autotune_shortens_products_alone_and_says_what_it_assumes():
    one, other = on_device(), on_device()
    compile_(one, mode="reduce-overhead")
    compile_(other, mode="max-autotune", product_speedup=1.25)
    assert set(other.select(name="sgemm").duration_ns.tolist()) == {16}  # 20 / 1.25
    rest = "fused chain"
    assert other.select(name=rest).duration_ns.tolist() == one.select(name=rest).duration_ns.tolist()
    assert noted(other, "Assumed, not measured")
    assert not noted(one, "Assumed")


# compile on a CPU


def on_cpu():
    program = Program()
    for phase, layers in (("forward", LAYERS), ("backward", LAYERS[::-1])):
        for layer in layers:
            for name, ns in (("aten::mm", 100_000), ("aten::tanh", 30_000), ("aten::sigmoid", 20_000)):
                shapes = [[64, 256], [256, 256]] if name == "aten::mm" else [[64, 256]]
                program.host(name, phase, ns, shapes=shapes, layer=layer)
    metadata = {
        "parameters": [{"layer": layer, "shape": [8], "name": layer} for layer in LAYERS for _ in "ab"]
    }
    return program.graph(vendor="cpu", **metadata)


def test_regional_compilation_leaves_the_other_layers_as_they_are():
    graph = on_cpu()
    compile_(graph, layers="blocks.*")
    forward = graph.select(phase="forward")
    block = ["guards and wrappers", "aten::mm", "fused loop", "wrappers"]
    assert forward.name.tolist() == [*block, *block, "aten::mm", "aten::tanh", "aten::sigmoid"]
    per_call = FORWARD.call_ns + 2 * FORWARD.parameter_ns  # two parameters each
    fixed = forward.where(name="wrappers").total("duration_ns")
    assert fixed == 2 * per_call
    assert "each of 2 compiled modules" in graph.facts.notes[-1]


def test_a_speed_up_of_products_does_not_touch_what_is_around_them():
    graph = on_cpu()
    compile_(graph, mode="max-autotune", product_speedup=2.0)
    assert graph.select(name="aten::mm").duration_ns.tolist() == [50_000 + LIBRARY_CALL_NS] * 6
    assert noted(graph, "no graphs to launch work by")


# Compiled code with graph breaks

BREAKS = [{"region": "0/0", "source": "train.py(12): forward", "reason": "Call to print"}]


def broken(*, step=0, program=None, pieces=2, **metadata):
    """A compiled call of some graphs, 3 of Python before each, and the backward node of each."""
    program = program or Program()
    region = {"kind": "operator", "phase": "forward", "layer": "Model"}

    def piece(number):
        program.now += 3_000
        with program.range("CompiledFunction", **region):
            program.now += 4_000
            call = program.range("## Call CompiledFxGraph f ##", "annotation", phase="forward")
            with call, program.range(f"cpp_fused_relu_{number}", **region):
                program.now += 10_000

    with program.range("Torch-Compiled Region: 0/0", **region):
        piece(0)
        for number in range(1, pieces):
            with program.range(f"Torch-Compiled Region: {number}/0", **region):
                piece(number)
    for _ in range(pieces):
        with program.range("CompiledFunctionBackward", "operator", phase="backward", layer="Model"):
            program.now += 6_000
            call = program.range("## Call CompiledFxGraph b ##", "annotation", phase="backward")
            with call, program.range("cpp_fused_relu_backward", "operator", phase="backward"):
                program.now += 10_000
    return program.graph(vendor="cpu", **metadata)


def test_explain_names_the_breaks_and_what_their_absence_would_save():
    explanation = daydream.explain(broken(graph_breaks=BREAKS))
    assert any("train.py(12): forward: Call to print; 1 per step" in note for note in explanation.notes)
    (cost,) = [one for one in explanation.avoidable if one.sort == "graph breaks"]
    assert (cost.source, cost.best.optimization) == ("train.py(12): forward", "compile")
    assert cost.saving_ns == 7_000 + 6_000


def test_a_break_whose_line_was_not_recorded_is_counted_all_the_same():
    (found,) = breaks_of(broken())
    assert (found.source, found.count) == (None, 1)


# Layers of what runs as a whole, a compiled call or a replay of a graph: what is known of which, by hand


def whole_call(function="CompiledFunction", *, layers=True):
    """A norm and an MLP as one call of 10 and 30 ns, whose one node takes 20 and 60 ns."""
    program = Program()
    for name, phase, times in (
        (function, "forward", {"norm": 10, "mlp": 30}),
        (f"{function}Backward", "backward", {"mlp": 60, "norm": 20}),
    ):
        with program.range(name, "operator", phase=phase, sequence=5):
            for layer, time in times.items():
                of_layer = layer if layers or phase == "forward" else None
                program.op(f"aten::{layer}", phase, (f"{layer} {phase}", time), layer=of_layer)
    return program.graph()


def test_a_layer_of_a_compiled_call_takes_its_own_backward_work_along_and_no_other():
    graph = whole_call()
    replace(graph, layer="norm", factor=0.5)
    assert ns_by_name(graph) == {
        "norm forward": 5,
        "mlp forward": 30,
        "mlp backward": 60,
        "norm backward": 10,
    }


# Compiled code on a CPU: what stays, what becomes a loop, and what it costs beside its calculation


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
    call(
        program,
        "aten::linear",
        "forward",
        2_000,
        ACTIVATION,
        ("aten::t", "forward", 1_000),
        ("aten::addmm", "forward", 100_000, PRODUCT),
        **columns,
    )
    call(program, "aten::sigmoid", "forward", 20_000, ACTIVATION, **columns)
    call(program, "aten::tanh", "forward", 30_000, ACTIVATION, **columns)
    call(program, "aten::view", "forward", 1_000, ACTIVATION, **columns)
    call(program, "aten::mse_loss", "loss", 9_000, ACTIVATION * 2, layer="loss")
    call(program, "MseLossBackward0", "backward", 9_000, None, layer="loss")
    call(
        program,
        "TanhBackward0",
        "backward",
        1_000,
        None,
        ("aten::tanh_backward", "backward", 30_000, ACTIVATION * 2),
        **columns,
    )
    call(
        program,
        "AddmmBackward0",
        "backward",
        1_000,
        None,
        ("aten::mm", "backward", 100_000, PRODUCT[1:3]),
        **columns,
    )
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


@pytest.mark.parametrize(("breaks", "share"), [(0, 0.0), (1, 0.5), (2, 1.0), (5, 1.0)])
def test_behind_a_break_a_mask_is_stored_though_a_product_keeps_the_output(breaks, share):
    program = Program()
    for place in range(3):  # two places between products
        call(program, "aten::addmm", "forward", 50_000, PRODUCT)
        if place < 2:
            call(
                program,
                "aten::relu",
                "forward",
                1_000,
                None,
                ("aten::clamp_min", "forward", 20_000, ACTIVATION),
            )
    graph = program.graph(vendor="cpu")
    tasks = graph.select(phase="forward")
    added = masks_ns(tasks, tasks.where(within="addmm"), breaks)
    assert added.sum() == pytest.approx(2 * share * STORE_NS * ROWS * WIDE)


def lstm(layer="lstm"):
    program = Program()
    call(program, "aten::lstm", "forward", 90_000, None, layer=layer)
    call(program, "aten::tanh", "forward", 20_000, ACTIVATION, layer=layer and "act")
    return program.graph(vendor="cpu")


# Attention, masks behind graph breaks, layouts of convolutions


@pytest.mark.parametrize(
    ("channels", "left"),
    [(16, WHOLE["forward"]), (20, LEAST), (28, WHOLE["forward"]), (24, 0.75), (5, LEAST)],
)
def test_a_convolution_channels_last_pads_no_channels(channels, left):
    program = Program()
    shapes = [[4, channels, 12, 12], [channels, channels, 3, 3], [], [], [], [], [], [], []]
    call(
        program,
        "aten::convolution",
        "forward",
        1_000,
        shapes,
        ("aten::mkldnn_convolution", "forward", 90_000, shapes),
    )
    call(program, "aten::mm", "forward", 9_000, PRODUCT[1:3])
    tasks = program.graph(vendor="cpu").select(phase="forward")
    found = channels_last_factors(tasks)
    by_op = dict(zip(tasks.op.tolist(), found.tolist(), strict=True))
    assert by_op["aten::mkldnn_convolution"] == pytest.approx(left)
    assert by_op["aten::mm"] == 1


# Random numbers in compiled code on a CPU: what drawing them takes replaces what torch took


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


def test_without_breaks_what_wraps_the_graphs_is_there_once_and_their_kernels_stay():
    graph = broken(pieces=2, graph_breaks=BREAKS)
    before = makespan(graph)
    compile_(graph)
    # of 2 x (3 + 4) us forward and 2 x 6 us backward a half goes
    assert before - makespan(graph) == 7_000 + 6_000
    assert graph.select(name="cpp_fused").duration_ns.tolist() == [10_000] * 4
    does_not_apply("compiled code already", compile_, broken(), graph_breaks=2)


def test_an_operator_of_a_library_is_one_operation_whatever_kernels_it_calls():
    # aten::convolution has one derivative, also where the choice leaves out the bias that it adds
    graph = whole_call("aten::whole")
    replace(graph, op="^aten::norm$", factor=0.5)
    assert ns_by_name(graph) == {
        "norm forward": 5,
        "mlp forward": 30,
        "mlp backward": 30,
        "norm backward": 10,
    }


def test_what_waits_for_a_collective_waits_for_it_behind_compiled_code():
    #  thread  |forward|loss|backward|wait     |update      gloo  |   all-reduce 1 s     |
    graph = perceptron()
    product = graph.select(name="aten::mm")
    graph.add_lane(Lane("gloo 0", on_device=True, host=True))
    wait = graph.insert_after(product, "wait for collective", duration_ns=0, phase="backward")
    reduced = graph.insert(
        "gloo:all_reduce", kind="collective", lane="gloo 0", duration_ns=10**9, after=product, before=wait
    )
    compile_(graph)
    timeline = simulate(graph)
    at = {int(task): place for place, task in enumerate(timeline.task)}
    update, transfer = (at[int(some.ids[0])] for some in (graph.select(phase="optimizer"), reduced))
    assert timeline.start_ns[update] >= timeline.end_ns[transfer] >= 10**9


test_what_is_not_compiled_or_captured_is_refused = refusals(globals())
