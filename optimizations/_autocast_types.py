"""Which kernels run in 16 bits under autocast, and where it has to cast.

Which tensor a kernel reads is not recorded. What is known: products want 16 bits, some operators want 32
(ATen/autocast_mode.h), and all others take the type of what they read. So types follow from the order of
kernels on a lane. In the forward pass a kernel takes what the work before it left. The backward pass is the
same in reverse: the gradient of a cast is a cast back, at the mirrored place, so a kernel takes what the
work *behind* it wants. A sum of two activations is as wide as the wider one (torch's type promotion): beside
a norm one of them is the residual stream, which a norm's result or an embedding began in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from daydream import Graph, Selection
from daydream.costs import Operator, is_matrix, kernels_are, operators_that

ADD, ADD_KERNEL = r"aten::add_?$", r"CUDAFunctor_add|AddFunctor|add_kernel"
# Within `cross_entropy` the logarithm of softmax is asked for in the type of its input
# (ATen/native/LossNLL.cpp), and only the loss is computed in 32 bits: so in `t4_mlp_amp`, a development pair.
LOG, LOG_KERNEL = r"log_softmax", r"(?i)log_?softmax|softmax_warp_\w+<[^>]*\b\d+, (true|\(bool\)1),"
LOSS = r"(?i)nll_loss"
COMPILED = r"triton_"  # Inductor writes casts into the kernels around them
SUM, SUM_KERNEL = r"aten::sum$", r"reduce_kernel.*(sum_functor|SumOps|sum_kernel)"


def _stays_wide(op: Operator) -> bool:
    norm = op.family == "normalization" and "batch_norm" not in op.name
    return norm or op.family in ("softmax", "loss") or "loss" in op.traits


def _is_cast_inside(op: Operator) -> bool:
    """Whether it takes a 16-bit input and gives a 32-bit result in one kernel, its gradient the other way."""
    return op.family == "softmax" or op.autocast_gpu == "32 result"


class Flow(NamedTuple):
    """Masks of kernels, an entry each: run in 16 bits; a cast to 16 or 32 bits comes before them."""

    narrow: Any
    to_16: Any
    to_32: Any


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


class Kernel(NamedTuple):
    """What decides the type of a kernel: products want 16 bits, wide work 32, others what they are given."""

    task: int
    place: tuple[int, str]  # step and lane
    backward: bool
    matrix: bool
    wide: bool
    casts: bool  # inside, from one type to the other
    adds: bool
    sums: bool
    compiled: bool


def flow(graph: Graph, kernels: Selection) -> Flow:
    """Return which of some 32-bit kernels of forward, loss and backward autocast runs in 16 bits.

    A step begins in 32 bits. Not known: a third use of an activation (one that feeds three products is cast
    once here), and which of several streams an activation came from.
    """
    matrix = kernels.where(lambda tasks: is_matrix(graph, tasks))
    chosen = (
        kernels.where(phase="backward"),
        matrix,
        wide_work(kernels) - matrix,
        kernels.where(op=operators_that(_is_cast_inside))
        | kernels.where(lambda tasks: kernels_are(tasks, "softmax")),
        kernels.where(op=ADD) | kernels.where(name=ADD_KERNEL),
        kernels.where(op=SUM) | kernels.where(name=SUM_KERNEL),
        kernels.where(name=COMPILED),
    )
    places = zip(kernels.step.tolist(), kernels.lane.tolist(), strict=True)
    columns = (kernels.is_in(some).tolist() for some in chosen)
    rows = sorted(
        map(Kernel, kernels.ids.tolist(), places, *columns), key=lambda kernel: kernel.place
    )  # in program order within
    found: dict[str, list[int]] = {"narrow": [], "to 16": [], "to 32": []}
    for _, of_lane in groupby(rows, lambda kernel: kernel.place):
        for what, task in _types([*of_lane]):
            found[what].append(task)
    return Flow(*(kernels.is_in(graph.tasks(tasks)) for tasks in found.values()))


def _types(kernels: list[Kernel]) -> Iterator[tuple[str, int]]:
    """Return which kernels of a step on a lane run in 16 bits, and before which a cast to what comes."""
    wants = [16 if kernel.matrix else 32 if kernel.wide else 0 for kernel in kernels]
    residual, ahead = [], 32
    for kernel, want, behind in zip(kernels, wants, _behind(wants), strict=True):
        beside_wide = behind == 32 or (kernel.backward and ahead == 32)
        residual.append(kernel.adds and not want and beside_wide)
        ahead = want or ahead
    wants = [32 if wide else want for want, wide in zip(wants, residual, strict=True)]
    sums = [kernel.sums and kernel.backward and not kernel.wide for kernel in kernels]
    behind_it = _behind([0 if sums_up else want for want, sums_up in zip(wants, sums, strict=True)])
    before, compiled = 32, False
    for at, kernel in enumerate(kernels):
        mirrored = kernel.backward and not sums[at]
        want = wants[at] or (behind_it[at] if mirrored else 0)
        given = before
        if (want or given) == 16:
            yield "narrow", kernel.task
        casts = (kernel.wide and kernel.casts) or residual[at]
        if not (kernel.compiled or compiled) and want + given == 48:
            if want == 16:
                yield "to 16", kernel.task
            elif kernel.backward or not casts:
                yield "to 32", kernel.task
        left = 16 if kernel.wide and kernel.casts and kernel.backward else want
        before, compiled = left or given, kernel.compiled


def _behind(values: list[int]) -> list[int]:
    """Return for each place the next value behind it that is not 0, 0 where none is."""
    found, value = [], 0
    for each in reversed(values):
        found.append(value)
        value = each or value
    return found[::-1]
