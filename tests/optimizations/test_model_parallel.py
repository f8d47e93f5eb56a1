"""Tensor and pipeline parallelism: each answer worked out by hand."""

import pytest
from daydream.optimizations.pipeline import pipeline
from daydream.optimizations.tensor_parallel import Divided, tensor_parallel
from graph.small_graphs import put
from recorded import Program, change, kernel_ns, makespan, noted, refusals

from daydream import Graph, simulate
from daydream.world.compose import in_order, passes_of_stages

BEGIN = 2 + 4  # an operator's own time before its launch, and the latency of the launch
FLOOR = 10  # of any kernel: the four smallest of each program take it
TINY = ("tiny", FLOOR)
SUM = 4 * 8 * 4  # ns: 4 tokens of 8 floats, added up by a ring of two over 1 B/ns

FORWARD = (  # operator, layer, ns, shapes; 2 samples of 2 tokens, 8 features, 2 heads of 4
    ("aten::native_layer_norm", "norm", 30, "2x2x8 8 8 8 -"),
    ("aten::addmm", "qkv", 210, "24 4x8 8x24"),
    ("aten::_scaled_dot_product_flash_attention", None, 90, [[2, 2, 2, 4]] * 3),
    ("aten::addmm", "out", 110, "8 4x8 8x8"),
    ("aten::add", None, 40, "2x2x8 2x2x8 -"),
    ("aten::addmm", "up", 410, "32 4x8 8x32"),
    ("aten::gelu", None, 50, "2x2x32"),
    ("aten::addmm", "down", 310, "8 4x32 32x8"),
)
BACKWARD = (
    ("aten::mm", "down", 310, "4x8 8x32"),
    ("aten::mm", "down", 330, "8x4 4x32"),
    ("aten::gelu_backward", None, 70, "2x2x32 2x2x32"),
    ("aten::mm", "up", 410, "4x32 32x8"),
    ("aten::mm", "up", 430, "32x4 4x8"),
    ("aten::mm", "out", 110, "4x8 8x8"),
    ("aten::mm", "out", 130, "8x4 4x8"),
    ("aten::_scaled_dot_product_flash_attention_backward", None, 190, [[2, 2, 2, 4]] * 4),
    ("aten::mm", "qkv", 210, "4x24 24x8"),
    ("aten::mm", "qkv", 230, "24x4 4x8"),
    ("aten::native_layer_norm_backward", "norm", 60, "2x2x8 2x2x8 8 - - 8"),
)
HALVED = 210 + 90 + 110 + 410 + 50 + 310
HALVED_BACKWARD = 310 + 330 + 70 + 410 + 430 + 110 + 130 + 190 + 210 + 230


def halved(total, kernels):
    """Return what so many kernels take of half the work: their fixed cost stays."""
    return kernels * FLOOR + (total - kernels * FLOOR) // 2


def run(p, phase, work, block, *, layers=True):
    for op, layer, ns, shapes in work:
        path = None if block is None else ".".join(["blocks", str(block), *([layer] if layer else [])])
        p.op(op, phase, (op, ns), shapes=shapes, layer=path if layers else None)


def transformer(*, blocks=2, training=True, head=False, update=0, **how):
    #  stream 7 |tiny 4 x 10| blocks forward |(head)| blocks backward |(update)|
    p = Program()
    p.op("aten::zero_", "forward", TINY, TINY, TINY, TINY)
    if head:
        p.op("aten::embedding", "forward", ("look up", 100), shapes="64x8 2x2", layer="words")
    for block in range(blocks):
        run(p, "forward", FORWARD, block, **how)
    if head:
        p.op("aten::mm", "forward", ("head", 610), shapes="4x8 8x64", layer="head")
        if training:
            p.op("aten::_log_softmax", "loss", ("loss", 110), shapes="4x64 - -")
            p.op("aten::mm", "backward", ("head'", 610), shapes="4x64 64x8", layer="head")
            p.op("aten::mm", "backward", ("head'", 610), shapes="64x4 4x8", layer="head")
    for block in reversed(range(blocks if training else 0)):
        run(p, "backward", BACKWARD, block, **how)
    metadata = {}
    if update:
        p.op("aten::_foreach_add_", "optimizer", ("update", update))
        metadata["parameters"] = [
            {"name": f"blocks.{block}.{layer}.weight", "layer": f"blocks.{block}.{layer}", "shape": [size]}
            for block in range(blocks)
            for layer, size in (("norm", 40), ("qkv", 30), ("out", 30), ("up", 30), ("down", 30))
        ]
    return p.graph(**metadata)


