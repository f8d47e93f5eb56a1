"""Which kernels run in 16 bits under autocast, and where it has to cast.

Which tensor a kernel reads is not recorded. What is known: products want 16 bits, some operators want 32
(ATen/autocast_mode.h), and all others take the type of what they read. So types follow from the order of
kernels on a lane. In the forward pass a kernel takes what the work before it left. The backward pass is the
same in reverse: the gradient of a cast is a cast back, at the mirrored place, so a kernel takes what the
work *behind* it wants. A sum of two activations is as wide as the wider one (torch's type promotion): beside
a norm one of them is the residual stream, which a norm's result or an embedding began in 32 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daydream import Graph, Selection
from daydream.costs import Operator, is_matrix, kernels_are, names_fit, operators_that

ADD, ADD_KERNEL = r"aten::add_?$", r"CUDAFunctor_add|AddFunctor|add_kernel"
# Within `cross_entropy` the logarithm of softmax is asked for in the type of its input
# (ATen/native/LossNLL.cpp), and only the loss is computed in 32 bits: so in `t4_mlp_amp`, a development pair.
LOG, LOG_KERNEL = r"log_softmax", r"(?i)log_?softmax|softmax_warp_\w+<[^>]*\b\d+, (true|\(bool\)1),"
LOSS = r"(?i)nll_loss"
COMPILED = "triton_"  # Inductor writes casts into the kernels around them
SUM, SUM_KERNEL = r"aten::sum$", r"reduce_kernel.*(sum_functor|SumOps|sum_kernel)"


def _stays_wide(op: Operator) -> bool:
    norm = op.family == "normalization" and "batch_norm" not in op.name
    return norm or op.family in ("softmax", "loss") or "loss" in op.traits


def _is_cast_inside(op: Operator) -> bool:
    """Whether it takes a 16-bit input and gives a 32-bit result in one kernel, its gradient the other way."""
    return op.family == "softmax" or op.autocast_gpu == "32 result"


class Flow(NamedTuple):
    """Masks of kernels, an entry each: run in 16 bits; a cast to 16 or 32 bits comes before them."""

    narrow: np.ndarray
    to_16: np.ndarray
    to_32: np.ndarray


def wide_work(kernels: Selection) -> Selection:
    """Return the kernels of operators that autocast keeps in 32 bits."""
    # Autocast is not active in the backward pass: what reads there what a norm, a softmax or a loss kept has
    # its type, and a sum (the gradient of a bias) takes what it is given.
    forward = kernels.where(phase=("forward", "loss"))
    found = kernels.where(op=operators_that(_stays_wide))
    found = found | kernels.where(lambda tasks: kernels_are(tasks, "softmax", "norm", "loss"))
    if len(kernels.where(name=LOSS)):
        found = found - kernels.where(op=LOG) - kernels.where(name=LOG_KERNEL)
    return found | forward.where(op=operators_that(lambda op: op.autocast_gpu.startswith("32")))


def flow(graph: Graph, kernels: Selection) -> Flow:
    """Return which of some 32-bit kernels of forward, loss and backward autocast runs in 16 bits.

    A step begins in 32 bits. Not known: a third use of an activation (one that feeds three products is cast
    once here), and which of several streams an activation came from.
    """
    if not len(kernels):
        return Flow(*(np.zeros(0, bool) for _ in range(3)))
    order = np.lexsort((graph.columns["lane"][kernels.ids], kernels.step))  # stable: program order within
    ordered = kernels[order]
    place = np.stack([ordered.step, graph.columns["lane"][ordered.ids]])
    starts = np.append(True, (place[:, 1:] != place[:, :-1]).any(axis=0))
    types, before, free, inside = _types(ordered, starts)
    found = [np.zeros(len(kernels), bool) for _ in range(3)]
    for mask, values in zip(
        found,
        (
            types == 16,
            (types == 16) & (before == 32) & ~inside,
            (types == 32) & (before == 16) & ~free & ~inside,
        ),
        strict=True,
    ):
        mask[order] = values
    return Flow(*found)


def _types(kernels: Selection, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each kernel's type and what was left before it, in bits; where 32 after 16 is free; inner casts.

    `starts` marks the first kernel of a step on a lane; kernels come lane by lane.
    """
    graph = kernels.graph
    matrix = is_matrix(graph, kernels)
    wide = _among(kernels, wide_work(kernels)) & ~matrix
    backward = np.asarray(kernels.phase == "backward")
    one = _among(kernels, kernels.where(op=operators_that(_is_cast_inside))) | kernels_are(kernels, "softmax")
    add = _among(kernels, kernels.where(op=ADD) | kernels.where(name=ADD_KERNEL)) & ~matrix & ~wide
    total = _among(kernels, kernels.where(op=SUM) | kernels.where(name=SUM_KERNEL)) & backward & ~wide

    wants = np.where(matrix, 16, np.where(wide, 32, 0))
    group = np.cumsum(starts) - 1
    behind = _next(wants, group)
    ahead = _last(np.append(0, wants[:-1]), starts)
    residual = add & ((behind == 32) | backward & (ahead == 32))
    wants = np.where(residual, 32, wants)
    mirrored = backward & (wants == 0) & ~total
    wants = np.where(mirrored, _next(np.where(total, 0, wants), group), wants)
    leaves = np.where(wide & one & backward, 16, wants)
    before = _last(np.append(32, leaves[:-1]), starts)
    types = np.where(wants > 0, wants, before)
    compiled = names_fit(kernels, lambda name: COMPILED in name)
    inside = compiled | np.append(False, compiled[:-1]) & ~starts
    return types, before, (wide & one | residual) & ~backward, inside


def _among(kernels: Selection, chosen: Selection) -> np.ndarray:
    return kernels.is_in(chosen)


def _last(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return for each place the last value of its group that says something, 32 at its start."""
    said = np.where(starts, 32, values)
    at = np.maximum.accumulate(np.where(said > 0, np.arange(len(said)), 0))
    found: np.ndarray = said[at]
    return found


def _next(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each place the next value of its group that says something, 0 where none does."""
    size = len(values)
    at = np.where(values > 0, np.arange(size), size)
    at = np.minimum.accumulate(np.append(at[1:], size)[::-1])[::-1]
    inside = (at < size) & (group[np.minimum(at, size - 1)] == group)
    return np.where(inside, values[np.minimum(at, size - 1)], 0)
