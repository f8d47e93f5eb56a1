"""Modes of `compile`, graph breaks, single modules, graphs of parts of a step: each worked out by hand."""

import pytest
from daydream.optimizations._launches import cuda_graphs
from daydream.optimizations.compile import compile as compile_
from graph.small_graphs import kernels
from recorded import Program, does_not_apply, kernel_names, noted, refuses

import daydream
from daydream import GraphError
from daydream.model import breaks_of
from daydream.model.compiled_calls import BACKWARD, FORWARD, LIBRARY_CALL_NS

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
    for op in asks:
        program.op(op, "forward", ("copy kernel", 5))
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": "blocks.*", "phase": "optimizer"}, "leave out phase or layer"),
        ({"phase": "optimizer", "optimizer": False}, "give one"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(GraphError, match=words):
        cuda_graphs(on_device(), **options)


def test_a_layer_that_is_not_there_is_refused():
    does_not_apply("encoder", cuda_graphs, on_device(), layer="encoder.*")


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


@pytest.mark.parametrize("options", [{"graph_breaks": -1}, {"product_speedup": 0.0}])
def test_impossible_options_are_refused(options):
    refuses("graph_breaks must be 0 or more", compile_, on_device(), **options)


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
    region: dict[str, str] = {"kind": "operator", "phase": "forward", "layer": "Model"}

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
