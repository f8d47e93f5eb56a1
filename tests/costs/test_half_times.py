"""What 16 bits make of a kernel, by its sort: each worked out by hand, and what must hold of all."""

import numpy as np
import pytest
from graph.small_graphs import kernels
from work_traces import Call, Kernel, graph_of

from daydream.costs.device.roofline import (
    runs_in_tf32,
)
from daydream.model.precision import (
    FLASH_1,
    FLASH_2,
    TURNED,
    changes_layout,
    in_16_bits,
)

A100, V100, GEFORCE = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 3070 Ti"
FLOOR = 2_000
TINY = Call("aten::add", "8 8 -", [Kernel("tiny", FLOOR)])
ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)"
STRIDED = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl{}<direct_copy_kernel_cuda>>"
)


def graph_with(*kernels, device=A100, op="my::op", shapes=None):
    """A graph of tiny kernels, which set the fixed cost, and of one call with some kernels."""
    return graph_of(*[TINY] * 60, Call(op, shapes or [[8]], list(kernels)), device=device)


def in_half(graph, name, dtype="float16"):
    kernel = kernels(graph).where(lambda tasks: np.array([name in one for one in tasks.name]))
    found = in_16_bits(graph, kernel, dtype)
    return int(found.duration_ns[0]), float(found.doubt[0])


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", 0.55),
        ("triton_poi_fused_gelu_0", 0.55),
        ("void at::native::reduce_kernel<128, 4, sum_functor>", 0.63),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 0.75),
        (STRIDED.format("_nocast"), 0.87),
        ("void at::native::CatArrayBatchedCopy<float>", 0.87),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>", 0.87),
        ("somebody_elses_kernel", 0.7),
    ],
)
def test_what_streams_keeps_the_part_of_its_time_that_is_not_bytes(name, keeps):
    graph = graph_with(Kernel(name, 102_000, grid="4096,1,1"))
    assert in_half(graph, name)[0] == FLOOR + round(keeps * 100_000)


@pytest.mark.parametrize(("other", "kept"), [("", FLASH_1), ("_nocast", FLASH_2)])
def test_attention_goes_from_three_tf32_products_each_to_the_flash_kernels_of_its_torch(other, kept):
    #  156 / 3 = 52 TFLOP/s become 312, of which flash attention reaches another share
    graph = graph_with(Kernel(ATTENTION, 23_400_000), Kernel(STRIDED.format(other), 9_000))
    assert in_half(graph, "fmha") == (round(FLOOR + (23_400_000 - FLOOR) / (6 * kept[0])), kept[1])


def test_a_product_above_the_peak_of_vector_units_runs_in_tf32_whatever_its_name():
    # 2 x 4096^3 FLOP in 1 ms are 137 TFLOP/s; vector units of an A100 have 19.5
    def graph(duration_ns):
        shapes = "4096x4096 4096x4096"
        return graph_with(Kernel("new_library_gemm", duration_ns), op="aten::mm", shapes=shapes)

    for duration_ns, tf32 in ((1_000_000, True), (8_000_000, False)):
        product = graph(duration_ns).select(name="new_library")
        assert runs_in_tf32(product.graph, product).tolist() == [tf32]
    fast = graph(1_000_000)
    assert in_half(fast, "new_library")[0] == FLOOR + 998_000 // 2  # what is left to gain


def test_convolutions_of_planes_are_turned_for_tensor_cores():
    images, weight, out = [8, 16, 32, 32], [16, 16, 3, 3], [8, 16, 32, 32]

    def turned(kernel, device):
        graph = graph_of(
            TINY,
            Call(
                "aten::cudnn_convolution", [images, weight, [], [], [], [], [], []], [Kernel(kernel, 90_000)]
            ),
            Call("aten::relu", [out], "relu 9_000"),
            device=device,
        )
        return changes_layout(graph, graph.select(name=kernel))[1].tolist()

    moved = 4 * (2 * 8 * 16 * 32 * 32 + 16 * 16 * 9)
    assert turned("implicit_convolve_sgemm", V100) == [TURNED * moved]
    assert turned("xmma_fprop_nhwc", V100) == []
    assert turned("xmma_fprop_tf32", A100) == []  # its changes of layout are in the trace
    assert turned("implicit_convolve_sgemm", "AMD Instinct MI300X") == []
