"""FLOP and elements of matrix work: products, convolutions, attention, recurrent layers.

A multiply-add is two FLOP. Products of m x k by k x n: 2 m n k. Convolution: each
output element takes a weight's worth of multiply-adds, in either gradient as well.
Attention: two products forward, five backward (the scores are computed again), as
`torch.utils.flop_counter` counts; a causal mask is not recorded, so its saving is not
counted. Recurrent layers: every weight matrix once a step.

FLOP and elements of grouped products, of experts, and of the products of servers' own libraries.

Grouped products multiply every row with the matrix of one group, so the groups' sizes, which are not
recorded, do not count. A layer of experts multiplies each token with those it is routed to. Libraries beside
torch's (aiter, vLLM, SGLang) give the result first or not, the weight as it is or transposed; which it is
follows from the sizes. Attention over pages stays unknown: how long the contexts are is no shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import TypeAlias

from daydream.costs.workload.shapes import Amount, Argument, Shape, broadcast, elements
from daydream.lazy import regex

Formula: TypeAlias = Callable[[list[Argument], Shape | None], Amount | None]


def tensors(arguments: list[Argument]) -> list[Shape]:
    """Return the tensor arguments, without lists and what is no tensor."""
    return [shape for shape in arguments if isinstance(shape, tuple) and shape]


def product(batch: int, m: int, k: int, n: int, *, added: int = 0) -> Amount:
    """Return the work of `batch` products of m x k by k x n, plus elements read and added."""
    return Amount("matmul", 2 * batch * m * k * n, batch * (m * k + k * n + m * n) + added)


def _mm(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = [shape for shape in tensors(arguments) if len(shape) == 2]
    if len(found) < 2 or found[0][1] != found[1][0]:
        return None
    return product(1, *found[0], found[1][1])


def _bmm(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = [shape for shape in tensors(arguments) if len(shape) == 3]
    if len(found) < 2 or found[0][0] != found[1][0] or found[0][2] != found[1][1]:
        return None
    return product(*found[0], found[1][2])


def _added(product_of: Formula) -> Formula:
    """Return the work of a product of the second and third argument that is added to the first."""

    def work(arguments: list[Argument], hint: Shape | None) -> Amount | None:
        inner = product_of(arguments[1:3], hint) if len(arguments) > 2 else None
        if inner is None or inner.elements is None:
            return None
        return Amount("matmul", inner.flop, inner.elements + elements(arguments[0]))

    return work


def _linear(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2 or not 1 <= len(found[1]) <= 2 or found[0][-1] != found[1][-1]:
        return None
    features = found[1][0] if len(found[1]) == 2 else 1
    bias = elements(found[2]) if len(found) > 2 else 0
    return product(1, prod(found[0][:-1]), found[0][-1], features, added=bias)


def _matmul(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    left = found[0] if len(found[0]) > 1 else (1, *found[0])
    right = found[1] if len(found[1]) > 1 else (*found[1], 1)
    batch = broadcast([left[:-2], right[:-2]])
    if batch is None or left[-1] != right[-2]:
        return None
    m, k, n = left[-2], left[-1], right[-1]
    out = prod(batch) * m * n
    return Amount("matmul", 2 * out * k, elements(found[0]) + elements(found[1]) + out)


def convolution(images: Shape, weight: Shape, out: Shape) -> Amount:
    """Return the work of a convolution; of a transposed one with its input and output exchanged."""
    positions = out[0] * prod(out[2:])
    moved = elements(images) + elements(weight) + elements(out)
    return Amount("convolution", 2 * positions * prod(weight), moved)


def transposed(images: Shape, weight: Shape, out: Shape | None = None) -> bool:
    """Say whether shapes are those of a transposed convolution.

    Channels tell; where they fit both ways it is one if the output is larger than the input.
    """
    width = max(weight[1], 1)
    plain = images[1] % width == 0 and (out is None or out[1] == weight[0])
    turned = images[1] == weight[0] and (out is None or out[1] % width == 0)
    if plain and turned and out is not None:
        return any(size > before for size, before in zip(out[2:], images[2:], strict=True))
    return turned and not plain


def _convolution(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2 or len(found[0]) != len(found[1]) or len(found[0]) < 3:
        return None
    images, weight = found[:2]
    fits = hint if hint is not None and len(hint) == len(images) else None
    if transposed(images, weight, fits):
        return _transposed(arguments, fits)
    return None if fits is None else convolution(images, weight, fits)


def _transposed(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2 or len(found[0]) != len(found[1]) or len(found[0]) < 3:
        return None
    images, weight = found[:2]
    flop = 2 * images[0] * prod(images[2:]) * prod(weight)
    moved = elements(images) + elements(weight) + elements(hint) if hint is not None else None
    return Amount("convolution", flop, moved)


def _convolution_backward(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Both gradients; a layer whose input needs none does half, which shapes do not tell."""
    found = tensors(arguments)
    if len(found) < 3 or not len(found[0]) == len(found[1]) == len(found[2]) >= 3:
        return None
    gradient, images, weight = found[:3]
    if transposed(images, weight, gradient):
        gradient, images = images, gradient
    one = convolution(images, weight, gradient)
    return Amount("convolution", 2 * (one.flop or 0), 2 * (one.elements or 0))


