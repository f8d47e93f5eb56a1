"""Where a size of the input hides in tensors: flattened with others, in rows that were picked, in scores."""

from __future__ import annotations

from math import prod

import numpy as np

from daydream.costs.resize.operands import BATCHED, factors_of, forward_keys
from daydream.costs.workload.calls import Calls
from daydream.costs.workload.operator import bare_name
from daydream.costs.workload.shapes import Shape, all_tensors, parse_shapes

PICKS = {
    "index", "index_select", "index_add", "index_put", "index_copy", "_index_put_impl",
}  # fmt: skip
SOFTMAX = {"softmax", "_softmax", "_softmax_backward_data", "_safe_softmax"}


def flattened_sizes(calls: Calls, old: int, parameters: set[Shape]) -> set[int]:
    """Return the multiples of a size that hold it: rows of products, batches of them, leading dimensions.

    A feature size may be a multiple of it too, so not every multiple holds it.
    """
    found = {old}
    for name, shapes, _ in forward_keys(calls):
        arguments = parse_shapes(shapes) or []
        factors = factors_of(bare_name(name), arguments)
        if factors is not None:
            found.add(prod(factors[0][:-1]))
        for shape in all_tensors(arguments):
            if len(shape) > 2 and shape not in parameters:
                found.add(shape[0])
                leading = [prod(shape[:many]) for many in range(1, len(shape))]
                found.update(size for many, size in enumerate(leading, 1) if old in shape[:many])
    return {size for size in found if size and size % old == 0}


def routed_rows(calls: Calls, flattened: set[int]) -> set[int]:
    """Return how many rows were picked from those of a whole batch, as tokens are for an expert."""
    trace = calls.trace
    names = trace.text("name")
    rows = calls.rows[np.asarray(trace["shapes"])[calls.rows] >= 0]
    pairs = (
        np.unique(np.stack([trace["name"][rows], trace["shapes"][rows]]), axis=1).T.tolist()
        if len(rows)
        else []
    )
    found: set[int] = set()
    for name, shapes in pairs:
        if bare_name(names[name]) in PICKS:
            source, *others = all_tensors(parse_shapes(trace.text("shapes")[shapes]) or []) or [()]
            if len(source) > 1 and source[0] in flattened:
                found.update(shape[0] for shape in others if len(shape) == 1)
    return found - flattened


def rows_of_scores(calls: Calls) -> np.ndarray:
    """Mask of the operator rows that work on attention scores.

    They lie between two batched products with a softmax in between. What is copied behind the softmax is the
    second product's other factor.
    """
    trace = calls.trace
    bare = [bare_name(name) for name in trace.text("name")]
    kinds = np.array(
        [1 if name in BATCHED else 2 if name in SOFTMAX else 3 if name == "copy" else 0 for name in bare]
    )
    mask = np.zeros(len(trace), bool)
    keys = (trace["start_ns"], trace["tid"], trace["pid"], trace["rank"])
    rows = calls.rows[np.lexsort([np.asarray(key)[calls.rows] for key in keys])]
    kind = kinds[trace["name"][rows]] if len(kinds) else np.zeros(len(rows), int)
    thread = np.asarray(trace["tid"])[rows]
    products = np.flatnonzero(kind == 1)
    for first, last in zip(products[:-1].tolist(), products[1:].tolist(), strict=True):
        softmax = np.flatnonzero(kind[first:last] == 2)
        if len(softmax) and thread[first] == thread[last]:
            inside = np.arange(first + 1, last)
            mask[rows[inside[(kind[inside] != 3) | (inside < first + softmax[0])]]] = True
    return mask
