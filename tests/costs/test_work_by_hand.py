"""FLOP, bytes and overheads of calls, counted by hand."""

import json

import numpy as np
import pytest
from daydream.optimizations._layers import add_layers, remove_layers
from graph.small_graphs import kernels
from graph.small_traces import dims
from work_traces import Call, Kernel, graph_of

from daydream import simulate
from daydream.costs import scaled_time, work
from daydream.costs.operators import rows
from daydream.costs.operators import rows as operator_rows
from daydream.costs.workload.formulas import Amount
from daydream.costs.workload.operator import operator_work
from daydream.errors import NoMatchError
from daydream.graph.graph import Graph
from daydream.model.gradients import autograd_node_count, graph_walks, scale_autograd_walks

# FLOP and elements of every operator family, counted by hand


N = 2 * 3 * 4 * 4  # elements of the small images below
K = 5 * 3 * 3 * 3  # of the small weight
OUT = 2 * 5 * 2 * 2  # of their convolution's output
A, B = [64, 16], [4, 16, 32]  # 64 rows in 4 groups, and their weights
FILLS = "bernoulli cauchy exponential geometric log_normal normal random uniform zero"
FUNCTIONS = (
    "abs ceil cos erf exp exp2 expm1 floor log log1p log2 neg reciprocal round sign sin sqrt tan trunc"
)

