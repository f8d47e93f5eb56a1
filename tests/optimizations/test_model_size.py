"""Other layers, what is computed again, what is offloaded: each answer worked out by hand."""

import pytest
from daydream.optimizations._layers import add_layers, freeze, gradient_parts
from daydream.optimizations._offload import gist, vdnn
from daydream.optimizations.checkpointing import checkpointing
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from graph.small_graphs import kernels, named, put
from recorded import Program, does_not_apply, kernel_names, makespan, noted, refuses, thread_and_stream
from training_programs import times

from daydream import Graph, GraphError, NotApplicableError, simulate
from daydream.model.gradients import joint_update, trained_parameters


def python_ns(graph):
    checkpointing(graph, layers="a")
    found: list[int] = graph.select(name="checkpoint in Python").duration_ns.tolist()
    return found


def moving(rows, kernel=None):
    #  |gelu forward 4|GeluBackward0 4|   on `rows` KiB, which it reads and writes
    p = Program()
    launch = () if kernel is None else (("gelu", kernel),)
    for name, phase in (("aten::gelu", "forward"), ("GeluBackward0", "backward")):
        row = len(p.rows)
        p.op(name, phase, *launch, layer="a")
        p.rows[row].update(shapes=f"[[{rows},256]]", dtype="float32")
    return p.graph()


KIB = 1024


HOT = 50_000 + 82_000 + 6_900 + 12_300  # of a block that saves one tensor

TENSOR = 6_900 + 12_300


BLOCK = 50_000 + 82_000  # what `torch.utils.checkpoint` costs in Python a block, and a saved tensor

# Frozen, added, removed, repeated and checkpointed layers: each answer worked out by hand


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


def test_layers_that_are_checkpointed_already_are_refused():
    p = Program()
    p.op("aten::linear", "forward", layer="a")
    p.op("aten::linear", "backward", layer="a")
    does_not_apply("already", checkpointing, p.graph())


# Checkpointing stops at the last tensor that a block saves, and takes time in Python: all by hand


Call = tuple[str, int, str | None]  # a forward operator, its time, and its node


def one_pass(p, *blocks, first=1, numbered=True):
    """Run blocks `b.0`, `b.1`, ... forward and backward, 100 ns a node."""
    made = []
    for place, calls in enumerate(blocks):
        for name, ns, node in calls:
            number = first + len(made) if numbered else -1
            shapes = [[8, 8], []] if "scalar" in name else [[8, 8], [8, 8]]
            known = {"shapes": shapes, "sequence": number, "layer": f"b.{place}"}
            p.host(name.removesuffix(" scalar"), "forward", ns, **known)
            if node:
                made.append((node, number, f"b.{place}"))
    for node, number, layer in made[::-1]:
        p.host(node, "backward", 100, sequence=number, layer=layer)


def block_of(*calls):
    p = Program()
    one_pass(p, list(calls))
    return p.graph()


UP: Call = ("aten::addmm", 10, "AddmmBackward0")
GELU: Call = ("aten::gelu", 20, "GeluBackward0")
VIEW: Call = ("aten::view", 3, "ViewBackward0")
DOWN: Call = ("aten::addmm", 40, "AddmmBackward0")
ADD: Call = ("aten::add", 80, "AddBackward0")
SOFTMAX: Call = ("aten::softmax", 160, "SoftmaxBackward0")
TWICE: Call = ("aten::mul scalar", 320, "MulBackward0")  # by a number
OWN: Call = ("MyFunction", 640, None)  # an autograd.Function; its node has no number


@pytest.mark.parametrize(
    ("calls", "again"),
    [
        ([UP, GELU, VIEW, DOWN, ADD], 10 + 20 + 3),  # a product has its inputs before it begins
        ([UP, GELU, VIEW], 10),
        ([UP, GELU, ADD, SOFTMAX, VIEW], 10 + 20 + 80 + 160),  # a softmax saves its result
        ([UP, SOFTMAX, DOWN, TWICE], 10 + 160),  # a number is no tensor
        ([UP, DOWN, OWN], 10 + 40 + 640),
        ([UP, DOWN, OWN, VIEW, ADD], 10 + 40 + 640),
    ],
)
def test_what_comes_behind_the_last_saved_tensor_is_not_computed_again(calls, again):
    graph = block_of(*calls)
    whole = makespan(graph)
    assert whole == sum(ns + 100 * bool(node) for _, ns, node in calls)
    checkpointing(graph, layers="b.*", python=False)
    assert makespan(graph) == whole + again


def test_a_block_that_saves_nothing_is_not_computed_again():
    does_not_apply(r"of b\.0 no tensor is saved", checkpointing, block_of(VIEW, ADD), layers="b.*")
    p = Program()
    one_pass(p, [VIEW, ADD], [UP, SOFTMAX])
    graph = p.graph()
    whole = makespan(graph)
    checkpointing(graph, layers="b.*", python=False)
    assert makespan(graph) == whole + 170


# Python takes longer behind data that a block moves through a CPU's caches


# vDNN and Gist: each answer worked out by hand


INPUT = "10x100 8x100"  # 1,000 floats, 4,000 B


def convolutions(count=3, *, forward=50, backward=60, shapes=INPUT):
    program = Program()
    for number in range(count):
        program.op("aten::conv2d", "forward", (f"conv {number}", forward), shapes=shapes)
    for number in reversed(range(count)):
        with program.range("ConvolutionBackward0", "operator", phase="backward"):
            program.op("aten::convolution_backward", "backward", (f"grad {number}", backward))
    return program.graph()


def start(graph):
    timeline = simulate(graph)
    return dict(zip(timeline.column("name").tolist(), timeline.start_ns.tolist(), strict=True))


