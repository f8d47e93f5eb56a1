"""Other batches and lengths, and what grows with them: each answer worked out by hand."""

from math import isnan, prod

import pytest
from daydream.optimizations.batch_size import batch_size, sequence_length
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from daydream.optimizations.pipeline import input_bytes
from daydream.optimizations.tensor_parallel import Divided
from graph.small_graphs import kernels, put
from graph.small_traces import launched, trace
from recorded import (
    Program,
    change,
    kernel_ns,
    makespan,
    noted,
    of_calls,
    refusals,
    thread_and_stream,
)
from shared import shared_replay
from test_model_parallel import transformer

from daydream import Graph, GraphError
from daydream.costs import work
from daydream.costs.device.call_scaling import link_bandwidth
from daydream.costs.device.input_sizes import (
    growth_by_grids,
    is_feature_size,
    recorded_batch,
    recorded_length,
)
from daydream.costs.resize.growth import growth_of
from daydream.graph.build import build
from daydream.transforms import need_room

PINNED = "Memcpy HtoD (Pinned -> Device)"

UPDATE = ("update", None, "optimizer")


# Sequence length and batch size, by recorded shapes: each answer worked out by hand


BEGIN = 2 + 4  # an operator's own time before its launch, and the latency of the launch


def grown(graph):
    """Return by how much the time above the fixed cost of 5 us grew."""
    return [round(float(ns - 5_000) / 75_000, 2) for ns in kernel_ns(graph)]


PATCHES = "conv2d 12x3x8x8 16x3x8x8 16, relu 12x16x1x1" + ", linear 2x6x16 16x16 16" * 3
SIX = "linear 2x6x24 12x24 12"


def attention(tokens=10):
    """Features 16 wide, and heads 8; the backward pass ends with what is done with parameters alone."""
    return of_calls(
        ("linear", [[2, tokens, 16], [16, 16], [16]]),
        ("bmm", [[4, tokens, 8], [4, 8, tokens]]),
        ("_softmax", [[2, 2, tokens, tokens], [], []]),
        ("gelu", [[2, tokens, 16]]),
        "my_op 3 backward",
        "add_ 16x16 16x16 backward",
        "add_ 16x16 16x16 optimizer",
    )


def test_work_by_token_grows_with_the_length_and_scores_with_its_square():
    graph = attention()
    assert recorded_length(graph) == 10
    sequence_length(graph, length=30)
    assert grown(graph) == [3, 9, 9, 3, 3, 1, 1]
    assert makespan(graph) == BEGIN + 7 * 5_000 + 75_000 * (3 + 9 + 9 + 3 + 3 + 1 + 1)


@pytest.mark.parametrize("tokens", [16, 8])  # the width, and that of a head
def test_a_length_that_heads_or_features_have_too_is_told_by_where_it_stands(tokens):
    graph = attention(tokens)
    assert is_feature_size(graph, tokens)
    sequence_length(graph, length=3 * tokens)
    assert grown(graph) == [3, 9, 9, 3, 3, 1, 1]


def test_tokens_picked_for_an_expert_grow_with_all_tokens():
    graph = of_calls(
        "linear 4x5x16 3x16 3",  # the router
        ("index", [[20, 16], [[7]]]),
        "linear 7x16 64x16 64",  # an expert
        "gelu 7x64",
        "mm 64x7 7x16 backward",
        "add_ 9x64 9x64 backward",  # no rows
    )
    batch_size(graph, factor=2)
    router, _, *expert, no_rows = grown(graph)
    assert [router, *expert] == [2, 2, 2, 2]
    assert no_rows == 1


