"""Masks that compiled code on a CPU stores for its backward pass: which, and what they cost.

The gradient of a ReLU needs to know where it cut. Where a product or a normalization of the same compiled
graph keeps the ReLU's output anyway, the compiler looks there; else it stores a mask of a byte an element,
and the loop that stores or reads one converts it element by element. So it is behind a graph break: a graph
that ends with a ReLU does not know who keeps its output.

Random numbers in compiled code on a CPU: each element is drawn by itself, where torch draws them in a row.

Inductor makes the numbers of a dropout with Philox, a counter an element, in a loop without vectors, and
stores a mask of a byte an element in it. What uses the mask reads it again in each of its passes. The seeds
of all draws of a compiled call are drawn by torch, once.

Convolutions in compiled code on a CPU: their tensors lie channels last, whatever the program does.

Inductor changes the layout of all convolutions of a graph (`layout_optimization`). oneDNN then pads no
channels to whole blocks, and what it wrote in blocks needs no reordering.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.kernels import work
from daydream.costs.operators import operators_that
from daydream.costs.workload.calls import forward_rows
from daydream.costs.workload.shapes import parse_shapes
from daydream.graph.calls import call_rows
from daydream.graph.selection import Selection
from daydream.lazy import regex

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
    graph, trace = compiled.graph, compiled.graph.recorded
    added = np.zeros(len(graph.alive))
    family = work(graph, compiled).family.astype(str)
    stays = np.isin(compiled.ids, library.ids)
    keeps = stays | (family == "normalization")
    works = np.flatnonzero(keeps | (family != "None"))
    relu = call_rows(graph, compiled.ids[works], RELU)
    last = np.flatnonzero((relu >= 0) & np.append(relu[1:] != relu[:-1], True))
    # By the next call of the pass that does work.
    passes = np.stack(
        [compiled.step[works], np.unique(compiled.phase[works], return_inverse=True)[1]]
    )
    goes_on = np.append((passes[:, 1:] == passes[:, :-1]).all(axis=0), False)
    kept = np.append(keeps[works], False)[last + 1] & goes_on[last]
    broken = np.append(stays[works], False)[last + 1] * _share_broken(library, breaks)
    part = np.where(kept, broken, 1.0)
    elements = np.maximum(compiled.input_elements, 0)
    added[compiled.ids[works[last]]] = STORE_NS * part * elements[works[last]]

    cuts = np.flatnonzero(compiled.op == "aten::threshold_backward")
    forward = forward_rows(trace, graph.row[compiled.ids[cuts]])
    parent = np.asarray(trace["parent"], np.int64)
    of_row = np.zeros(len(parent) + 1)
    of_row[relu[last]] = part
    share = np.where(forward >= 0, np.maximum(of_row[forward], of_row[parent[forward]]), 0.0)
    reads = share * _reads(compiled, stays, family, cuts)
    added[compiled.ids[cuts]] = READ_NS * reads * elements[cuts] / 2  # the gradient comes in, too
    return added


def _reads(
    compiled: Selection, stays: np.ndarray, family: np.ndarray, cuts: np.ndarray
) -> np.ndarray:
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


# ns; torch 2.13.0 on an x86 server CPU with AVX-512, at one thread (benchmarks/compiled_costs.py).
# An element drawn and its mask stored: the compiled forward pass of a dropout of 16 k and 65 k elements, less
# its fixed costs: the mean of two hosts (19.2 and 21.4 on one, 16 and 15 on the other).
DRAW_NS = 17.0
# An element of a mask read in one pass: 4 blocks of 512 x 64 with dropout, of norm (6.3 forward, in three
# passes; 2.2 backward), ReLU (4.0; 0.9) and softmax (3.5; 4.5, in two passes).
READ_DRAWN_NS = 2.1
NORM_PASSES = 3  # a normalization takes its mean, its variance, and writes
SOFTMAX_PASSES = 2  # the gradient of a softmax takes a sum, and writes
# A call's seeds: blocks of 8 x 8 with dropout less those without, the first one (16 to 29 us).
SEEDS_NS = 20_000
DROPOUT = regex(r"^aten::((feature_|alpha_)?dropout_?|native_dropout)$")


def draws(tasks: Selection) -> np.ndarray:
    """Return which tasks draw random numbers for a tensor: bool, shape (tasks,)."""
    return call_rows(tasks.graph, tasks.ids, _fills()) >= 0


def _fills() -> str:
    return operators_that(lambda op: op.formula == "write" and "random" in op.traits)


def random_numbers_ns(compiled: Selection, library: Selection) -> np.ndarray:
    """Return the time that random numbers take in one compiled call, by id of the task that it is added to.

    Args:
        compiled: what the compiled call takes the place of.
        library: calls of it that stay as they are.

    """
    graph = compiled.graph
    added = np.zeros(len(graph.alive))
    call = call_rows(graph, compiled.ids, _fills())
    drawn = np.flatnonzero((call >= 0) & np.append(call[1:] != call[:-1], True))
    if not len(drawn):
        return added
    family, phase = work(graph, compiled).family.astype(str), compiled.phase.astype(str)
    loop = _loops(compiled, library)
    elements = np.maximum(compiled.input_elements, 0)
    norms = _last_in(loop, (family == "normalization") & (phase == "forward"))
    passes = np.where(norms[loop[drawn]] > drawn, NORM_PASSES, 1)
    added[compiled.ids[drawn]] = (DRAW_NS + READ_DRAWN_NS * passes) * elements[drawn]
    _, first = np.unique(compiled.step[drawn], return_index=True)
    added[compiled.ids[drawn[first]]] += SEEDS_NS

    masked = _multiplies_by_mask(compiled)
    softmaxes = _last_in(loop, (family == "softmax") & (phase == "backward"))
    passes = np.where(softmaxes[loop[masked]] > masked, SOFTMAX_PASSES, 1)
    added[compiled.ids[masked]] += (
        READ_DRAWN_NS * passes * elements[masked] / 2
    )  # the gradient comes in, too
    return added


def _loops(compiled: Selection, library: Selection) -> np.ndarray:
    """Return the number of the loop that each task would be in: between two library calls of a pass."""
    stays = np.isin(compiled.ids, library.ids)
    passes = np.stack([stays, compiled.step, np.unique(compiled.phase, return_inverse=True)[1]])
    return np.cumsum(np.append(False, (passes[:, 1:] != passes[:, :-1]).any(axis=0)))


def _last_in(loop: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return by loop the place of its last task of those, -1 for none."""
    last = np.full(loop[-1] + 1, -1)
    at = np.flatnonzero(which)
    last[loop[at]] = at  # in order: the last one stays
    return last