# vDNN


def test_copies_run_beside_their_layers_and_cost_nothing_where_they_fit():
    #  stream 7  6|conv 0 50|conv 1 50|conv 2 50|grad 2 60|grad 1 60|grad 0 60|
    #  offload     |0 40|   56|1 40|        prefetch 156|1 40| 216|0 40|
    # The first offload's launch follows conv 0's own, on the CPU: begun at 8, there 4 ns later.
    graph = convolutions()
    assert makespan(graph) == 6 + 3 * 50 + 3 * 60
    vdnn(graph, bandwidth=100.0)  # 4,000 B at 100 B/ns: 40 ns
    assert named(graph, "offload").duration_ns.tolist() == [40, 40]
    ran = times(graph)
    assert ran["offload"] == [(8 + 4, 52), (56, 96)]
    assert ran["prefetch"] == [(156, 196), (216, 256)]
    assert makespan(graph) == 6 + 3 * 50 + 3 * 60
    assert set(graph.select(kind="memcpy").lane) == {"vdnn offload", "vdnn prefetch"}
    assert graph.lint() == []


def test_a_layer_waits_for_the_copy_of_the_one_before_it():
    #  stream 7  6|conv 0 50|     92|conv 1 50|      172|conv 2 50|grad 2 60|    302|grad 1|    382|grad 0|
    #  offload     12|0 80      |92|1 80           |    prefetch 222|1 80     |302|0 80   |
    graph = convolutions()
    vdnn(graph, bandwidth=50.0)  # 80 ns
    begin = start(graph)
    assert [begin[f"conv {number}"] for number in range(3)] == [6, 92, 172]
    assert [begin[f"grad {number}"] for number in (2, 1, 0)] == [222, 302, 382]


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (lambda: convolutions(shapes=None), {"bandwidth": 1.0}, NotApplicableError, "record it with shapes"),
        (lambda: convolutions(1), {"bandwidth": 1.0}, NotApplicableError, "last one stays"),
        (convolutions, {}, NotApplicableError, "--bandwidth"),
        (convolutions, {"ahead": 0}, GraphError, "1 or more"),
        (convolutions, {"bandwidth": 0.0}, GraphError, "bandwidth must be above 0"),
        (lambda: thread_and_stream("gemm 5 forward"), {}, NotApplicableError, "no convolutions"),
    ],
)
def test_where_nothing_can_be_offloaded_it_says_why(graph, options, error, words):
    with pytest.raises(error, match=words):
        vdnn(graph(), **options)


# Gist


def activations(nodes=2, tiny=0):
    program = Program()
    for _ in range(2):
        program.op("aten::relu", "forward", ("relu", 40), shapes="1000x1000")
    for _ in range(nodes):
        with program.range("ReluBackward0", "operator", phase="backward"):
            program.op("aten::threshold_backward", "backward", ("grad", 60))
    for _ in range(80 if tiny else 0):
        program.op("aten::x", "other", ("tiny", tiny))
    return program.graph()


def test_layers_that_cannot_be_told_apart_are_refused():
    does_not_apply("which belongs to which", gist, activations(nodes=3))
    does_not_apply("no ReLU", gist, convolutions())
    refuses("1 or more", gist, activations(), ratio=0.5)


def test_reentrant_checkpoints_compute_whole_blocks_again():
    graph = block_of(UP, GELU, VIEW, DOWN, ADD)
    whole = makespan(graph)
    checkpointing(graph, layers="b.*", reentrant=True)
    assert makespan(graph) == whole + 153 + BLOCK


def test_tensors_are_counted_as_torch_saves_them():
    graph = block_of(UP, GELU, VIEW, DOWN, ADD, TWICE)
    whole = makespan(graph)
    checkpointing(graph, layers="b.*")
    assert makespan(graph) == whole + 33 + BLOCK + (2 + 1 + 2) * TENSOR


def test_an_earlier_prefetch_does_not_stall():
    # Both feature maps are asked for when grad 2 begins: the second copy comes while grad 1 runs.
    graph = convolutions()
    vdnn(graph, bandwidth=50.0, ahead=2)
    begin = start(graph)
    assert [begin[f"grad {number}"] for number in (2, 1, 0)] == [222, 302, 382]
    graph = convolutions()
    vdnn(graph, bandwidth=62.5, ahead=2)  # 64 ns: from 190 two copies, to 254 and 318; grad 1 runs to 314
    begin = start(graph)
    assert [begin[f"grad {number}"] for number in (2, 1, 0)] == [190, 254, 318]


def test_a_kernel_as_short_as_any_is_all_fixed_cost():
    #  2+4|relu 40|encode 40|relu 40|encode 40|decode 40|grad 60|decode 40|grad 60|
    graph = activations()
    gist(graph, ratio=2.0)
    assert graph.select(name="^(encode|decode)$").duration_ns.tolist() == [40] * 4
    assert makespan(graph) == 6 + 2 * (40 + 40) + 2 * (40 + 60)
    assert len(graph.select(name="^(encode|decode)$").launches()) == 4


def test_python_takes_longer_behind_more_data_up_to_caches_that_hold_nothing_of_it():
    moved = 2 * 2_000 * KIB
    forward, backward = python_ns(moving(rows=2_000))
    cold = round((moved - 250_000) * 0.009)
    assert (forward, backward) == (50_000 + 6_900 + cold, 82_000 + 12_300 + cold)
    assert python_ns(moving(rows=100_000)) == [50_000 + 6_900 + 170_000, 82_000 + 12_300 + 110_000]


def test_data_on_a_gpu_leaves_the_cpus_caches_as_they_are():
    assert sum(python_ns(moving(rows=2_000, kernel=500))) == HOT


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
