"""Masks that compiled code on a CPU stores for its backward pass: which, and what they cost.

The gradient of a ReLU needs to know where it cut. Where a product or a normalization keeps the
ReLU's output anyway, the compiler looks there; else it stores a mask of a byte an element, and the loop
that stores or reads one converts it element by element.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.kernels import work
from daydream.costs.workload.forward_calls import forward_rows
from daydream.graph.query.calls import call_rows
from daydream.graph.selection import Selection

# An element, ns: fitted to ReLUs of 65 k to 590 k elements whose output nothing keeps, less the same ReLU
# ahead of a product; torch 2.13.0 on an x86 server CPU with AVX-512.
STORE_NS, READ_NS = 10.4, 4.0
RELU = r"^aten::relu_?$"


def masks_ns(compiled: Selection, library: Selection) -> np.ndarray:
    """Return the time that masks add to each task, by id; `library` are calls that stay as they are."""
    graph, trace = compiled.graph, compiled.graph.trace
    assert trace is not None  # noqa: S101 - what is compiled was recorded
    added = np.zeros(len(graph.alive))
    family = work(graph, compiled).family.astype(str)
    keeps = np.isin(compiled.ids, library.ids) | (family == "normalization")
    works = np.flatnonzero(keeps | (family != "None"))
    relu = call_rows(graph, compiled.ids[works], RELU)
    last = np.flatnonzero((relu >= 0) & np.append(relu[1:] != relu[:-1], True))
    kept = np.append(keeps[works], False)[last + 1]  # by the next call that does work
    stores = last[~kept]
    elements = compiled.input_elements
    added[compiled.ids[works[stores]]] = STORE_NS * np.maximum(elements[works[stores]], 0)

    cuts = np.flatnonzero(compiled.op == "aten::threshold_backward")
    forward = forward_rows(trace, graph.columns["row"][compiled.ids[cuts]])
    parent = np.asarray(trace["parent"], np.int64)
    masked = np.isin(forward, relu[stores]) | np.isin(parent[forward], relu[stores])
    reads = cuts[masked & (forward >= 0)]
    added[compiled.ids[reads]] = READ_NS * np.maximum(elements[reads], 0) / 2  # the gradient comes in, too
    return added
