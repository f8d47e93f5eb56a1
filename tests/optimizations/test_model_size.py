"""Frozen, added, removed, repeated and checkpointed layers: each answer worked out by hand."""

import pytest
from daydream.optimizations._layers import add_layers, freeze, gradient_parts
from daydream.optimizations.checkpointing import checkpointing
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from graph.small_graphs import kernels, names, put
from recorded import Program, does_not_apply, kernel_names, makespan, noted, refuses

from daydream import Graph
from daydream.model.blocks import matching_blocks, repeated_blocks
from daydream.model.gradients import joint_update, trained_parameters

BEGIN = 2 + 4  # an operator's own time before its launch, and the latency of the launch


def two_linear_layers(**metadata):
    #  stream 6|a 100|b 100|loss 10|b: inputs 200, weights 300|a: inputs 150, weights 400|update a 20, b 40|
    p = Program()
    p.op("aten::linear", "forward", ("f", 100), shapes="8x16 32x16 32", layer="a")
    p.op("aten::linear", "forward", ("f", 100), shapes="8x32 64x32 64", layer="b")
    p.op("aten::mse_loss", "loss", ("loss", 10))
    p.op("aten::mm", "backward", ("inputs", 200), shapes="8x64 64x32", layer="b")
    p.op("aten::mm", "backward", ("weights", 300), shapes="64x8 8x32", layer="b")
    p.op("aten::mm", "backward", ("inputs", 150), shapes="8x32 32x16", layer="a")
    p.op("aten::mm", "backward", ("weights", 400), shapes="32x8 8x16", layer="a")
    p.op("aten::add_", "optimizer", ("update", 20), layer="a")
    p.op("aten::add_", "optimizer", ("update", 40), layer="b")
    return p.graph(**metadata)