# call (operator, shapes -> hint), family, FLOP, elements of the call's type, and bytes of other types
BY_HAND = [
    ("aten::mm 2x3 3x4", "matmul", 2 * 2 * 3 * 4, 6 + 12 + 8),
    ("aten::addmm 4 2x3 3x4 - -", "matmul", 48, 4 + 6 + 12 + 8),
    ("aten::bmm 5x2x3 5x3x4", "matmul", 5 * 48, 5 * 26),
    ("aten::baddbmm 5x2x4 5x2x3 5x3x4 - -", "matmul", 240, 130 + 40),
    ("aten::linear 7x2x3 4x3 4", "matmul", 14 * 2 * 3 * 4, 42 + 12 + 56 + 4),
    ("aten::matmul 5x2x3 3x4", "matmul", 5 * 48, 30 + 12 + 40),
    ("aten::matmul 3 3x4", "matmul", 2 * 3 * 4, 3 + 12 + 4),
    # each of 2 x 2 x 2 positions takes the whole weight, twice for multiply and add
    ("aten::conv2d 2x3x4x4 5x3x3x3 -> 2x5x2x2", "convolution", 2 * 8 * K, N + K + OUT),
    # groups: a weight of 6 x 1 x 3 x 3 on 3 channels
    ("aten::cudnn_convolution 1x3x4x4 6x1x3x3 - -> 1x6x4x4", "convolution", 2 * 16 * 54, 48 + 54 + 96),
    ("aten::convolution_backward 2x5x2x2 2x3x4x4 5x3x3x3 - -",
     "convolution", 2 * 2 * 8 * K, 2 * (N + K + OUT)),
    ("aten::cudnn_convolution_backward_input - 2x5x2x2 5x3x3x3 -", "convolution", 2 * 8 * K, 2 * OUT + K),
    ("aten::cudnn_convolution_backward_weight - 2x5x2x2 2x3x4x4 - -> 5x3x3x3",
     "convolution", 2 * 8 * K, N + K + OUT),
    ("aten::conv_transpose2d 1x4x2x2 4x3x2x2 -> 1x3x4x4", "convolution", 2 * 4 * 48, 16 + 48 + 48),
    # as many channels in as out: the larger output tells that it is transposed
    ("aten::convolution_backward 1x4x9x9 1x4x5x5 4x4x3x3 - -",
     "convolution", 2 * 2 * 25 * 144, 2 * (324 + 100 + 144)),
    # queries 2 x 3 heads x 4 x 8, keys and values of length 5: scores and their use
    ("aten::_scaled_dot_product_flash_attention 2x3x4x8 2x3x5x8 2x3x5x8 -",
     "attention", 2 * (2 * 3 * 4 * 5) * (8 + 8), 192 + 240 + 240 + 192),
    ("aten::_flash_attention_forward 2x4x3x8 2x5x3x8 2x5x3x8 -", "attention", 2 * 120 * 16, 864),
    ("aten::_scaled_dot_product_flash_attention_backward 2x3x4x8 2x3x4x8 2x3x5x8 2x3x5x8 2x3x4x8 -",
     "attention", 2 * 120 * 5 * 8, 2 * (192 + 240 + 240) + 2 * 192),
    # 6 steps x 2 in the batch, 4 inputs, 3 hidden: gates of 12
    ("aten::mkldnn_rnn_layer 6x2x4 12x4 12x3 12 12 2x3 2x3",
     "recurrent", 2 * 12 * (48 + 36), 12 * (4 + 12) + 84),
    (("aten::_cudnn_rnn", [[6, 2, 4], [[12, 4], [12, 3], [12], [12]], [], []]),
     "recurrent", 2 * 12 * 84, 12 * 16 + 84),
    ("aten::cudnn_batch_norm 2x3x4x4 3 3 3 3 -", "normalization", 8 * N, 2 * N + 12),
    ("aten::_log_softmax_backward_data 6x4 6x4 - -", "softmax", 4 * 24, 72),
    ("aten::nll_loss_backward - 6x4 6 - - - -", "loss", 6, 24, 48),
    ("aten::add_ 6x4 4 -", "element-wise", 24, 24 + 4 + 24),
    ("aten::clamp_min 6x4 - 6x4", "element-wise", 24, 48),  # the last is an output
    ("aten::addcmul_ 6 6 6 -", "element-wise", 18, 24),
    ("aten::fill_ 6x4 -", "element-wise", 0, 24),
    # in place, by a distribution: nothing is read
    *((f"aten::{name}_ 6x4 - -", "element-wise", 0, 24) for name in FILLS.split()),
    # a function of each number: one operation, read once, written once
    *((f"aten::{name} 6x4", "element-wise", 24, 24 + 24) for name in FUNCTIONS.split()),
    ("aten::eq 6x4 6x1", "element-wise", 24, 24 + 6, 24),  # writes a mask
    ("aten::where 6x4 6x4 -", "element-wise", 24, 24 + 24, 24),  # reads one
    ("aten::masked_fill_ 2x6x4 6x4 -", "element-wise", 48, 48 + 48, 24),
    # the gradient is one number, the last an output handed in
    ("aten::mse_loss_backward - 6x4 6x4 - 6x4", "element-wise", 72, 72),
    ("aten::elu_backward 6x4 - - - - 6x4", "element-wise", 24, 72),
    ("aten::glu 6x4 -", "element-wise", 24, 24 + 12),
    ("aten::glu_backward 6x2 6x4 -", "element-wise", 72, 12 + 24 + 24),
    # gates of 2 x 12 from input and state of 2 x 4; the state, and five values for the backward pass
    ("aten::_thnn_fused_gru_cell 2x12 2x12 2x4 - -", "element-wise", 2 * 24 + 4 * 8, 24 + 24 + 8 + 8 + 5 * 8),
    ("aten::native_dropout 6x4 - -", "element-wise", 48, 48, 24),
    ("aten::sum 6x4 - -", "reduction", 24, 24),
    ("aten::embedding 100x8 3x4", "gather", 0, 2 * 12 * 8, 96),
    # 12 rows of 8 added up to 3
    ("aten::_embedding_bag 10x8 12 3 -", "gather", 96, 96 + 24, 15 * 8),
    ("aten::index_select 100x8 - 12", "gather", 0, 2 * 12 * 8, 96),
    # and where each maximum was
    ("aten::max_pool2d_with_indices 2x3x4x4 - - -> 2x3x2x2", "pooling", N, N + 24, 24 * 8),
    ("aten::avg_pool3d_backward 2x3x2x2x2 2x3x4x4x4 - -", "pooling", 384, 48 + 384),
    (("aten::cat", [[[6, 4], [2, 4]], []]), "copy", 0, 2 * 32),
    (("aten::_foreach_add_", [[[6], [4, 4]], [[6], [4, 4]], []]), "optimizer", 22, 3 * 22),
    (("aten::_foreach_clamp_max", [[[6], [4, 4]], []]), "optimizer", 22, 2 * 22),
    # p, g, m, v read; p, m, v written
    (("aten::_fused_adam_", [[[6], [4, 4]]] * 4 + [[], [[], []], []]), "optimizer", 12 * 22, 7 * 22),
    # amsgrad: the largest second moments, too
    (("aten::_fused_adam_", [[[6], [4, 4]]] * 5 + [[[], []], []]), "optimizer", 12 * 22, 9 * 22),
    (("aten::_fused_sgd_", [[[6]], [[6]], [[6]], []]), "optimizer", 24, 5 * 6),
    ("triton_poi_fused_add_mul_0 6x4 6x4 6x4 -", "element-wise", None, 72),
    (("aten::_grouped_mm", [A, B, [4]]), "matmul", 2 * 64 * 16 * 32, 64 * 16 + 4 * 16 * 32 + 64 * 32),
    # the gradient of the weights: 64 rows are summed, in groups
    ("aten::_grouped_mm 16x64 64x32 4", "matmul", 2 * 16 * 64 * 32, 16 * 64 + 64 * 32 + 4 * 16 * 32),
    (("aten::_scaled_grouped_mm", [[4, 8, 16], B]),
     "matmul", 2 * 4 * 8 * 16 * 32, 4 * (8 * 16 + 16 * 32 + 8 * 32)),
    # 10 tokens, 2 of 8 experts each: 20 rows through 16 x 64 and 32 x 16
    ("vllm::outplace_fused_experts 10x16 8x64x16 8x16x32 10x2 10x2",
     "matmul", 2 * 20 * 16 * 64 + 2 * 20 * 32 * 16, 8 * (64 * 16 + 16 * 32) + 2 * 10 * 16 + 20 * 64),
    (("aiter::gemm_a8w8", [A, [32, 16], [64, 1]]), "matmul", 2 * 64 * 16 * 32, 64 * 16 + 16 * 32 + 64 * 32),
    # the result first
    (("_C::cutlass_scaled_mm", [[64, 32], A, [16, 32], [1], [1]]),
     "matmul", 2 * 64 * 16 * 32, 64 * 16 + 16 * 32 + 64 * 32),
]  # fmt: skip