GROWN = {  # calls; change; by how much each grows
    # Heads as wide as the sequence is long: keys and values, which are copied, look like scores.
    "only between the products of an attention tokens stand twice": (
        (
            "linear 2x8x16 16x16 16, copy_ 2x2x8x8 2x2x8x8, bmm 4x8x8 4x8x8, mul 2x2x8x8 -, "
            "_softmax 2x2x8x8 - -, copy_ 2x2x8x8 2x2x8x8, bmm 4x8x8 4x8x8, copy_ 2x2x8x8 2x2x8x8"
        ),
        "sequence-length length=24",
        [3, 3, 9, 9, 9, 3, 9, 3],
    ),
    # 12 patches, 6 of each of 2 samples, are embedded by a convolution; the layers see 2 x 6 tokens.
    "patches": (PATCHES, "batch-size factor=2 recorded=2", [2] * 5),
    # 64 features are 16 x 4 samples, and a table of 12 x 12 is no batch either.
    "a feature size that is a multiple of the batch stays": (
        "linear 4x5x16 64x16 64, mul 12x12 -, fill_ 1x64 - backward, add 4x5x64 4x5x64",
        "batch-size factor=2",
        [2, 1, 1, 2],
    ),
    # 2 sequences of 6 tokens, or 6 tokens of each of 2 sequences
    "of two sizes seen equally often the given one is taken": (
        (
            "scaled_dot_product_attention 2x6x40x8 2x6x40x8 2x6x40x8, "
            "scaled_dot_product_attention 4x6x10x8 4x6x10x8 4x6x10x8"
        ),
        "batch-size factor=2 recorded=2",
        [2, 2],
    ),
    "a batch of 2": (SIX, "batch-size factor=2 recorded=2", [2]),
    "a batch of 6": (SIX, "batch-size factor=2 recorded=6", [2]),
}


def of(calls):
    return of_calls(*calls.split(", "))


@pytest.mark.parametrize("case", GROWN)
def test_what_grows(case):
    calls, text, factors = GROWN[case]
    assert grown(change(of(calls), text)) == factors


def without_shapes():
    return of_calls(("linear", None))


def training_by_shapes():
    ns = 80_000
    p = Program()
    p.op("aten::to", "data", ("Memcpy HtoD (Pinned -> Device)", 100), shapes=None)
    p.op("aten::linear", "forward", ("gemm", ns), shapes="6x16 32x16 32")
    p.op("aten::mm", "backward", ("gemm", ns), shapes="32x6 6x16")  # the weight's gradient
    p.op("aten::add_", "backward", ("add", ns), shapes="32x16 32x16")  # its accumulation
    p.op("aten::add_", "optimizer", ("update", ns), shapes="32x16 32x16")
    return p.graph()


# Products without a bias: which of their sizes is the batch

FORWARD = "24x16 16x64"
INPUT = "24x64 64x16"
WEIGHT = "64x24 24x16"
OLD = "16x24 24x64"  # a weight's gradient the other way round


def products(*backward):
    """Return a forward product of 24 rows, 3 x 8, and others in a compiled backward pass, then a GELU."""
    p = Program()
    p.op("aten::mm", "forward", ("gemm", 10), shapes=FORWARD)
    with p.range("CompiledFunctionBackward", "operator", phase="backward"):
        for shapes in backward:
            p.op("aten::mm", "backward", ("gemm", 10), shapes=shapes)
    p.op("aten::gelu", "forward", ("gelu", 10), shapes="24x16")
    return p.graph()


def growth(graph, batch, new, **how):
    return growth_of(graph, kernels(graph), batch, new, **how)


def test_rows_of_a_product_grow_whatever_else_is_a_multiple_of_the_batch():
    # 24, 16 and 64 are multiples of 8; only rows double: 24 to 48.
    rows, weight = 24 * 16 + 24 * 64, 16 * 64
    found = growth(products(INPUT, WEIGHT, OLD), 8, 16)
    assert found.flop[:4].tolist() == [2] * 4
    assert found.nbytes[:4].tolist() == pytest.approx([(2 * rows + weight) / (rows + weight)] * 4)
    assert found.known.all()
    assert found.results[:3].tolist() == [2, 2, 1]  # the gradient of a weight keeps its size
    assert isnan(found.results[4])  # no product


@pytest.mark.parametrize("added", [[16], [1, 16], [1, 1]])
def test_of_what_is_broadcast_only_the_dimension_of_the_batch_grows(added):
    # 16 features are a multiple of the batch of 8, too.
    found = growth(of_calls(("add", [[8, 16], added, []])), 8, 24)
    assert found.flop.tolist() == [3.0]
    assert found.nbytes.tolist() == pytest.approx([(2 * 24 * 16 + prod(added)) / (2 * 8 * 16 + prod(added))])


