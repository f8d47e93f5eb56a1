"""FLOP of recorded operators and models against torch's own counter."""

from collections.abc import Callable
from typing import Any

import pytest
from recorded_operators import both, flop_counter, torch, values

F, nn = torch.nn.functional, torch.nn
CONVOLUTIONS = [
    (F.conv1d, F.conv_transpose1d),
    (F.conv2d, F.conv_transpose2d),
    (F.conv3d, F.conv_transpose3d),
]


# Products

PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "addmm": (torch.addmm, [(5,), (3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "linear": (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear without bias": (F.linear, [(2, 3, 4), (5, 4)]),
    "linear of a vector": (F.linear, [(4,), (5, 4), (5,)]),
    "matmul with broadcasting": (torch.matmul, [(2, 1, 3, 4), (5, 4, 6)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_flop_that_torch_counts(name):
    function, shapes = PRODUCTS[name]
    ours, theirs = both(function, *(values(*shape) for shape in shapes))
    assert ours == sum(theirs.values()) > 0


# Convolutions


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 2, "dilation": 2}, {"padding": "same"}], ids=str
)
def test_convolutions_have_the_flop_that_torch_counts(dimensions, options):
    function, _ = CONVOLUTIONS[dimensions - 1]
    inputs = values(2, 4, *[9] * dimensions), values(6, 4, *[3] * dimensions), values(6)
    ours, theirs = both(lambda *given: function(*given, **options), *inputs)
    assert ours == sum(theirs.values()) > 0


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("channels", [6, 4])  # 4 as in the input: only sizes tell that it is transposed
def test_transposed_convolutions_have_the_flop_that_torch_counts(dimensions, channels):
    _, function = CONVOLUTIONS[dimensions - 1]
    inputs = values(2, 4, *[5] * dimensions), values(4, channels, *[3] * dimensions)
    ours, theirs = both(lambda *given: function(*given, stride=2, padding=1), *inputs)
    assert ours == sum(theirs.values()) == 3 * 2 * 2 * 5**dimensions * 4 * channels * 3**dimensions


# Attention


@pytest.mark.parametrize("keys", [16, 24])
def test_fused_attention_has_the_flop_of_torchs_formulas(keys):
    # the CPU's fused operator is not in torch's table; its formulas are those of the GPU's
    def attend(*qkv):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*qkv)

    q, k = (2, 3, 16, 8), (2, 3, keys, 8)
    ours, _ = both(attend, values(*q), values(*k), values(*k))
    assert ours == (flop_counter.sdpa_flop_count(q, k, k) + flop_counter.sdpa_backward_flop_count(q, q, k, k))


# Recurrent layers: gates x (inputs + hidden) weights a layer, 7 steps of a batch of 3


@pytest.mark.parametrize(("layer", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_take_each_weight_once_a_step(layer, gates, directions):
    module = getattr(nn, layer)(6, 5, 2, bidirectional=directions == 2)
    weights = directions * gates * 5 * ((6 + 5) + (directions * 5 + 5))
    assert weights == sum(each.numel() for each in module.parameters() if each.dim() == 2)
    ours, theirs = both(lambda x: module(x)[0], values(7, 3, 6))
    forward = 2 * 7 * 3 * weights
    # Backward each weight works twice a step; the first state needs no gradient, which saves one use
    # where steps are operators of their own. torch sees nothing of the LSTM, which is one operator.
    first = 0 if layer == "LSTM" else 2 * 3 * 2 * directions * gates * 5 * 5
    assert ours == 3 * forward - first
    assert sum(theirs.values()) == (0 if layer == "LSTM" else ours)


# Whole models: everything that torch counts
