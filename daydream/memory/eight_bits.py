"""Memory of products in 8 bits: casts of their operands."""

from __future__ import annotations

import re

import numpy as np

from daydream.costs.operators import operators_that
from daydream.costs.workload.operator import itemsize
from daydream.costs.workload.shapes import elements
from daydream.memory.allocations import Allocations, parts_of, place_before, renumber
from daydream.memory.argument_bytes import arguments_of
from daydream.memory.asked import calls_that_made, forward_calls
from daydream.memory.enclosing import rows_that
from daydream.trace.schema import UNKNOWN


def hold_8_bits(held: Allocations) -> None:
    """Hold casts of the operands of linear layers, 1 B an element, while each product runs.

    At the least a linear layer saves its input so, as libraries do that keep the cast.

    Args:
        held: the allocations.
    """
    pattern = operators_that(lambda op: op.is_linear or op.name == "matmul")
    call = calls_that_made(held, pattern)
    products = parts_of(
        held, (call >= 0) & held.where(phase=("forward", "backward")), held["phase"], call
    )
    sizes = []
    for row in products.keys[:, -1].tolist():
        arguments = map(elements, arguments_of(held.trace, row))
        sizes.append(sum(sorted(arguments, reverse=True)[:2]))
    like = np.full(len(products), UNKNOWN)
    rows = np.flatnonzero(products.of >= 0)
    like[products.of[rows]] = rows
    ends = place_before(held, products.until)
    held.add(
        like, bytes=np.array(sizes, np.int64), begin=products.first, end=ends, kind="temporary"
    )
    last = forward_calls(held, at="end")
    linear = np.append(rows_that(held.trace, re.compile(pattern).search), False)
    saved = held.where(kind="activation") & (last >= 0) & linear[last]
    widths = np.array([*(itemsize(text) or 4 for text in held.trace.text("dtype")), 4])
    width = np.append(widths[held.trace["dtype"]], 4)[held["begin_row"]]
    held.scale(
        saved, held.among((1 / width)[saved], np.ones(int(saved.sum())), np.ones(int(saved.sum())))
    )
    renumber(held)
