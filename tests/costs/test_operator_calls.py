"""Which kernels do an operator call's work."""

from graph.small_graphs import kernels
from work_traces import Call, Kernel, graph_of

from daydream.costs import work

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


def test_bytes_follow_the_element_type_and_a_list_takes_it_from_the_kernel():
    graph = graph_of(Call("aten::mm", MM, "hgemm 1_000", dtype="float16"))
    assert work(graph, kernels(graph)).nbytes.tolist() == [MM_BYTES // 2]
    untyped = graph_of(Call("aten::cat", [[[6, 4], [2, 4]], []], "CatArray 50", dtype=None))
    assert work(untyped, kernels(untyped)).nbytes.tolist() == [-1]


def test_a_gradient_of_a_weight_finds_the_weight_in_the_call_around_it():
    inner = Call("aten::cudnn_convolution_backward_weight", "- 2x5x4x4 2x3x8x8 -", "wgrad 9")
    outer = Call("aten::cudnn_convolution_backward", "2x3x8x8 2x5x4x4 5x3x3x3 -", inner=[inner])
    assert flop(graph_of(outer))["wgrad"] == 2 * 32 * 135


def test_cpu_operators_do_their_own_work_and_none_where_a_gpu_does_it():
    on_cpu = graph_of(Call("aten::mm", MM, tail_ns=50_000), device=None)
    done = work(on_cpu, on_cpu.select(kind="cpu"))
    assert done.flop[done.flop >= 0].sum() == MM_FLOP
    on_gpu = graph_of(Call("aten::mm", MM, "sgemm 1_000", tail_ns=50_000))
    assert (work(on_gpu, on_gpu.select(kind="cpu")).flop == -1).all()