@pytest.mark.parametrize(("call", "family", "flop", "elements", "extra"), [(*row, 0)[:5] for row in BY_HAND])
def test_work_counted_by_hand(call, family, flop, elements, extra):
    op, shapes = call.split(" ", 1) if isinstance(call, str) else call
    hint = None
    if isinstance(shapes, str):
        shapes, *hints = shapes.split(" -> ")
        hint = tuple(dims(hints[0])[0]) if hints else None
    amount = operator_work(op, json.dumps(dims(shapes)), hint)
    assert amount is not None
    found = amount.family, amount.flop, amount.elements, amount.extra_bytes
    assert found == (family, flop, elements, extra)


def test_every_family_is_counted_by_hand():
    shown = {"transfer", *(family for _, family, *_ in BY_HAND)}
    found = set()
    for name in rows():
        for shapes in ("[[4,4],[4,4],[4,4]]", "[[2,4,4,4],[4,4,4,4],[2,4,4,4],[2,4,4,4]]", "[[[4]],[[4]]]"):
            amount = operator_work(name, shapes, (2, 4, 4, 4))
            found |= {amount.family} if amount is not None else set()
    assert found <= shown


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("aten::my_own_operator", "[[4,4]]"),  # no formula
        ("aten::mm", None),  # shapes were not recorded
        ("aten::mm", "[]"),
        ("aten::mm", "[[4,4],[5,4]]"),  # does not fit
        ("aten::mm", "not json"),
        ("aten::mm", '{"a":1}'),
        ("aten::conv2d", "[[2,3,4,4],[5,3,3,3]]"),  # stride and padding are not recorded
        ("aten::_flash_attention_forward", "[[64,8,32],[64,8,32],[64,8,32]]"),  # packed sequences
        ("aten::cat", "[[],[]]"),  # older profilers do not record lists
        ("aten::_cudnn_rnn", "[[6,2,4],[],[]]"),
        ("aten::_grouped_mm", "[[64,16],[4,8,32]]"),  # sizes that do not fit
        ("vllm::moe_forward", "[[10,16],[10,8]]"),  # the weights are not among the arguments
        ("_C::paged_attention_v1", "[[4,8,64],[4,8,64],[100,8,16,16]]"),  # contexts are no shape
        ("mine::gemm_helper", "[[3,5],[7,9]]"),
    ],
)
def test_what_shapes_do_not_tell_stays_unknown(op, shapes):
    assert operator_work(op, shapes) is None