def _multiplies_by_mask(compiled: Selection) -> np.ndarray:
    """Return the places of the tasks that compute the gradient of a dropout."""
    graph, trace = compiled.graph, compiled.graph.recorded
    products = np.flatnonzero((compiled.op == "aten::mul") & (compiled.phase == "backward"))
    forward = forward_rows(trace, graph.row[compiled.ids[products]])
    around = np.where(forward >= 0, np.asarray(trace["parent"], np.int64)[forward], -1)
    products, around = products[around >= 0], around[around >= 0]
    dropouts = [DROPOUT.search(name) is not None for name in trace.values("name", around)]
    return products[np.array(dropouts, bool)]


CONVOLUTION = r"^aten::(convolution|convolution_backward)$"
WEIGHT = {"forward": 1, "backward": 2}  # place among the arguments
# Channels of a block, and the time channels last of what it was: of whole blocks, and at the least. Measured
# with images of 4 x 12 to 28 squared, of 8 to 64 channels; torch 2.13.0 on an x86 server CPU with AVX-512.
BLOCK = 16
WHOLE = {"forward": 0.87, "backward": 0.92}
LEAST = 0.65
DOUBT = 0.12  # what the measured ones were off by, nine in ten


def channels_last_factors(library: Selection) -> np.ndarray:
    """Return the part of each task's time that is left: (tasks,); 1 if it is no convolution of images."""
    graph, trace = library.graph, library.graph.recorded
    factors = np.ones(len(library))
    rows = call_rows(graph, library.ids, CONVOLUTION)
    shapes = np.where(rows >= 0, trace["shapes"][rows], -1)
    for code in np.unique(shapes[shapes >= 0]).tolist():
        arguments = parse_shapes(trace.text("shapes")[code]) or []
        for phase, place in WEIGHT.items():
            weight = arguments[place] if len(arguments) > place else None
            if isinstance(weight, tuple) and len(weight) == 4:
                filled = max(many / (-(-many // BLOCK) * BLOCK) for many in weight[:2])
                mine = (shapes == code) & (library.phase == phase)
                factors[mine] = np.clip(filled, LEAST, WHOLE[phase])
    return factors
