"""FLOP and bytes of recorded operators that torch's own counter does not know, counted by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from recorded_operators import below, forward_and_backward, recorded, torch, values

F, nn = torch.nn.functional, torch.nn


# What torch does not count: by hand, forward and backward. 24 elements of 4 bytes, unless they say otherwise

X = (6, 4)
WIDE, SMALL = (2, 3, 4, 4), 2 * 3 * 2 * 2  # 96 elements, and what pooling leaves of them
HAND: dict[str, tuple[Callable[[], tuple[Callable[..., Any], list[Any]]], dict[str, tuple[int, int]]]] = {
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
    "group norm": (
        lambda: (nn.GroupNorm(2, 4), [values(2, 4, 3, 3)]),
        {
            "native_group_norm": (8 * 72, 4 * (144 + 8)),
            "native_group_norm_backward": (14 * 72, 4 * (216 + 4 + 4 + 4)),
        },
    ),
    # softmax: 5 and 4 FLOP an element, 2 and 3 tensors
    "softmax": (
        lambda: (lambda x: x.softmax(-1), [values(*X)]),
        {"_softmax": (5 * 24, 4 * 48), "_softmax_backward_data": (4 * 24, 4 * 72)},
    ),
    # loss: a score a row, and its class in 8 bytes; the gradient's other scores are zeros
    "cross entropy": (
        lambda: (F.cross_entropy, [values(*X), below(4, 6)]),
        {
            "_log_softmax": (5 * 24, 4 * 48), "_log_softmax_backward_data": (4 * 24, 4 * 72),
            "nll_loss_forward": (2 * 6, 4 * 6 + 8 * 6), "nll_loss_backward": (6, 4 * 24 + 8 * 6),
        },
    ),
    "squared error": (
        lambda: (F.mse_loss, [values(*X), torch.randn(*X)]),
        {"mse_loss": (3 * 24, 4 * 72), "mse_loss_backward": (3 * 24, 4 * 72), "sum": (24, 4 * 24)},
    ),
    # element-wise: all that goes in and comes out
    "relu": (
        lambda: (torch.relu, [values(*X)]),
        {"clamp_min": (24, 4 * 48), "threshold_backward": (24, 4 * 72)},
    ),
    "gelu": (lambda: (F.gelu, [values(*X)]), {"gelu": (24, 4 * 48), "gelu_backward": (24, 4 * 72)}),
    "elu": (lambda: (F.elu, [values(*X)]), {"elu": (24, 4 * 48), "elu_backward": (24, 4 * 72)}),
    "a row added": (
        lambda: (torch.add, [values(*X), torch.randn(4)]), {"add": (24, 4 * (24 + 4 + 24))}
    ),
    "a mask": (  # a byte an element; what is filled in is a number
        lambda: (lambda x, m: x.masked_fill(m, 0.0), [values(*X), below(2, *X).bool()]),
        {"masked_fill_": (2 * 24, 2 * (4 * 48 + 24))},
    ),
    "addcmul": (lambda: (torch.addcmul, [torch.randn(*X)] * 3), {"addcmul": (3 * 24, 4 * 96)}),
    # reductions read all
    "sum": (lambda: (lambda x: x.sum(1), [torch.randn(*X)]), {"sum": (24, 4 * 24)}),
    "largest": (lambda: (lambda x: x.amax(1), [torch.randn(*X)]), {"amax": (24, 4 * 24)}),
    "norm": (lambda: (torch.linalg.vector_norm, [torch.randn(*X)]), {"linalg_vector_norm": (24, 4 * 24)}),
    # gather: 12 rows of 8 read and written, 8 bytes an index
    "embedding": (
        lambda: (F.embedding, [below(10, 3, 4), values(10, 8)]),
        {"index_select": (0, 4 * 192 + 8 * 12), "embedding_dense_backward": (96, 4 * 192 + 8 * 12)},
    ),
    "gather": (
        lambda: (lambda x, i: x.gather(1, i), [values(*X), below(4, 6, 2)]),
        {"gather": (0, 4 * 24 + 8 * 12), "scatter_add_": (12, 4 * 36 + 8 * 12)},
    ),
    # pooling: every input and output; the maxima's places in 8 bytes
    "max pooling": (
        lambda: (lambda x: torch.relu(F.max_pool2d(x, 2)), [values(*WIDE)]),
        {
            "max_pool2d_with_indices": (96, 4 * (96 + SMALL) + 8 * SMALL),
            "max_pool2d_with_indices_backward": (96, 4 * (96 + SMALL) + 8 * SMALL),
        },
    ),
    "mean pooling": (
        lambda: (lambda x: torch.relu(F.avg_pool2d(x, 2)), [values(*WIDE)]),
        {"avg_pool2d": (96, 4 * (96 + SMALL)), "avg_pool2d_backward": (96, 4 * (96 + SMALL))},
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


def update(**how):
    parameters = [nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(4, 4))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = how.pop("of", torch.optim.Adam)(parameters, lr=0.1, **how)
    optimizer.step()
    return optimizer.step


@pytest.mark.parametrize(
    ("how", "op", "flop"),
    [
        ({"fused": True}, "_fused_adam_", 12 * 22),
        ({"of": torch.optim.AdamW, "fused": True}, "_fused_adamw_", 12 * 22),
        ({"of": torch.optim.SGD, "fused": True, "momentum": 0.9}, "_fused_sgd_", 4 * 22),
        ({"of": torch.optim.Adagrad, "fused": True}, "_fused_adagrad_", 6 * 22),
        ({"foreach": False}, "lerp_", 3 * 22),
        # on a CPU `foreach` runs an operator for each tensor: these do the work, once
        ({"foreach": True}, "addcmul_", 3 * 22),
        ({"foreach": True}, "addcdiv_", 3 * 22),
    ],
)
def test_updates_have_the_work_counted_by_hand(how, op, flop):
    found = recorded(update(**how))
    assert sum(call[0] for call in found[op]) == flop
    assert not [name for name in found if name.startswith("_foreach_a") and sum(c[0] for c in found[name])]