@pytest.mark.parametrize(
    "shapes",
    ["[]", "[[]]", "[[0]]", "[[3]]", "[[2,0,3]]", "[[[]],[[2],[]]]", "[[1,1,1,1,1,1]]", "[null,3]",
     "[[-1,2]]",
     "[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,0]]", "[[2,2],[3,3],[4]]", "[[1,2,3],[1,2,3,4],[5]]"],
)  # fmt: skip
@pytest.mark.parametrize("hint", [None, (1,), (2, 3, 4, 5)])
def test_no_formula_stumbles_over_odd_shapes(shapes, hint):
    for name in rows():
        amount = operator_work(name, shapes, hint)
        assert amount is None or min(amount.flop or 0, amount.elements or 0, amount.extra_bytes) >= 0, name


def test_bytes_need_the_element_type():
    amount = Amount("element-wise", 4, 8, extra_bytes=3)
    assert amount.nbytes(4) == 35
    assert amount.nbytes(None) is None
    assert Amount("gather", 0, None).nbytes(4) is None


# Which kernels do an operator call's work


MM = "64x32 32x16"
MM_FLOP = 2 * 64 * 32 * 16
MM_BYTES = 4 * (64 * 32 + 32 * 16 + 64 * 16)


def by_name(graph, values):
    return dict(zip(kernels(graph).name.tolist(), values.tolist(), strict=True))


def flop(graph):
    return by_name(graph, work(graph, kernels(graph)).flop)