def perceptron():
    p = Program()
    for block in (0, 1):
        p.op("aten::addmm", "forward", ("up", 100), shapes="32 4x8 8x32", layer=f"{block}.up")
        p.op("aten::relu", "forward", ("relu", 100), shapes="4x32", layer=f"{block}")
        p.op("aten::addmm", "forward", ("down", 100), shapes="8 4x32 32x8", layer=f"{block}.down")
    return p.graph()


def trained_elsewhere():
    p = Program()
    for block in (0, 1):
        run(p, "forward", FORWARD, block)
    run(p, "backward", BACKWARD, None)
    return p.graph()


def accumulating():
    graph = Graph()
    for phase in ("forward", "backward", "forward", "backward"):
        for number in (0, 1):
            put(graph, phase, "main", 1, phase=phase, step=0, layer=f"blocks.{number}")
    return graph


# Tensor parallelism


def test_products_and_what_lies_between_are_divided_and_two_sums_a_pass_and_block_are_waited_for():
    graph = transformer()
    forward, backward = 30 + 40 + HALVED, 60 + HALVED_BACKWARD
    assert makespan(graph) == BEGIN + 4 * FLOOR + 2 * (forward + backward)
    tensor_parallel(graph, degree=2, bandwidth=1.0)
    forward = 30 + 40 + halved(HALVED, 6) + 2 * SUM
    backward = 60 + halved(HALVED_BACKWARD, 10) + 2 * SUM
    assert makespan(graph) == BEGIN + 4 * FLOOR + 2 * (forward + backward)
    sums = graph.select(kind="collective")
    assert sums.bytes.tolist() == [SUM] * 8
    assert len(sums.launches()) == 8
    assert not graph.lint()


def test_queries_keys_and_values_apart_are_one_part_also_where_all_layers_are_square():
    p = Program()
    p.op("aten::zero_", "forward", TINY, TINY, TINY, TINY)
    square = "8 4x8 8x8"
    for block in (0, 1):
        for layer in ("q", "k", "v"):
            p.op("aten::addmm", "forward", (layer, 110), shapes=square, layer=f"h.{block}.{layer}")
        p.op("aten::bmm", "forward", ("scores", 50), shapes="4x2x4 4x4x2", layer=f"h.{block}")
        p.op("aten::bmm", "forward", ("values", 50), shapes="4x2x2 4x2x4", layer=f"h.{block}")
        for layer in ("o", "up", "down"):
            p.op("aten::addmm", "forward", (layer, 110), shapes=square, layer=f"h.{block}.{layer}")
    graph = p.graph()
    tensor_parallel(graph, degree=2, bandwidth=1.0)
    one = halved(6 * 110 + 2 * 50, 8) + 2 * SUM
    assert makespan(graph) == BEGIN + 4 * FLOOR + 2 * one
    assert noted(graph, "heads of attention: 2.")


def test_bytes_of_a_layer_are_divided_but_for_its_whole_side():
    graph = transformer()
    divided = Divided(graph, 2)
    part = dict(zip(zip(divided.tasks.layer, divided.tasks.phase, strict=True), divided.nbytes, strict=True))
    # up: 4 x 8 in (whole), 8 x 32 weights and 4 x 32 out (half); down: the other way round
    assert part["blocks.0.up", "forward"] == part["blocks.1.up", "backward"] == (32 + 384 / 2) / 416
    assert part["blocks.0.down", "forward"] == part["blocks.1.down", "backward"] == (32 + 384 / 2) / 416
    assert part["blocks.0.qkv", "forward"] == (32 + (192 + 96) / 2) / (32 + 192 + 96)
    assert part["blocks.0.norm", "forward"] == part["blocks.0.norm", "backward"] == 1