def test_pairs_of_tokens_grow_as_the_square_of_the_length():
    # 10 tokens make 55 pairs with themselves, 45 without; 20 make 210 and 190. A batch leaves them.
    graph = of_calls("sqrt 8x1x55", "sqrt 8x1x45", "gelu 8x10x16")
    by_length = growth(graph, 10, 20, every=True)
    assert by_length.nbytes.tolist() == pytest.approx([210 / 55, 190 / 45, 2])
    assert growth(graph, 8, 24).nbytes.tolist() == [3.0, 3.0, 3.0]


# Which size is meant


# Work without shapes


# Work that only grids tell of

ELEMENTS = 512  # a block of torch's vectorized kernels works on so many elements
VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int, T2, T3)"


def of_grids(*kernels):
    """Return a step of kernels without shapes, each with its grid and phase."""
    rows = []
    for number, (name, grid, phase) in enumerate(kernels, 1):
        at = 100.0 * number
        rows += launched(name, at, at + 10, at + 90, number, grid=grid, block="128,1,1", phase=phase)
    return build(trace(rows, steps=(0.0, 100.0 * len(kernels) + 100)))


def grids_of_a_step(length=64, heads=6, width=80):
    """A layer of attention and its update, with grids and without shapes: a batch of 2."""
    tokens = 2 * length
    scores = f"{heads * length * length // ELEMENTS},1,1"
    return of_grids(
        ("sgemm_128x64_tn", f"{-(-width // 128)},{-(-tokens // 64)},1", "forward"),
        ("sgemm_64x64_tn", f"{-(-length // 64)},{-(-length // 64)},{heads}", "forward"),
        (VECTORIZED.format("MulFunctor"), scores, "forward"),
        ("void cunn_SoftMaxForward<4, float>", f"{heads * length},1,1", "forward"),
        ("sgemm_32x32_nn", f"2,{length // 32},{heads}", "forward"),
        (VECTORIZED.format("gelu"), f"{tokens * width // ELEMENTS},1,1", "forward"),
        ("sgemm_128x64_nt", "1,2,1", "backward"),
        (VECTORIZED.format("transposed copy"), "125,1,1", "backward"),  # as large as the parameters
        (VECTORIZED.format("update"), "125,1,1", "optimizer"),
    )


def without_scores():
    graph = grids_of_a_step()
    graph.select(name="SoftMax|64x64").remove()
    return graph


# Public traces, where their layout decides the answer


def test_a_length_that_grids_do_not_tell_can_be_given():
    assert max(grown(change(without_scores(), "sequence-length length=128 recorded=64"))) == 2


def decoding(name):
    return shared_replay(f"kineto/{name}decode_graph_replay.json.gz").graph.copy()


# What a larger batch or longer sequences leave for the optimizations behind them, worked out by hand


MIB = 2**20


def streaming():
    """An addition of 8 x 262,144 floats, 8 MiB each: 24 MiB moved in 12 x 2**20 ns, 2 B/ns."""
    return of_calls(
        "linear 8x16 32x16 32",
        "add 8x262144 8x262144 -",
        "mm 32x8 8x16 backward",
        "add_ 32x16 32x16 - optimizer",
        ns=12 * MIB,
    )


def test_work_after_a_larger_batch_is_that_of_the_larger_batch():
    graph = streaming()
    batch_size(graph, factor=4)
    after = work(graph, kernels(graph))
    # 32 x 16 weights; the update's work is that of the parameters.
    assert after.flop.tolist() == [2 * 32 * 16 * 32, 32 * 262144, 2 * 32 * 16 * 32, 32 * 16]
    moved = [32 * 16 + 32 * 16 + 32 * 32 + 32, 3 * 32 * 262144, 32 * 32 + 32 * 16 + 32 * 16, 3 * 32 * 16]
    assert after.nbytes.tolist() == [4 * elements for elements in moved]
    shapes = kernels(graph).shapes.tolist()
    assert shapes[0] == "[[32,16],[32,16],[32]]"
    assert shapes[2] == "[[32,32],[32,16]]"


