"""Work of grouped products, of experts and of servers' libraries, worked out by hand."""

from __future__ import annotations

import json

import pytest

from daydream.costs.workload.operator import operator_work

A, B, C = [64, 16], [4, 16, 32], [4]  # 64 rows in 4 groups, by 16 x 32


@pytest.mark.parametrize(
    ("op", "shapes", "flop", "elements"),
    [
        ("aten::_grouped_mm", [A, B, C], 2 * 64 * 16 * 32, 64 * 16 + 4 * 16 * 32 + 64 * 32),
        # The gradient of the weights: 64 rows are summed, in groups.
        (
            "aten::_grouped_mm", [[16, 64], [64, 32], C],
            2 * 16 * 64 * 32, 16 * 64 + 64 * 32 + 4 * 16 * 32,
        ),
        ("aten::_scaled_grouped_mm", [[4, 8, 16], B], 2 * 4 * 8 * 16 * 32, 4 * (8 * 16 + 16 * 32 + 8 * 32)),
        # 10 tokens, 2 of 8 experts each: 20 rows through 16 x 64 and 32 x 16.
        (
            "vllm::outplace_fused_experts", [[10, 16], [8, 64, 16], [8, 16, 32], [10, 2], [10, 2]],
            2 * 20 * 16 * 64 + 2 * 20 * 32 * 16,
            8 * (64 * 16 + 16 * 32) + 2 * 10 * 16 + 20 * 64,
        ),
        ("aiter::gemm_a8w8", [[64, 16], [32, 16], [64, 1]], 2 * 64 * 16 * 32, 64 * 16 + 16 * 32 + 64 * 32),
        # The result first.
        (
            "_C::cutlass_scaled_mm", [[64, 32], [64, 16], [16, 32], [1], [1]],
            2 * 64 * 16 * 32, 64 * 16 + 16 * 32 + 64 * 32,
        ),
    ],
)  # fmt: skip
def test_flop_and_elements(op, shapes, flop, elements):
    found = operator_work(op, json.dumps(shapes))
    assert found is not None
    assert (found.family, found.flop, found.elements) == ("matmul", flop, elements)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("aten::_grouped_mm", [A, [4, 8, 32]]),  # sizes that do not fit
        ("vllm::moe_forward", [[10, 16], [10, 8]]),  # the weights are not among the arguments
        ("_C::paged_attention_v1", [[4, 8, 64], [4, 8, 64], [100, 8, 16, 16]]),  # contexts are no shape
        ("mine::gemm_helper", [[3, 5], [7, 9]]),
    ],
)
def test_what_shapes_do_not_tell_stays_unknown(op, shapes):
    assert operator_work(op, json.dumps(shapes)) is None
