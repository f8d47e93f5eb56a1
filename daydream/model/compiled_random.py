"""Random numbers in compiled code on a CPU: each element is drawn by itself, where torch draws them in a row.

Inductor makes the numbers of a dropout with Philox, a counter an element, in a loop without vectors, and
stores a mask of a byte an element in it. What uses the mask reads it again in each of its passes. The seeds
of all draws of a compiled call are drawn by torch, once.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.kernels import work
from daydream.costs.workload.forward_calls import forward_rows
from daydream.graph.query.calls import call_rows
from daydream.graph.selection import Selection
from daydream.lazy import regex

# ns; torch 2.13.0 on an x86 server CPU with AVX-512, at one thread (benchmarks/compiled_costs.py).
# An element drawn and its mask stored: the compiled forward pass of a dropout of 16 k and 65 k elements, less
# its fixed costs: the mean of two hosts (19.2 and 21.4 on one, 16 and 15 on the other).
DRAW_NS = 17.0
# An element of a mask read in one pass: 4 blocks of 512 x 64 with dropout, of norm (6.3 forward, in three
# passes; 2.2 backward), ReLU (4.0; 0.9) and softmax (3.5; 4.5, in two passes).
READ_NS = 2.1
NORM_PASSES = 3  # a normalization takes its mean, its variance, and writes
SOFTMAX_PASSES = 2  # the gradient of a softmax takes a sum, and writes
# A call's seeds: blocks of 8 x 8 with dropout less those without, the first one (16 to 29 us).
SEEDS_NS = 20_000
DRAWS = r"^aten::(bernoulli|normal|uniform|exponential)_$"
DROPOUT = regex(r"^aten::((feature_|alpha_)?dropout_?|native_dropout)$")


def draws(tasks: Selection) -> np.ndarray:
    """Return which tasks draw random numbers for a tensor: bool, shape (tasks,)."""
    return call_rows(tasks.graph, tasks.ids, DRAWS) >= 0


def random_numbers_ns(compiled: Selection, library: Selection) -> np.ndarray:
    """Return the time that random numbers take in one compiled call, by id of the task that it is added to.

    Args:
        compiled: what the compiled call takes the place of.
        library: calls of it that stay as they are.

    """
    graph = compiled.graph
    added = np.zeros(len(graph.alive))
    call = call_rows(graph, compiled.ids, DRAWS)
    drawn = np.flatnonzero((call >= 0) & np.append(call[1:] != call[:-1], True))
    if not len(drawn):
        return added
    family, phase = work(graph, compiled).family.astype(str), compiled.phase.astype(str)
    loop = _loops(compiled, library)
    elements = np.maximum(compiled.input_elements, 0)
    norms = _last_in(loop, (family == "normalization") & (phase == "forward"))
    passes = np.where(norms[loop[drawn]] > drawn, NORM_PASSES, 1)
    added[compiled.ids[drawn]] = (DRAW_NS + READ_NS * passes) * elements[drawn]
    _, first = np.unique(compiled.step[drawn], return_index=True)
    added[compiled.ids[drawn[first]]] += SEEDS_NS

    masked = _multiplies_by_mask(compiled)
    softmaxes = _last_in(loop, (family == "softmax") & (phase == "backward"))
    passes = np.where(softmaxes[loop[masked]] > masked, SOFTMAX_PASSES, 1)
    added[compiled.ids[masked]] += READ_NS * passes * elements[masked] / 2  # the gradient comes in, too
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
    graph, trace = compiled.graph, compiled.graph.trace
    assert trace is not None  # noqa: S101 - what is compiled was recorded
    products = np.flatnonzero((compiled.op == "aten::mul") & (compiled.phase == "backward"))
    forward = forward_rows(trace, graph.columns["row"][compiled.ids[products]])
    around = np.where(forward >= 0, np.asarray(trace["parent"], np.int64)[forward], -1)
    products, around = products[around >= 0], around[around >= 0]
    dropouts = [DROPOUT.search(name) is not None for name in trace.values("name", around)]
    return products[np.array(dropouts, bool)]