def _convolution_backward_old(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    found = tensors(arguments)  # input, gradient, weight until torch 1.10
    if len(found) < 3:
        return None
    return _convolution_backward([found[1], found[0], found[2]], hint)


def _gradient_of_images(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)  # input size (no tensor), gradient, weight
    if len(found) < 2 or len(found[0]) != len(found[1]) or found[0][1] != found[1][0]:
        return None
    gradient, weight = found[:2]
    flop = 2 * gradient[0] * prod(gradient[2:]) * prod(weight)
    return Amount("convolution", flop, 2 * elements(gradient) + elements(weight))


def _gradient_of_weight(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    found = tensors(arguments)  # weight size (no tensor: comes as the hint), gradient, input
    if len(found) < 2 or hint is None:
        return None
    return convolution(found[1], hint, found[0])


def attention(q: Shape, k: Shape, v: Shape, *, backward: bool) -> Amount | None:
    """Return the work of attention on (batch, heads, length, width) queries, keys and values."""
    if not len(q) == len(k) == len(v) == 4 or k[2] != v[2]:
        return None
    scores = q[0] * q[1] * q[2] * k[2]
    width = 3 * q[3] + 2 * v[3] if backward else q[3] + v[3]
    out = q[0] * q[1] * q[2] * v[3]
    inputs = elements(q) + elements(k) + elements(v)
    moved = 2 * inputs + 2 * out if backward else inputs + out
    return Amount("attention", 2 * scores * width, moved)


def _attention(*, backward: bool, lengths_first: bool) -> Formula:
    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        found = tensors(arguments)[1:4] if backward else tensors(arguments)[:3]
        if len(found) < 3 or any(len(shape) != 4 for shape in found):
            return None  # packed sequences of unequal length: their lengths are not recorded
        if lengths_first:
            found = [(b, h, s, d) for b, s, h, d in found]
        return attention(*found, backward=backward)

    return formula


def _recurrent(passes: int) -> Formula:
    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        found = tensors(arguments)
        if not found or len(found[0]) != 3:
            return None
        steps = found[0][0] * found[0][1]  # time steps x batch, in either order
        listed = [shape for part in arguments if isinstance(part, list) for shape in part]
        weights = [shape for shape in listed or found[1:3] if len(shape) == 2]
        if not weights:
            return None
        parameters = sum(prod(shape) for shape in weights)
        hidden = weights[0][0]
        moved = passes * (steps * (found[0][2] + hidden) + parameters)
        return Amount("recurrent", passes * 2 * steps * parameters, moved)

    return formula


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mm", "_int_mm", "_scaled_mm", "_sparse_mm", "_weight_int8pack_mm"), _mm),
    **dict.fromkeys(("mv", "dot", "matmul"), _matmul),
    **dict.fromkeys(("addmm", "_addmm_activation"), _added(_mm)),
    "bmm": _bmm,
    "baddbmm": _added(_bmm),
    **dict.fromkeys(("linear", "mkldnn_linear", "mkldnn::_linear_pointwise"), _linear),
    **dict.fromkeys(
        (
            "convolution", "_convolution", "convolution_overrideable", "conv1d", "conv2d", "conv3d",
            "cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu",
            "miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution",
            "mkldnn::_convolution_pointwise", "_conv_depthwise2d", "conv_depthwise3d", "thnn_conv2d",
            "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv_dilated2d",
        ),
        _convolution,
    ),
    **dict.fromkeys(
        (
            "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cudnn_convolution_transpose",
            "miopen_convolution_transpose", "slow_conv_transpose2d",
        ),
        _transposed,
    ),
    **dict.fromkeys(("convolution_backward", "_slow_conv2d_backward"), _convolution_backward),
    **dict.fromkeys(
        ("cudnn_convolution_backward", "miopen_convolution_backward", "mkldnn_convolution_backward"),
        _convolution_backward_old,
    ),
    "cudnn_convolution_backward_input": _gradient_of_images,
    "miopen_convolution_backward_input": _gradient_of_images,
    "cudnn_convolution_backward_weight": _gradient_of_weight,
    "miopen_convolution_backward_weight": _gradient_of_weight,
    **dict.fromkeys(
        (
            "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        _attention(backward=False, lengths_first=False),
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
        ),
        _attention(backward=True, lengths_first=False),
    ),
    **dict.fromkeys(
        ("_flash_attention_forward", "_efficient_attention_forward"),
        _attention(backward=False, lengths_first=True),
    ),
    **dict.fromkeys(
        ("_flash_attention_backward", "_efficient_attention_backward"),
        _attention(backward=True, lengths_first=True),
    ),
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer"), _recurrent(1)),
    **dict.fromkeys(
        ("_cudnn_rnn_backward", "miopen_rnn_backward", "mkldnn_rnn_layer_backward"), _recurrent(2)
    ),
}  # fmt: skip
NEEDS_OUTPUT = frozenset(name for name, formula in FORMULAS.items() if formula in (_convolution, _transposed))
NEEDS_WEIGHT = frozenset(name for name in FORMULAS if name.endswith("convolution_backward_weight"))


GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
EXPERTS = regex(r"fused_(experts|moe)|moe_forward", re.IGNORECASE)
PRODUCT = regex(r"^(?!aten::)\w+::.*(gemm|scaled_mm|matmul_ogs)", re.IGNORECASE)


def formula_of(op: str) -> Formula | None:
    """Return the formula of an operator of this sort, None if it is none."""
    if op.removeprefix("aten::") in GROUPED:
        return _grouped
    if EXPERTS.search(op):
        return _experts
    return _library_product if PRODUCT.search(op) else None


def _grouped(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Rows that belong to groups by 3-d weights, or both operands in groups along what is summed."""
    found = tensors(arguments)
    if len(found) < 2 or found[0][-1] != found[1][-2]:
        return None
    left, right = found[:2]
    m, k, n = left[-2], left[-1], right[-1]
    if len(left) == len(right) == 3:
        return product(left[0], m, k, n)
    groups = 1
    if len(left) == len(right) == 2:  # the sum is cut into groups, each with a result of its own
        ends = [shape for shape in found[2:] if len(shape) == 1]
        groups = ends[-1][0] if ends else 1
    return Amount("matmul", 2 * m * k * n, prod(left) + prod(right) + groups * m * n)


def _experts(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Two products for each token and expert that it is routed to; only weights that are used are read."""
    found = tensors(arguments)
    weights = [shape for shape in found if len(shape) == 3]
    rows = [shape for shape in found if len(shape) == 2]
    if len(weights) < 2 or len(rows) < 2:
        return None
    (tokens, hidden), (experts, wide, into), (_, out, inner) = rows[0], *weights[:2]
    chosen = [shape[1] for shape in rows[1:] if shape[0] == tokens and shape[1] <= experts]
    if into != hidden or out != hidden or not chosen:
        return None
    routed = tokens * min(chosen)
    used = min(experts, routed) * (wide * hidden + out * inner)
    return Amount("matmul", 2 * routed * hidden * (wide + inner), used + 2 * tokens * hidden + routed * wide)


def _library_product(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = [shape for shape in tensors(arguments) if len(shape) == 2]
    for first in range(min(len(found) - 1, 2)):  # the result may stand before the operands
        (m, k), (one, other) = found[first], found[first + 1]
        result = found[0] if first else None
        for inner, n in ((one, other), (other, one)):
            if k == inner and (result is None or result == (m, n)):
                return product(1, m, k, n)
    return None
