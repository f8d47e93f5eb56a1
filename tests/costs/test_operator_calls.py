"""Which kernels do an operator call's work."""

from graph.small_graphs import kernels, put
from work_traces import Call, Kernel, graph_of

from daydream.costs import work
from daydream.costs.resize.growth import growth_of
from daydream.graph.graph import Graph

MM = "64x32 32x16"
MM_FLOP = 2 * 64 * 32 * 16
MM_BYTES = 4 * (64 * 32 + 32 * 16 + 64 * 16)


def by_name(graph, values):
    return dict(zip(kernels(graph).name.tolist(), values.tolist(), strict=True))


def flop(graph):
    return by_name(graph, work(graph, kernels(graph)).flop)


def test_the_library_kernel_does_the_work_and_the_others_help():
    graph = graph_of(Call("aten::mm", MM, "volta_sgemm_32x128_tn 900, splitKreduce_kernel 5_000"))
    assert flop(graph) == {"volta_sgemm_32x128_tn": MM_FLOP, "splitKreduce_kernel": -1}


def test_without_a_library_kernel_the_longest_does_the_work():
    graph = graph_of(Call("aten::add", "64 64 -", "prepare 10, add 90"))
    assert flop(graph) == {"prepare": -1, "add": 64}


def test_kernels_that_share_a_call_share_its_work_by_time():
    work = [Kernel("dgrad2d", 3000), Kernel("wgrad2d", 1000), Kernel("nchwToNhwcKernel", 8000)]
    shapes = "2x5x2x2 2x3x4x4 5x3x3x3 - -"
    graph = graph_of(Call("aten::convolution_backward", shapes, work))
    both = 2 * 2 * 8 * 135
    assert flop(graph) == {"dgrad2d": 3 * both // 4, "wgrad2d": both // 4, "nchwToNhwcKernel": -1}


def test_the_inner_operator_of_a_kind_does_the_work_once():
    inner = Call("aten::addmm", "16 64x32 32x16 - -", "sgemm 1_000")
    graph = graph_of(Call("aten::linear", "64x32 16x32 16", inner=[inner]))
    assert flop(graph) == {"sgemm": MM_FLOP}


def test_an_inner_copy_is_work_of_its_own():
    bias = Call("aten::copy_", "64x16 16 -", "copy 300")
    graph = graph_of(Call("aten::addmm", "16 64x32 32x16 - -", "sgemm 1_000", [bias]))
    done = work(graph, kernels(graph))
    assert by_name(graph, done.flop) == {"copy": 0, "sgemm": MM_FLOP}
    assert by_name(graph, done.nbytes)["copy"] == 4 * (16 + 64 * 16)


def test_bytes_follow_the_element_type_and_a_list_takes_it_from_the_kernel():
    graph = graph_of(Call("aten::mm", MM, "hgemm 1_000", dtype="float16"))
    assert work(graph, kernels(graph)).nbytes.tolist() == [MM_BYTES // 2]
    untyped = graph_of(Call("aten::cat", [[[6, 4], [2, 4]], []], "CatArray 50", dtype=None))
    assert work(untyped, kernels(untyped)).nbytes.tolist() == [-1]


def test_a_convolutions_output_is_the_input_of_what_follows():
    inner = Call("aten::cudnn_convolution", "2x3x8x8 5x3x3x3 - -", "scudnn_winograd 900")
    outer = Call("aten::conv2d", "2x3x8x8 5x3x3x3 - -", inner=[inner])
    after = Call("aten::relu", "2x5x4x4", "relu 20")
    graph = graph_of(outer, after)
    assert flop(graph)["scudnn_winograd"] == 2 * (2 * 4 * 4) * 5 * 27
    alone = graph_of(outer)
    assert flop(alone)["scudnn_winograd"] == -1


def test_a_gradient_of_a_weight_finds_the_weight_in_the_call_around_it():
    inner = Call("aten::cudnn_convolution_backward_weight", "- 2x5x4x4 2x3x8x8 -", "wgrad 9")
    outer = Call("aten::cudnn_convolution_backward", "2x3x8x8 2x5x4x4 5x3x3x3 -", inner=[inner])
    assert flop(graph_of(outer))["wgrad"] == 2 * 32 * 135


def test_kernels_without_a_launch_do_what_their_twins_do():
    call = Call("aten::mm", MM, [Kernel("sgemm", 1000, grid="4,1,1")])
    graph = graph_of(call, orphans=[Kernel("sgemm", 1100, grid="4,1,1"), Kernel("sgemm", 1100, grid="8,1,1")])
    assert work(graph, kernels(graph)).flop.tolist() == [MM_FLOP, MM_FLOP, -1]
    other = Call("aten::mm", "64x64 64x16", [Kernel("sgemm", 1000, grid="4,1,1")])
    doubtful = graph_of(call, other, orphans=[Kernel("sgemm", 1100, grid="4,1,1")])
    assert work(doubtful, kernels(doubtful)).flop.tolist()[-1] == -1


def test_cpu_operators_do_their_own_work_and_none_where_a_gpu_does_it():
    on_cpu = graph_of(Call("aten::mm", MM, tail_ns=50_000), device=None)
    done = work(on_cpu, on_cpu.select(kind="cpu"))
    assert done.flop[done.flop >= 0].sum() == MM_FLOP
    on_gpu = graph_of(Call("aten::mm", MM, "sgemm 1_000", tail_ns=50_000))
    assert (work(on_gpu, on_gpu.select(kind="cpu")).flop == -1).all()


def test_inserted_tasks_and_empty_graphs_have_no_known_work():
    graph = Graph()
    put(graph, "a", "stream", 5)
    assert work(graph, kernels(graph)).flop.tolist() == [-1]
    assert work(graph, graph.tasks([])).flop.tolist() == []


def test_a_larger_batch_grows_activations_and_not_parameters():
    work = [Kernel("sgemm", 1000)]
    graph = graph_of(
        Call("aten::addmm", "16 56x32 32x16 - -", work),  # 7 samples of 8
        Call("aten::mm", "16x56 56x32", work),  # gradient of the weight: the batch is summed over
        Call("aten::add_", "32x16 32x16 -", "update 500"),
    )
    growth = growth_of(graph, kernels(graph), 7, 14)
    flop, nbytes = growth.flop, growth.nbytes
    assert flop.tolist() == [2, 2, 1]
    assert nbytes.tolist() == [
        (16 + 112 * 32 + 32 * 16 + 112 * 16) / (16 + 56 * 32 + 32 * 16 + 56 * 16),
        (112 * 16 + 112 * 32 + 16 * 32) / (56 * 16 + 56 * 32 + 16 * 32),
        1,
    ]


def test_a_longer_sequence_grows_scores_with_its_square():
    shape = [2, 4, 10, 8]
    graph = graph_of(
        Call("aten::_scaled_dot_product_flash_attention", [shape, shape, shape, []], "flash 900")
    )
    growth = growth_of(graph, kernels(graph), 10, 30, every=True)
    flop, nbytes = growth.flop, growth.nbytes
    assert (flop.tolist(), nbytes.tolist()) == ([9], [3])