def test_work_of_unknown_batch_grows_by_the_factor():
    phases = ("forward", "backward", "optimizer")
    graph = of_calls(*[("add", "1000 1000", phase) for phase in phases])
    batch_size(graph, factor=3)
    assert work(graph, kernels(graph)).flop.tolist() == [3000, 3000, 1000]


def test_sums_of_divided_layers_are_those_of_the_larger_batch():
    # 4 tokens of 8 floats become 8, those of the batch of 4.
    recorded, grown = transformer(), transformer()
    batch_size(grown, factor=2)
    assert {nbytes for _, nbytes, _ in Divided(recorded, 2).sums} == {4 * 8 * 4}
    assert {nbytes for _, nbytes, _ in Divided(grown, 2).sums} == {8 * 8 * 4}
    assert (input_bytes(recorded, "blocks.1"), input_bytes(grown, "blocks.1")) == (4 * 8 * 4, 8 * 8 * 4)


# What is computed: batch size, accumulation, checkpointing, fewer layers, each answer worked out by hand


def cpu_step(steps=1):
    #  main  |load 5|a 10|b 20|loss 3|b' 40|a' 30|optimizer 7|
    graph = Graph()
    for step in range(steps):
        for name, duration, phase, layer in (
            ("load", 5, "data", None),
            ("a forward", 10, "forward", "a"),
            ("b forward", 20, "forward", "b"),
            ("loss", 3, "loss", None),
            ("b backward", 40, "backward", "b"),
            ("a backward", 30, "backward", "a"),
            ("optimizer", 7, "optimizer", None),
        ):
            put(graph, name, "main", duration, phase=phase, layer=layer, step=step)
    return graph


PASSES = 10 + 20 + 3 + 40 + 30


# Gradient accumulation


@pytest.mark.parametrize("batches", [2, 3, 4])
def test_accumulation_repeats_all_but_the_optimizer(batches):
    graph = change(cpu_step(2), f"gradient-accumulation batches={batches}")
    assert makespan(graph) == 2 * (batches * (5 + PASSES) + 7)
    assert len(graph.select(phase="optimizer")) == 2


def test_gradients_are_reduced_once():
    graph = cpu_step()
    put(
        graph,
        "all-reduce",
        "link",
        100,
        phase="backward",
        step=0,
        collective="all_reduce",
        after=[graph.select(name="b backward")],
        before=[graph.select(name="optimizer")],
    )
    gradient_accumulation(graph)
    assert len(graph.select(kind="collective")) == 1
    # The all-reduce of the last batch runs beside `a backward` (30) and ends 100 behind `b backward`.
    assert makespan(graph) == 2 * 5 + PASSES + (10 + 20 + 3 + 40) + 100 + 7


# Checkpointing


# Fewer layers


# Batch size


@pytest.mark.parametrize("factor", [0.5, 2, 4])
def test_kernels_copies_and_loading_grow_with_the_batch_and_the_optimizer_stays(factor):
    #  thread  |load 100|launch 6|launch 6|launch 6|launch 6|
    #  stream           4|copy 40|f 80,000|b 80,000|optimizer 80,000|
    # All kernels are alike, so 5,000 of each, the most that can be, count as its fixed cost.
    graph = thread_and_stream(
        "Memcpy HtoD 40 forward, f 80000 forward, b 80000 backward, o 80000 optimizer",
    )  # fmt: skip
    graph.insert_before(graph.select(name="begin"), "load", duration_ns=100, phase="data")
    batch_size(graph, factor=factor)
    assert makespan(graph) == 100 * factor + 4 + 40 * factor + 2 * (5_000 + 75_000 * factor) + 80_000


# Values of options that make no sense are refused in a line that names the option


def without_backward():
    graph = cpu_step()
    graph.select(phase="backward").remove()
    return graph


def two_blocks():
    #  main  |block 0 10|block 1 10|backward 20|optimizer 5|
    graph = Graph()
    for name, duration, phase, layer in (
        ("a", 10, "forward", "blocks.0"),
        ("b", 10, "forward", "blocks.1"),
        ("c", 20, "backward", "blocks.1"),
        ("d", 5, "optimizer", None),
    ):
        put(graph, name, "main", duration, phase=phase, layer=layer, step=0)
    return graph


