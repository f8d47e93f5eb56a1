"""Other layers, what is computed again, what is offloaded: each answer worked out by hand."""

from daydream.optimizations._layers import freeze, gradient_parts
from daydream.optimizations._offload import vdnn
from daydream.optimizations.checkpointing import checkpointing
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from graph.small_graphs import named, put
from recorded import Program, answers, makespan, refusals, times

from daydream import Graph, simulate
from daydream.model.gradients import joint_update, trained_parameters


def python_ns(graph):
    checkpointing(graph, layers="a")
    return graph.select(name="checkpoint in Python").duration_ns.tolist()


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


# Blocks


# Freeze


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


# Checkpointing and accumulation


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


def block(*blocks):
    p = Program()
    one_pass(p, *[[CALLS[name] for name in names.split()] for names in blocks])
    return p.graph()


CALLS = {
    "UP": ("aten::addmm", 10, "AddmmBackward0"),
    "GELU": ("aten::gelu", 20, "GeluBackward0"),
    "VIEW": ("aten::view", 3, "ViewBackward0"),
    "DOWN": ("aten::addmm", 40, "AddmmBackward0"),
    "ADD": ("aten::add", 80, "AddBackward0"),
    "SOFTMAX": ("aten::softmax", 160, "SoftmaxBackward0"),
    "TWICE": ("aten::mul scalar", 320, "MulBackward0"),  # by a number
    "OWN": ("MyFunction", 640, None),  # an autograd.Function; its node has no number
}


# Python takes longer behind data that a block moves through a CPU's caches


def checkpointed():
    p = Program()
    p.op("aten::linear", "forward", layer="a")
    p.op("aten::linear", "backward", layer="a")
    return p.graph()


def without_parameters():
    return two_linear_layers(parameters=[{"name": "a.w", "layer": "a", "shape": [2]}])


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


test_other_layers = answers(
    globals(),
    {
        "a frozen layer above a trained one keeps the gradient of its input": (
            "two_linear_layers",
            "freeze layers=b",
            "1326 to 836, CPU 60, 6 launches: f 100, f 100, loss 10, inputs 200, weights 400, update 20",
        ),
        "ahead of the first trained one nothing is computed backward": (
            "two_linear_layers",
            "freeze layers=a",
            "1326 to 556, CPU 50, 5 launches: f 100, f 100, loss 10, weights 300, update 40",
            "1 layer ahead",
        ),
        "a middle block is copied by default": (
            "three_blocks 2",
            "add-layers count=2",
            "276 to 440, CPU 440, 0 launches: ",
            "Added: 2 layers, copies of blocks.1 2 times.",
        ),
        "matching blocks are copied in turn 1": (
            "three_blocks",
            "add-layers layers=blocks.* count=1",
            "138 to 159, CPU 159, 0 launches: ",
        ),
        "matching blocks are copied in turn 2": (
            "three_blocks",
            "add-layers layers=blocks.* count=2",
            "138 to 200, CPU 200, 0 launches: ",
        ),
        "matching blocks are copied in turn 3": (
            "three_blocks",
            "add-layers layers=blocks.* count=3",
            "138 to 261, CPU 261, 0 launches: ",
        ),
        "matching blocks are copied in turn 4": (
            "three_blocks",
            "add-layers layers=blocks.* count=4",
            "138 to 282, CPU 282, 0 launches: ",
        ),
        "matching blocks are copied in turn 6": (
            "three_blocks",
            "add-layers layers=blocks.* count=6",
            "138 to 384, CPU 384, 0 launches: ",
        ),
        "a block is computed again once": (
            "three_blocks 2",
            "checkpointing",
            "276 to 396, CPU 396, 0 launches: ",
        ),
        "blocks by a pattern": (
            "three_blocks 2",
            "checkpointing layers=blocks.*",
            "276 to 396, CPU 396, 0 launches: ",
        ),
        "modules of blocks": (
            "three_blocks 2",
            "checkpointing layers=blocks",
            "276 to 396, CPU 396, 0 launches: ",
        ),
        "a product has its inputs before it begins": (
            "block 'UP GELU VIEW DOWN ADD'",
            "checkpointing layers=b.* python=False",
            "653 to 686, CPU 686, 0 launches: ",
        ),
        "a view saves nothing": (
            "block 'UP GELU VIEW'",
            "checkpointing layers=b.* python=False",
            "333 to 343, CPU 343, 0 launches: ",
        ),
        "a softmax saves its result": (
            "block 'UP GELU ADD SOFTMAX VIEW'",
            "checkpointing layers=b.* python=False",
            "773 to 1043, CPU 1043, 0 launches: ",
        ),
        "a number is no tensor": (
            "block 'UP SOFTMAX DOWN TWICE'",
            "checkpointing layers=b.* python=False",
            "930 to 1100, CPU 1100, 0 launches: ",
        ),
        "a function of the user's saves what it likes": (
            "block 'UP DOWN OWN'",
            "checkpointing layers=b.* python=False",
            "890 to 1580, CPU 1580, 0 launches: ",
        ),
        "its last": (
            "block 'UP DOWN OWN VIEW ADD'",
            "checkpointing layers=b.* python=False",
            "1173 to 1863, CPU 1863, 0 launches: ",
        ),
        "a block that saves nothing": (
            "block 'VIEW ADD' 'UP SOFTMAX'",
            "checkpointing layers=b.* python=False",
            "653 to 823, CPU 823, 0 launches: ",
        ),
        # and Python takes 50,000 forward and 82,000 backward, and 6,900 + 12,300 for each of 5 saved tensors
        "reentrant checkpoints compute whole blocks again": (
            "block 'UP GELU VIEW DOWN ADD'",
            "checkpointing layers=b.* reentrant=True",
            "653 to 132806, CPU 132806, 0 launches: ",
        ),
        "tensors are counted as torch saves them": (
            "block 'UP GELU VIEW DOWN ADD TWICE'",
            "checkpointing layers=b.*",
            "1073 to 229106, CPU 229106, 0 launches: ",
        ),
        #  2+4|relu 40|encode 40|relu 40|encode 40|decode 40|grad 60|decode 40|grad 60|
        "a kernel as short as any is all fixed cost": (
            "activations",
            "gist ratio=2",
            (
                "206 to 366, CPU 64, 8 launches: relu 40, encode 40, relu 40, encode 40, decode 40, grad 60, "
                "decode 40, grad 60"
            ),
        ),
    },
)

test_layers_that_cannot_be_changed_so_are_refused = refusals(globals())
