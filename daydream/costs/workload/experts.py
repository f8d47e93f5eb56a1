"""FLOP and elements of grouped products, of experts, and of the products of servers' own libraries.

Grouped products multiply every row with the matrix of one group, so the groups' sizes, which are not
recorded, do not count. A layer of experts multiplies each token with those it is routed to. Libraries beside
torch's (aiter, vLLM, SGLang) give the result first or not, the weight as it is or transposed; which it is
follows from the sizes. Attention over pages stays unknown: how long the contexts are is no shape.
"""

from __future__ import annotations

import re
from math import prod

from daydream.costs.workload.amount import Amount
from daydream.costs.workload.matrix import Formula, product, tensors
from daydream.costs.workload.shapes import Argument, Shape
from daydream.lazy import regex

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
