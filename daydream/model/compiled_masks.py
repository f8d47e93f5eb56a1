"""Masks that compiled code on a CPU stores for its backward pass: which, and what they cost.

The gradient of a ReLU needs to know where it cut. Where a product or a normalization of the same compiled
graph keeps the ReLU's output anyway, the compiler looks there; else it stores a mask of a byte an element,
and the loop that stores or reads one converts it element by element. So it is behind a graph break: a graph
that ends with a ReLU does not know who keeps its output.
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
SUMS_OF_GRADIENTS = ("aten::add", "aten::add_")


def masks_ns(compiled: Selection, library: Selection, breaks: int = 0) -> np.ndarray:
    """Return the time that masks add to each task, by id.

    Where graphs break is not known, only how often. A break stands between two statements of a program, and a
    product is called in one with its activation. So each place in front of a product is as likely as the
    next, and what a break would add behind a ReLU counts with the share of these places that have one.

    Args:
        compiled: what one compiled call takes the place of.
        library: calls of it that stay as they are.
        breaks: graph breaks in each forward call.

    """
    graph, trace = compiled.graph, compiled.graph.trace
    assert trace is not None  # noqa: S101 - what is compiled was recorded
    added = np.zeros(len(graph.alive))
    family = work(graph, compiled).family.astype(str)
    stays = np.isin(compiled.ids, library.ids)
    keeps = stays | (family == "normalization")
    works = np.flatnonzero(keeps | (family != "None"))
    relu = call_rows(graph, compiled.ids[works], RELU)
    last = np.flatnonzero((relu >= 0) & np.append(relu[1:] != relu[:-1], True))
    # By the next call of the pass that does work.
    passes = np.stack([compiled.step[works], np.unique(compiled.phase[works], return_inverse=True)[1]])
    goes_on = np.append((passes[:, 1:] == passes[:, :-1]).all(axis=0), False)
    kept = np.append(keeps[works], False)[last + 1] & goes_on[last]
    broken = np.append(stays[works], False)[last + 1] * _share_broken(library, breaks)
    part = np.where(kept, broken, 1.0)
    elements = np.maximum(compiled.input_elements, 0)
    added[compiled.ids[works[last]]] = STORE_NS * part * elements[works[last]]

    cuts = np.flatnonzero(compiled.op == "aten::threshold_backward")
    forward = forward_rows(trace, graph.columns["row"][compiled.ids[cuts]])
    parent = np.asarray(trace["parent"], np.int64)
    of_row = np.zeros(len(parent) + 1)
    of_row[relu[last]] = part
    share = np.where(forward >= 0, np.maximum(of_row[forward], of_row[parent[forward]]), 0.0)
    reads = share * _reads(compiled, stays, family, cuts)
    added[compiled.ids[cuts]] = READ_NS * reads * elements[cuts] / 2  # the gradient comes in, too
    return added


def _reads(compiled: Selection, stays: np.ndarray, family: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return how often the mask of each cut gradient is read.

    A loop with the gradient of a normalization goes over it twice: once for its sums, once to write. Where a
    path around layers brings the gradient to a sum with another, it is not stored but cut once more.
    """
    backward = compiled.phase == "backward"
    loop = np.cumsum(np.append(False, stays[1:] != stays[:-1]))
    passes = 1 + np.isin(loop, loop[(family == "normalization") & backward])
    sums = np.flatnonzero(np.isin(compiled.op.astype(str), SUMS_OF_GRADIENTS) & backward)
    following = np.append(sums, len(passes))[np.searchsorted(sums, cuts)]
    there = np.append(compiled.step, -1)[following] == compiled.step[cuts]
    alike = np.append(compiled.input_elements, -1)[following] == compiled.input_elements[cuts]
    again = np.append(passes, 0)[following] * (there & alike)
    return passes[cuts] + again


def _share_broken(library: Selection, breaks: int) -> float:
    """Return which share of the places between two products of a forward pass have a graph break."""
    forward = library.where(phase="forward")
    if not breaks or not len(forward):
        return 0.0
    calls = len(np.unique(call_rows(forward.graph, forward.ids))) / len(forward.group_by("step"))
    return min(1.0, breaks / max(calls - 1, 1))