def test_embedding_last_layer_and_loss_are_divided_with_their_sums():
    graph = transformer(head=True)
    before = makespan(graph)
    tensor_parallel(graph, degree=2, bandwidth=1.0)
    blocks = 2 * (HALVED - halved(HALVED, 6) + HALVED_BACKWARD - halved(HALVED_BACKWARD, 10) - 4 * SUM)
    outside = 3 * 610 + 110 - halved(3 * 610 + 110, 4)
    # The embedding's output, the gradient of the last layer's input, three numbers a token for the loss.
    sums = SUM + SUM + 3 * 4 * 4
    assert makespan(graph) == before - blocks - outside + sums


def test_logits_that_no_loss_follows_are_gathered():
    graph = transformer(head=True, training=False)
    tensor_parallel(graph, degree=2, bandwidth=1.0)
    gathered = graph.select(kind="collective").last()
    assert (gathered.collective[0], gathered.bytes[0]) == ("all_gather", 4 * 64 * 4 // 2)
    assert gathered.duration_ns[0] == 4 * 64 * 4 // 2  # one step of a ring of two passes half on


def test_without_device_work_operators_keep_their_overhead_and_threads_wait():
    #  each product 4 ns of overhead: no time is saved, and 4 sums a block are waited for
    p = Program()
    for block in (0, 1):
        for op, layer, _, shapes in FORWARD:
            p.op(op, "forward", shapes=shapes, layer=f"blocks.{block}" + (f".{layer}" if layer else ""))
    graph = p.graph()
    whole = makespan(graph)
    assert whole == 2 * 8 * 4
    tensor_parallel(graph, degree=2, bandwidth=1.0)
    assert makespan(graph) == whole + 4 * SUM


def divided():
    return change(transformer(), "tensor-parallel degree=2 bandwidth=1")


# Pipelines


def stack(blocks=4, forward=10, backward=20, update=0, steps=1):
    #  main |0|1|2|3|3'|2'|1'|0'|update|
    graph = Graph()
    for step in range(steps):
        for name, phase, ns, numbers in (
            ("forward", "forward", forward, range(blocks)),
            ("backward", "backward", backward, range(blocks)[::-1]),
        ):  # fmt: skip
            for number in numbers:
                put(graph, f"{name} {number}", "main", ns, phase=phase, step=step, layer=f"blocks.{number}")
        if update:
            for number in range(blocks):
                put(graph, "update", "main", update, phase="optimizer", step=step, layer=f"blocks.{number}")
    return graph


FREE = {"micro_batch": "recorded", "bandwidth": 1.0, "activation_mb": 0.0}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "batches"), [(2, 1), (2, 4), (4, 4), (4, 8), (4, 2), (3, 7)])
def test_the_bubble_of_equal_stages_is_that_of_the_formula(schedule, stages, batches):
    # Of GPipe and 1F1B alike: idle time is (stages - 1) / micro-batches of the time that a GPU works.
    graph = stack(blocks=stages)
    pipeline(graph, stages=stages, micro_batches=batches, schedule=schedule, **FREE)
    ideal = batches * (10 + 20)
    assert makespan(graph) == ideal + (stages - 1) * ideal // batches
    assert not graph.lint()