def test_sequence_first_layouts_do_not_hide_the_batch():
    graph = of_calls(
        "linear 43x8x16 16x16 16",
        "conv1d 8x4x43 16x4x1 16",
        "relu 8x16x43",  # shows the convolution's output
    )
    assert recorded_batch(graph) == 8


def test_what_is_looked_up_and_lost_is_of_samples_though_parameters_have_its_shape():
    # 4 samples of 4 tokens, 16 features, 10 words: 16 indices, 16 x 10 logits, as a bias and a weight.
    graph = of_calls(
        "linear 4x4x16 16x16 16",
        "linear 4x4x16 10x16 10",
        "embedding 10x16 4x4",
        "index_select 10x16 - 16",
        "_log_softmax 16x10 - - loss",
    )
    found = growth(graph, 4, 8)
    assert found.nbytes[2:].tolist() == [2.0, 2.0, 2.0]
    assert found.known.all()


def test_shapes_that_do_not_fit_at_the_new_size_grow_in_proportion():
    # Whose rows are samples, of 24 x 16 by 16 x 64? 72 x 16 by 48 x 64 is no product.
    p = Program()
    p.op("aten::linear", "forward", ("gemm", 80_000), shapes="8x4x4 4x4 4")
    for many in (2, 3):
        p.op("aten::relu", "forward", shapes=[[8, many, 4]])
    p.op("aten::matmul", "backward", ("product", 240_000), shapes="24x16 16x64")
    graph = p.graph()
    batch_size(graph, factor=3, recorded=8)
    assert kernel_ns(graph, name="product") == [5_000 + 235_000 * 3]
    assert "by the recorded shapes for 25% of the time (75% in proportion)" in " ".join(graph.facts.notes)


def test_a_size_of_one_is_no_evidence_beside_another():
    words, positions = ("embedding", "100x16 8x20"), ("embedding", "50x16 1x20")
    assert recorded_batch(of_calls(words, positions)) == 8


def test_grids_of_scores_tell_the_length_and_what_grows_as_its_square():
    graph = grids_of_a_step()
    sequence_length(graph, length=128)
    #       product, scores: product, scale, softmax, product; activation, gradient; parameters twice
    assert grown(graph) == [2, 4, 4, 4, 4, 2, 2, 1, 1]
    assert noted(graph, "from 64 to 128 tokens")


@pytest.mark.parametrize(
    ("softmax", "blocks"),
    [
        ("void cunn_SoftMaxForward<4, float>", 6 * 64),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>",
            6 * 64 // 8,
        ),
        ("void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>", 6 * 64 // 4),
    ],
)
def test_rows_of_a_softmax_tell_the_length_where_nothing_else_works_on_scores(softmax, blocks):
    graph = of_grids(
        ("sgemm_64x64_tn", "1,1,6", "forward"),
        (softmax, f"{blocks},1,1", "forward"),
        ("sgemm_32x32_nn", "2,2,6", "forward"),
        UPDATE,
    )
    work = graph.select(kind="kernel", phase="forward")
    assert growth_by_grids(graph, work).length == 64
    assert growth_by_grids(graph, work).work.tolist() == [2, 2, 2]


def test_copies_of_a_larger_batch_hold_more_and_the_link_is_as_fast_as_before():
    p = Program()
    p.op("aten::copy_", "data", (PINNED, 4 * MIB))
    p.op("aten::linear", "forward", ("gemm", 1_000), shapes="8x16 32x16 32")
    p.op("aten::linear", "backward", ("gemm", 1_000), shapes="8x16 32x16 32")
    for row in p.rows:
        if row["kind"] == "memcpy":
            row["bytes"] = 8 * MIB
    graph = p.graph()
    batch_size(graph, factor=4)
    copies = graph.select(kind="memcpy")
    assert (copies.bytes.tolist(), copies.duration_ns.tolist()) == ([32 * MIB], [16 * MIB])
    assert link_bandwidth(graph) == pytest.approx(2.0)


def test_as_many_tasks_as_can_be_simulated_may_be_added():
    need_room(5_000_000, "count", 1)
    with pytest.raises(GraphError, match="up to 5,000,000 can be simulated"):
        need_room(5_000_001, "count", 1)


test_sizes_that_are_no_question_are_refused = refusals(globals())