def test_kernels_that_share_a_call_share_its_work_by_time():
    work = [Kernel("dgrad2d", 3000), Kernel("wgrad2d", 1000), Kernel("nchwToNhwcKernel", 8000)]
    shapes = "2x5x2x2 2x3x4x4 5x3x3x3 - -"
    graph = graph_of(Call("aten::convolution_backward", shapes, work))
    both = 2 * 2 * 8 * 135
    assert flop(graph) == {"dgrad2d": 3 * both // 4, "wgrad2d": both // 4, "nchwToNhwcKernel": -1}


def test_bytes_follow_the_element_type_and_a_list_takes_it_from_the_kernel():
    graph = graph_of(Call("aten::mm", MM, "hgemm 1_000", dtype="float16"))
    assert work(graph, kernels(graph)).nbytes.tolist() == [MM_BYTES // 2]
    untyped = graph_of(Call("aten::cat", [[[6, 4], [2, 4]], []], "CatArray 50", dtype=None))
    assert work(untyped, kernels(untyped)).nbytes.tolist() == [-1]


def test_cpu_operators_do_their_own_work_and_none_where_a_gpu_does_it():
    on_cpu = graph_of(Call("aten::mm", MM, tail_ns=50_000), device=None)
    done = work(on_cpu, on_cpu.select(kind="cpu"))
    assert done.flop[done.flop >= 0].sum() == MM_FLOP
    on_gpu = graph_of(Call("aten::mm", MM, "sgemm 1_000", tail_ns=50_000))
    assert (work(on_gpu, on_gpu.select(kind="cpu")).flop == -1).all()


# Autograd's walks over its graph: which gaps they are in, and that fewer layers have shorter ones


NODE = "autograd::engine::evaluate_function: "

#  main  |a 5|b 5|loss 3|counts 8|loss' 1|b' 4|a' 4|a: grad 2|frees 12|update 7|     a step: 51
BEFORE, BEHIND, STEP = 8, 12, 51


def two_blocks(steps=1, passes=1, *, backward_lane="main"):
    graph = Graph()

    def add(name, phase, ns, layer=None, gap=0):
        lane = backward_lane if phase == "backward" else "main"
        where = {"phase": phase, "layer": layer, "step": number}
        graph.insert(name, kind="cpu", lane=lane, duration_ns=ns, gap_ns=gap, **where)

    for number in range(steps):  # noqa: B007 - `add` reads it
        for _ in range(passes):
            add("f", "forward", 5, "blocks.0")
            add("f", "forward", 5, "blocks.1")
            add("loss", "loss", 3, gap=BEFORE)
            add(f"{NODE}LossBackward", "backward", 1)
            add(f"{NODE}MmBackward", "backward", 4, "blocks.1")
            add(f"{NODE}MmBackward", "backward", 4, "blocks.0")
            add(f"{NODE}AccumulateGrad", "backward", 2, gap=BEHIND)
        add("update", "optimizer", 7)
    return graph


def test_a_pass_is_walked_before_its_first_node_and_behind_its_last():
    assert simulate(two_blocks()).makespan_ns == STEP
    for steps, passes in ((1, 1), (2, 1), (1, 2), (2, 3)):
        walks = graph_walks(two_blocks(steps, passes))
        assert walks.name.tolist() == ["loss", f"{NODE}AccumulateGrad"] * steps * passes
        assert walks.gap_ns.tolist() == [BEFORE, BEHIND] * steps * passes


def test_a_layer_less_has_shorter_walks_and_one_more_longer_ones():
    fewer, more = two_blocks(), two_blocks()
    remove_layers(fewer, layers="blocks.1")  # a forward task and one node of four
    assert simulate(fewer).makespan_ns == STEP - 5 - 4 - (BEFORE + BEHIND) // 4
    add_layers(more, layers="blocks.1")
    assert simulate(more).makespan_ns == STEP + 5 + 4 + (BEFORE + BEHIND) // 4


# Durations when work is multiplied: what grows and what stays


def times(graph, factor):
    tasks = graph.select(kind="cpu")
    new = scaled_time(graph, tasks, factor).duration_ns
    return {name: new[tasks.name == name].tolist() for name in set(tasks.name)}


def mm(n, ns):
    return Call("aten::mm", [[n, 64], [64, 64]], tail_ns=ns)


def test_an_operators_overhead_is_read_off_its_calls_of_several_sizes():
    # 10 us and 1 us a row
    graph = graph_of(mm(10, 20_000), mm(100, 110_000), device=None)
    assert times(graph, 2)["aten::mm"] == [30_000, 210_000]
    assert times(graph, 0.5)["aten::mm"] == [15_000, 60_000]
    assert times(graph, 1)["aten::mm"] == [20_000, 110_000]
    assert scaled_time(graph, graph.select(kind="cpu"), 2).coverage == {"cpu line": 130_000}


def test_kernels_keep_their_floor_and_each_task_can_have_its_factor():
    tiny = Call("aten::add", "8 8 -", "tiny 2_000")
    large = Call("aten::add", [[2**24], [2**24], []], "large 302_000")
    graph = graph_of(*[tiny] * 40, large, large)
    kernels = graph.select(kind="kernel", name="large")
    assert scaled_time(graph, kernels, [2.0, 1.0]).duration_ns.tolist() == [602_000, 302_000]
    tinies = graph.select(kind="kernel", name="tiny")
    assert set(scaled_time(graph, tinies, 8).duration_ns.tolist()) == {2_000}


def test_nothing_selected_is_an_error():
    with pytest.raises(NoMatchError):
        scaled_time(graph_of(mm(10, 20_000), device=None), Graph().tasks([]), 2)


def test_the_library_kernel_does_the_work_and_the_others_help():
    graph = graph_of(Call("aten::mm", MM, "volta_sgemm_32x128_tn 900, splitKreduce_kernel 5_000"))
    assert flop(graph) == {"volta_sgemm_32x128_tn": MM_FLOP, "splitKreduce_kernel": -1}


def test_without_a_library_kernel_the_longest_does_the_work():
    graph = graph_of(Call("aten::add", "64 64 -", "prepare 10, add 90"))
    assert flop(graph) == {"prepare": -1, "add": 64}


def test_the_inner_operator_of_a_kind_does_the_work_once():
    inner = Call("aten::addmm", "16 64x32 32x16 - -", "sgemm 1_000")
    graph = graph_of(Call("aten::linear", "64x32 16x32 16", inner=[inner]))
    assert flop(graph) == {"sgemm": MM_FLOP}


def test_a_gradient_of_a_weight_finds_the_weight_in_the_call_around_it():
    inner = Call("aten::cudnn_convolution_backward_weight", "- 2x5x4x4 2x3x8x8 -", "wgrad 9")
    outer = Call("aten::cudnn_convolution_backward", "2x3x8x8 2x5x4x4 5x3x3x3 -", inner=[inner])
    assert flop(graph_of(outer))["wgrad"] == 2 * 32 * 135


def test_calls_of_one_size_take_the_overhead_of_the_traces_tiny_calls():
    tiny = Call("aten::add", "8 8 -", tail_ns=4_000)
    graph = graph_of(tiny, tiny, mm(100, 104_000), device=None)
    found = times(graph, 3)
    assert found == {"aten::add": [4_000, 4_000], "aten::mm": [304_000]}


def test_views_and_calls_that_only_call_others_keep_their_time():
    inner = Call("aten::addmm", "64 100x64 64x64 - -", tail_ns=105_000)
    outer = Call("aten::linear", "100x64 64x64 64", inner=[inner], tail_ns=30_000)
    graph = graph_of(Call("aten::view", "100x64 -", tail_ns=40_000), outer, device=None)
    found = times(graph, 2)
    assert found["aten::view"] == [40_000]
    assert found["aten::linear"] == [30_000]
    assert found["aten::addmm"] == [205_000]  # all but 5 us, where the trace holds no tiny call


def test_walks_take_as_long_as_there_are_nodes():
    graph = two_blocks()
    assert autograd_node_count(graph.select()) == 4
    scale_autograd_walks(graph, 0.5)
    assert simulate(graph).makespan_ns == STEP - (BEFORE + BEHIND) // 2


def test_an_operand_that_stays_is_packed_once_whatever_is_multiplied_with_it():
    # 2 MiB in 70 us and the usual 5: 30 B a ns. 3 x 64 KiB take 6,554 ns of the product's 30,000.
    stream = Call("aten::add", [[2**18], [2**18], []], tail_ns=109_858)
    graph = graph_of(stream, mm(64, 30_000), device=None)
    product = graph.select(name="mm")
    alone = scaled_time(graph, product, 2).duration_ns[0]
    packed = scaled_time(graph, product, 2, weights=np.array([65_536.0])).duration_ns[0]
    assert alone - packed == pytest.approx(6_554, rel=0.01)
    all_of_it = scaled_time(graph, product, 2, weights=np.array([1e9])).duration_ns[0]
    assert all_of_it == 30_000


def test_what_has_the_formula_of_the_family_is_of_it():
    families = {family for _, family, formula, *_ in operator_rows().values() if formula == "element_wise"}
    assert families == {"element-wise"}
