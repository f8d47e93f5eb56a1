"""FLOP and bytes of operators that torch runs: counted by hand and by torch."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import daydream
from daydream.costs.kernels import work_of_rows
from daydream.costs.operators import MATRIX_FAMILIES

# Operators that really run on a CPU, recorded with their shapes, and what daydream says of their work


torch = pytest.importorskip("torch")
flop_counter = pytest.importorskip("torch.utils.flop_counter")


def values(*shape):
    return torch.randn(*shape, requires_grad=True)


def below(limit, *shape):
    return torch.randint(limit, shape)


def forward_and_backward(function, *inputs):
    out = function(*inputs)
    if isinstance(out, torch.Tensor) and out.requires_grad:
        out.backward(torch.ones_like(out))


def trace_of(run):
    """Return the trace of a run, as torch's profiler writes it."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        run()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return daydream.load(path)


def recorded(run):
    """Return FLOP, bytes and family of each recorded call of known work, by operator."""
    trace = trace_of(run)
    rows = np.flatnonzero(trace.is_kind("operator"))
    work = work_of_rows(trace, rows)
    flop, nbytes, family = work.flop, work.nbytes, work.family
    found = {}
    for row, *amounts in zip(rows, flop.tolist(), nbytes.tolist(), family.tolist(), strict=True):
        if amounts[2] is not None:
            found.setdefault(trace.text("name")[trace["name"][row]].removeprefix("aten::"), []).append(
                tuple(amounts)
            )
    return found


def matrix_flop(found):
    return sum(flop for calls in found.values() for flop, _, family in calls if family in MATRIX_FAMILIES)


def counted(run):
    """Return torch's count by operator, without overloads."""
    with flop_counter.FlopCounterMode(display=False) as counter:
        run()
    found = {}
    for op, flop in counter.get_flop_counts().get("Global", {}).items():
        name = str(op).split(".")[1]
        found[name] = found.get(name, 0) + int(flop)
    return found


def both(function, *inputs):
    """Return our FLOP of all matrix work of a forward and backward pass, and torch's by operator."""
    forward_and_backward(function, *inputs)  # gradients are there: the next pass adds to them
    found = recorded(lambda: forward_and_backward(function, *inputs))
    return matrix_flop(found), counted(lambda: forward_and_backward(function, *inputs))


# FLOP and bytes of recorded operators that torch's own counter does not know, counted by hand


F, nn = torch.nn.functional, torch.nn


# What torch does not count: by hand, forward and backward. 24 elements of 4 bytes, unless they say otherwise

X = (6, 4)
WIDE, SMALL = (2, 3, 4, 4), 2 * 3 * 2 * 2  # 96 elements, and what pooling leaves of them
HAND = {
    # normalization: 8 FLOP an element, input and output, weight and bias; backward 14, gradients and input
    "layer norm": (
        lambda: (lambda x, w, b: F.layer_norm(x, (4,), w, b), [values(*X), values(4), values(4)]),
        {
            "native_layer_norm": (8 * 24, 4 * (48 + 8)),
            "native_layer_norm_backward": (14 * 24, 4 * (72 + 6 + 6 + 8)),
        },
    ),
    "batch norm": (
        lambda: (nn.BatchNorm2d(3), [values(*WIDE)]),
        {
            "native_batch_norm": (8 * 96, 4 * (192 + 12)),
            "native_batch_norm_backward": (14 * 96, 4 * (288 + 15)),
        },
    ),
    # loss: a score a row, and its class in 8 bytes; the gradient's other scores are zeros
    "cross entropy": (
        lambda: (F.cross_entropy, [values(*X), below(4, 6)]),
        {
            "_log_softmax": (5 * 24, 4 * 48), "_log_softmax_backward_data": (4 * 24, 4 * 72),
            "nll_loss_forward": (2 * 6, 4 * 6 + 8 * 6), "nll_loss_backward": (6, 4 * 24 + 8 * 6),
        },
    ),
    # element-wise: all that goes in and comes out
    "a row added": (
        lambda: (torch.add, [values(*X), torch.randn(4)]), {"add": (24, 4 * (24 + 4 + 24))}
    ),
    "a mask": (  # a byte an element; what is filled in is a number
        lambda: (lambda x, m: x.masked_fill(m, 0.0), [values(*X), below(2, *X).bool()]),
        {"masked_fill_": (2 * 24, 2 * (4 * 48 + 24))},
    ),
    # gather: 12 rows of 8 read and written, 8 bytes an index
    "embedding": (
        lambda: (F.embedding, [below(10, 3, 4), values(10, 8)]),
        {"index_select": (0, 4 * 192 + 8 * 12), "embedding_dense_backward": (96, 4 * 192 + 8 * 12)},
    ),
    # pooling: every input and output; the maxima's places in 8 bytes
    "max pooling": (
        lambda: (lambda x: torch.relu(F.max_pool2d(x, 2)), [values(*WIDE)]),
        {
            "max_pool2d_with_indices": (96, 4 * (96 + SMALL) + 8 * SMALL),
            "max_pool2d_with_indices_backward": (96, 4 * (96 + SMALL) + 8 * SMALL),
        },
    ),
    # copies: both sides
    "copy": (lambda: (lambda x: x.t().contiguous(), [torch.randn(*X)]), {"copy_": (0, 4 * 48)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_recorded_calls_have_the_work_counted_by_hand(name):
    make, expected = HAND[name]
    function, inputs = make()
    forward_and_backward(function, *inputs)
    found = recorded(lambda: forward_and_backward(function, *inputs))
    for op, (flop, nbytes) in expected.items():
        assert (op, [sum(part) for part in list(zip(*found[op], strict=True))[:2]]) == (op, [flop, nbytes])


# The optimizer: 22 parameters in two tensors. Lists carry no element type in a trace, so FLOP alone


# FLOP of recorded operators and models against torch's own counter


CONVOLUTIONS = [
    (F.conv1d, F.conv_transpose1d),
    (F.conv2d, F.conv_transpose2d),
    (F.conv3d, F.conv_transpose3d),
]


# Products

PRODUCTS = {
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


# Whole models: everything that torch counts


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("channels", [6, 4])  # 4 as in the input: only sizes tell that it is transposed
def test_transposed_convolutions_have_the_flop_that_torch_counts(dimensions, channels):
    _, function = CONVOLUTIONS[dimensions - 1]
    inputs = values(2, 4, *[5] * dimensions), values(4, channels, *[3] * dimensions)
    ours, theirs = both(lambda *given: function(*given, stride=2, padding=1), *inputs)
    assert ours == sum(theirs.values()) == 3 * 2 * 2 * 5**dimensions * 4 * channels * 3**dimensions


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
