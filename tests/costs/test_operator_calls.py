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