@pytest.mark.parametrize(("stages", "batches"), [(2, 2), (2, 4), (4, 8)])
def test_two_chunks_a_gpu_halve_the_bubble(stages, batches):
    graph = stack(blocks=2 * stages)
    pipeline(graph, stages=stages, micro_batches=batches, schedule="interleaved", **FREE)
    ideal = batches * 2 * (10 + 20)
    assert makespan(graph) == ideal + (stages - 1) * ideal // batches // 2


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_messages_are_waited_for(schedule):
    #  1f1b     rank 0 |F0 10|F1 10|          46|B0 20|     76|B1 20|
    #           rank 1      13|F0 10|B0 20|F1 10|B1 20|
    #  gpipe    rank 0 |F0 10|F1 10|              56|B0 20|B1 20|
    #           rank 1      13|F0 10|F1 10|B0 20|B1 20|
    graph = stack(blocks=2)
    pipeline(
        graph, stages=2, micro_batches=2, schedule=schedule, micro_batch="recorded", bandwidth=1.0,
        activation_mb=3 / 2**20,
    )  # fmt: skip
    timeline = simulate(graph)
    ran = sorted(
        zip(timeline.start_ns.tolist(), timeline.column("lane"), timeline.column("name"), strict=True)
    )
    assert [start for start, lane, _ in ran if lane == "rank 1 main"] == (
        [13, 23, 43, 53] if schedule == "1f1b" else [13, 23, 33, 53]
    )
    assert [start for start, _, name in ran if name == "backward 0"] == (
        [46, 76] if schedule == "1f1b" else [56, 76]
    )
    assert timeline.makespan_ns == 96
    sent = graph.select(kind="collective")
    assert sorted(set(sent.lane)) == ["rank 0 activations", "rank 1 gradients"]
    assert sent.bytes.tolist() == [3] * 4


def test_schedules_as_their_authors_draw_them():
    def drawn(*how, **options):
        return [
            " ".join(("B" if b else "F") + f"{c}.{m}" for b, c, m in one)
            for one in passes_of_stages(*how, **options)
        ]

    assert drawn(2, 2, gpipe=True) == ["F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1"]
    assert drawn(2, 3) == ["F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"]
    assert drawn(2, 2, 2) == [
        "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1",
    ]
    for gpipe, chunks in ((True, 1), (False, 1), (False, 2)):
        for stages in (2, 3, 4):
            batches = 2 * stages
            passes = passes_of_stages(stages, batches, chunks, gpipe=gpipe)
            assert len(set(in_order(passes, stages * chunks))) == 2 * stages * chunks * batches


def test_the_optimizer_updates_the_parts_of_a_gpu():
    graph = transformer(update=90)
    before = makespan(graph)
    tensor_parallel(graph, degree=2, bandwidth=1.0)
    after = kernel_ns(graph, phase="optimizer")
    assert after == [FLOOR + 80 * (0.25 + 0.75 / 2)]  # 120 of 160 parameters of a block are divided
    assert makespan(graph) < before


def test_each_gpu_updates_its_own_blocks_and_steps_follow_each_other():
    #  rank 0 of 2 blocks of 4: |F 20|   |B 40|update 2 x 7|
    graph = stack(blocks=4, update=7, steps=2)
    pipeline(graph, stages=2, micro_batches=1, **FREE)
    updates = graph.select(phase="optimizer", step=0)
    assert updates.where(rank=0).duration_ns.tolist() == [7, 7, 0, 0]
    assert updates.where(rank=1).duration_ns.tolist() == [0, 0, 7, 7]
    # The second step's first pass waits for the update; the last stage's update is hidden.
    assert makespan(graph) == 2 * (2 * (20 + 40) + 14)


def test_a_gpu_has_one_thread_for_both_passes():
    #  main   |F0 10|F1 10|(idle 500)
    #  engine              |B1 20|B0 20|(idle 500)
    graph = Graph()
    before = []
    for name, phase, lane, ns, gap in (
        ("0", "forward", "main", 10, 0), ("1", "forward", "main", 10, 500),
        ("1", "backward", "engine", 20, 0), ("0", "backward", "engine", 20, 500),
    ):  # fmt: skip
        task = graph.insert(
            phase, kind="cpu", lane=lane, duration_ns=ns, gap_ns=gap, phase=phase, step=0,
            layer=f"blocks.{name}", after=before,
        )  # fmt: skip
        before = [task]
    pipeline(graph, stages=2, micro_batches=3, **FREE)
    assert set(graph.select(kind="cpu").lane) == {"main", "rank 1 main"}
    assert makespan(graph) == (3 + 1) * (10 + 20)


test_what_cannot_be_divided_or_a_pipeline_is_refused = refusals(globals())