def three_blocks(steps=1):
    #  main  |embed 5|0: 10|1: 20|2: 30|loss 3|2': 31|1': 21|0': 11|optimizer 7|   each block in 2 modules
    graph = Graph()
    work = [("blocks.0", 10, 11), ("blocks.1", 20, 21), ("blocks.2", 30, 31)]
    tasks = [("embed", "forward", 5, "embed")]
    tasks += [(f"{part} forward", "forward", ns // 2, f"{block}{part}")
              for block, ns, _ in work for part in ("", ".fc")]  # fmt: skip
    tasks += [("loss", "loss", 3, None)]
    tasks += [(f"{part} backward", "backward", ns, f"{block}{part}")
              for block, _, whole in work[::-1] for part, ns in ((".fc", 1), ("", whole - 1))]  # fmt: skip
    tasks += [("optimizer", "optimizer", 7, None)]
    for step in range(steps):
        for name, phase, ns, layer in tasks:
            put(graph, name, "main", ns, phase=phase, layer=layer, step=step)
    return graph


WHOLE = 5 + 60 + 3 + 63 + 7


# Blocks


def test_a_block_is_an_outermost_module_with_all_inside_it():
    graph = three_blocks()
    assert matching_blocks(graph, "blocks.*") == ["blocks.0", "blocks.1", "blocks.2"]
    assert matching_blocks(graph, "*.fc") == ["blocks.0.fc", "blocks.1.fc", "blocks.2.fc"]
    assert matching_blocks(graph, ["embed", "blocks.1"]) == ["blocks.1", "embed"]
    assert matching_blocks(graph, "blocks") == ["blocks"]  # a name in their paths, where no module matches
    assert matching_blocks(graph, "heads.*") == []
    assert repeated_blocks(graph) == [["blocks.0", "blocks.1", "blocks.2"]]
    groups = graph.select(phase="forward").group_by("step", block="blocks.*")
    assert groups.keys == [("blocks.0", 0), ("blocks.1", 0), ("blocks.2", 0)]
    assert groups.total("duration_ns").tolist() == [10, 20, 30]


def test_blocks_are_in_the_order_of_their_numbers():
    graph = Graph()
    for number in (2, 10, 9):
        put(graph, "f", "main", 1, layer=f"Model_0.Layer_{number}")
    assert repeated_blocks(graph) == [["Model_0.Layer_2", "Model_0.Layer_9", "Model_0.Layer_10"]]


# Freeze


def test_a_frozen_layer_above_a_trained_one_keeps_the_gradient_of_its_input():
    graph = two_linear_layers()
    assert makespan(graph) == BEGIN + 200 + 10 + 200 + 300 + 150 + 400 + 20 + 40
    freeze(graph, layers="b")
    # `a` is the first that is trained, so nothing needs the gradient of its input.
    assert makespan(graph) == BEGIN + 200 + 10 + 200 + 400 + 20
    assert kernel_names(graph, phase="backward") == ["inputs", "weights"]
    assert len(kernels(graph).launches()) == 6
    assert not len(graph.select(kind="cpu", op="add_", layer="b"))


def test_layers_ahead_of_the_first_trained_one_have_no_backward_pass():
    graph = two_linear_layers()
    freeze(graph, layers="a")
    assert makespan(graph) == BEGIN + 200 + 10 + 300 + 40
    assert not len(graph.select(phase="backward", layer="a"))
    assert noted(graph, "1 layer ahead")


def test_freezing_works_without_device_work():
    #  13 operators of 4 ns each, one of them accumulates the gradient of b
    p = Program()
    for layer in ("a", "b"):
        p.op("aten::linear", "forward", shapes="8x16 16x32 32", layer=layer)
    p.op("aten::mm", "backward", shapes="8x32 32x16", layer="b")
    p.op("aten::mm", "backward", shapes="32x8 8x16", layer="b")
    p.op("torch::autograd::AccumulateGrad", "backward", shapes="32x16", layer="b")
    p.op("aten::mm", "backward", shapes="32x8 8x16", layer="a")
    p.op("torch::autograd::AccumulateGrad", "backward", shapes="32x16", layer="a")
    for layer in ("a", "b"):
        p.op("aten::add_", "optimizer", layer=layer)
    parameters = [{"name": f"{one}.weight", "layer": one, "shape": [32, 16]} for one in ("a", "b")]
    graph = p.graph(parameters=parameters)
    assert makespan(graph) == 9 * 4
    freeze(graph, layers="b")
    assert makespan(graph) == (9 - 3) * 4


def test_a_convolution_that_computes_both_gradients_in_one_call_takes_half():
    p = Program()
    p.op("aten::conv2d", "forward", ("f", 100), layer="stem")
    p.op("aten::conv2d", "forward", ("f", 100), layer="a")
    p.op("aten::convolution_backward", "backward", ("both", 300), layer="a")
    p.op("aten::convolution_backward", "backward", ("wgrad", 70), ("dgrad", 60), layer="a")
    p.op("aten::convolution_backward", "backward", ("wgrad", 80), layer="stem")
    for layer in ("a", "stem"):
        p.op("aten::add_", "optimizer", ("update", 20), layer=layer)
    graph = p.graph()
    backward = graph.select(kind="kernel", phase="backward")
    parts = gradient_parts(graph, backward)
    assert parts.weights.tolist() == [0.5, 1, 0, 1]
    assert parts.inputs.tolist() == [0.5, 0, 1, 0]
    freeze(graph, layers="a")
    assert makespan(graph) == BEGIN + 200 + 300 / 2 + 60 + 80 + 20


def test_what_cannot_be_frozen_is_refused():
    does_not_apply("nothing is left to train", freeze, two_linear_layers(), layers="*")
    does_not_apply("backward work of layers 'c'", freeze, two_linear_layers(), layers="c")
    does_not_apply(
        "have no parameters",
        freeze,
        two_linear_layers(parameters=[{"name": "a.w", "layer": "a", "shape": [2]}]),
        layers="b",
    )
    does_not_apply("does not say which backward work", freeze, three_blocks(), layers="blocks.2")


def test_a_joint_update_shrinks_with_the_tensors_and_the_reduction_with_the_bytes():
    #  main  ...|add 4|python 8|add 4|       and an all-reduce of 100 in the backward pass
    p = Program()
    p.op("aten::linear", "forward", shapes="8x16 16x32 32", layer="a")
    p.op("aten::linear", "forward", shapes="8x16 16x32 32", layer="b")
    p.op("aten::mm", "backward", shapes="32x8 8x16", layer="b")
    p.op("aten::mm", "backward", shapes="32x8 8x16", layer="a")
    with p.range("Optimizer.step#SGD.step", phase="optimizer"):
        p.op("aten::add_", "optimizer")
        p.now += 8
        p.op("aten::add_", "optimizer")
    parameters = [
        {"name": "a.weight", "layer": "a", "shape": [30]},
        {"name": "b.weight", "layer": "b", "shape": [10]},
    ]
    graph = p.graph(parameters=parameters)
    put(
        graph,
        "all-reduce",
        "link",
        100,
        phase="backward",
        step=0,
        collective="all_reduce",
        before=[graph.select(phase="optimizer").first()],
    )
    assert trained_parameters(graph).part({"a"}) == (0.5, 0.75)
    tasks, time = joint_update(graph, 0.5, 0.25)
    assert (tasks.duration_ns.sum(), time.sum()) == (
        4 + 8 + 4,
        (4 + 8 + 4) / 2,
    )  # short operators are overhead
    freeze(graph, layers="a")
    assert graph.select(kind="collective").duration_ns.tolist() == [100 / 4]
    assert graph.select(phase="optimizer").duration_ns.sum() == (4 + 8 + 4) / 2


# More and fewer layers


def test_a_middle_block_is_copied_by_default():
    graph = three_blocks(2)
    add_layers(graph, count=2)
    assert makespan(graph) == 2 * (WHOLE + 2 * (20 + 21))
    assert any(note == "Added: 2 layers, copies of blocks.1 2 times." for note in graph.facts.notes)


@pytest.mark.parametrize(("count", "more"), [(1, 21), (2, 21 + 41), (3, 123), (4, 123 + 21), (6, 246)])
def test_matching_blocks_are_copied_in_turn(count, more):
    graph = three_blocks()
    add_layers(graph, layers="blocks.*", count=count)
    assert makespan(graph) == WHOLE + more


def test_a_copy_comes_right_behind_its_block_and_brings_launches():
    p = Program()
    p.op("aten::mm", "forward", ("f 0", 50), layer="0")
    p.op("aten::mm", "forward", ("f 1", 60), layer="1")
    p.op("aten::mm", "backward", ("b 1", 70), layer="1")
    p.op("aten::mm", "backward", ("b 0", 80), layer="0")
    p.op("aten::add_", "optimizer", ("u 1", 9), layer="1")
    graph = p.graph()
    add_layers(graph, layers="1")
    work = kernels(graph)
    assert names(work) == "f 0, f 1, f 1, b 1, b 1, b 0, u 1, u 1"
    assert len(work.launches()) == 8
    assert makespan(graph) == BEGIN + 50 + 2 * 60 + 2 * 70 + 80 + 2 * 9


def test_layers_that_cannot_be_added_are_refused():
    refuses("1 or more", add_layers, three_blocks(), count=0)
    does_not_apply("no numbered block", add_layers, two_linear_layers())
    does_not_apply("no layers", add_layers, Graph())
    does_not_apply("layers 'c'", add_layers, three_blocks(), layers="c")


# Checkpointing and accumulation


@pytest.mark.parametrize("layers", [None, "blocks.*", "blocks"])
def test_a_block_and_the_modules_in_it_are_computed_again_once(layers):
    graph = three_blocks(2)
    checkpointing(graph, layers=layers)
    assert makespan(graph) == 2 * (WHOLE + 60)


def test_a_block_is_computed_again_as_a_whole_ahead_of_its_backward_pass():
    graph = three_blocks()
    checkpointing(graph, layers="blocks.2")
    called = graph.select(kind="cpu", layer="blocks.2*").name.tolist()
    assert called == [" forward", ".fc forward", " forward", ".fc forward", ".fc backward", " backward"]


def test_layers_that_are_checkpointed_already_are_refused():
    p = Program()
    p.op("aten::linear", "forward", layer="a")
    p.op("aten::linear", "backward", layer="a")
    does_not_apply("already", checkpointing, p.graph())


def test_a_repeated_pass_stays_on_its_threads_and_leaves_their_idle_time():
    #  main    |f 10|              |o 7|
    #  engine       |b 40|(idle 500 up to the next step)
    graph = Graph()
    f = put(graph, "f", "main", 10, phase="forward", step=0)
    b = put(graph, "b", "engine", 40, gap_ns=500, phase="backward", step=0, after=[f])
    put(graph, "o", "main", 7, phase="optimizer", step=0, after=[b])
    gradient_accumulation(graph, batches=3)
    assert makespan(graph) == 3 * (10 + 40) + 7
    assert graph.select(phase="backward").lane.tolist() == ["engine"] * 3
