"""Which kernels autocast runs in 16 bits and where it casts: blocks of networks, drawn kernel by kernel."""

import pytest
from graph.small_graphs import kernels
from recorded import Program

from daydream.model.autocast import flow

KERNELS = {
    "product": "ampere_sgemm_128x64_tn", "norm": "vectorized_layer_norm_kernel<float>",
    "gelu": "GeluCUDAKernelImpl", "add": "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>",
    "copy": "direct_copy_kernel_cuda", "norm'": "layer_norm_grad_input_kernel<float>",
    "gamma'": "GammaBetaBackwardCUDAKernel_32x32<float>", "bias'": "reduce_kernel<4, sum_functor<float>>",
    "gelu'": "GeluBackwardCUDAKernelImpl", "softmax": "softmax_warp_forward",
    "softmax'": "softmax_warp_backward", "bn": "bn_fw_tr_1C11_kernel_NCHW", "relu": "clamp_min_scalar",
    "dropout": "fused_dropout_kernel", "triton": "triton_poi_fused_gelu_1",
    "log softmax": "softmax_warp_forward<float, float, float, 4, true, false>",
    "log softmax'": "softmax_warp_backward<float, float, float, 4, true, false>",
    "loss": "nll_loss_forward_reduce", "loss'": "nll_loss_backward_reduce",
    "triton norm": "triton_per_fused_native_layer_norm_0",
}  # fmt: skip


def drawn(forward, backward=""):
    """Return the kernels with their types, casts between them: `>16` and `>32`."""
    program = Program()
    for phase, line in (("forward", forward), ("backward", backward)):
        for word in filter(None, map(str.strip, line.split("|"))):
            program.op("my::op", phase, (KERNELS[word], 10), dtype="float32")
    graph = program.graph()
    types = flow(graph, kernels(graph))
    found = []
    words = [word for word in map(str.strip, f"{forward}|{backward}".split("|")) if word]
    for word, narrow, to_16, to_32 in zip(words, types.narrow, types.to_16, types.to_32, strict=True):
        found += [">16"] * bool(to_16) + [">32"] * bool(to_32) + [f"{word} {16 if narrow else 32}"]
    return " | ".join(found)


@pytest.mark.parametrize(
    ("forward", "types"),
    [
        # a block with its norm first: the sum with the residual stream is as wide as that is, in one kernel
        (
            "norm | product | gelu | product | add | copy | norm",
            "norm 32 | >16 | product 16 | gelu 16 | product 16 | add 32 | copy 32 | norm 32",
        ),
        # norm behind the sum
        ("product | dropout | add | norm", ">16 | product 16 | dropout 16 | add 32 | norm 32"),
        # no norm, so nothing began in 32 bits but the images; batch norm takes what it is given
        (
            "product | bn | relu | product | bn | add | relu | product",
            ">16 | product 16 | bn 16 | relu 16 | product 16 | bn 16 | add 16 | relu 16 | product 16",
        ),
        ("product | softmax | product", ">16 | product 16 | softmax 32 | >16 | product 16"),
        # compiled kernels cast what they read and write themselves
        (
            "product | triton norm | product | triton",
            ">16 | product 16 | triton norm 32 | product 16 | triton 16",
        ),
    ],
)  # fmt: skip
def test_types_follow_from_the_order_of_the_forward_pass(forward, types):
    assert drawn(forward) == types


def test_the_backward_pass_casts_at_the_mirrored_places():
    #  forward   norm | copy | >16 product | gelu | product | add
    #  backward  product' (two kernels) | its bias | gelu' | product' | >32 copy | norm' | add | >16 product'
    forward = "norm | copy | product | gelu | product"
    backward = "product | bias' | gelu' | product | product | bias' | copy | norm' | gamma' | add | product"
    assert drawn(forward, backward).split("product 16 | product 16 | ", 1)[1] == (
        "bias' 16 | gelu' 16 | product 16 | product 16 | bias' 16 | >32 | copy 32 | norm' 32 | gamma' 32 | "
        "add 32 | >16 | product 16"
    )


def test_cross_entropy_takes_the_logarithm_in_16_bits_and_the_loss_in_32():
    assert drawn("product | log softmax | loss", "loss' | log softmax' | product") == (
        ">16 | product 16 | log softmax 16 | >32 | loss 32 | loss' 32 | >16 | log softmax' 16 | product 16"
    )
    assert drawn("product | log softmax") == ">16 | product 16 | log softmax 32"


def test_the_gradient_of_a_softmax_leaves_16_bits():
    assert drawn("product", "product | softmax' | product").endswith(">32 | softmax' 32 | product 16")
