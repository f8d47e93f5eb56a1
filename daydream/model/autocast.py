"""Types under autocast: which work runs in 16 bits, and where it has to cast. One walk for time and for memory.

Which tensor a kernel or call reads is not recorded. What is known: products want 16 bits, some operators want 32
(ATen/autocast_mode.h; for the CPU ATen/autocast_mode.cpp), and all others take the type of what they read. So
types follow from the order of kernels on a lane, or of calls. In the forward pass each takes what the work before
it left. The backward pass is the same in reverse: the gradient of a cast is a cast back, at the mirrored place, so
a kernel takes what the work *behind* it wants. A sum of two activations is as wide as the wider one (torch's type
promotion): beside a norm one of them is the residual stream, which a norm's
result or an embedding began. A sum or factor is as wide as a parameter that goes into it, where shapes show one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from daydream.costs.kernel_names import kernels_are
from daydream.costs.kernels import is_matrix
from daydream.costs.operators import Operator, operators_that
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection

ADD = r"aten::add_?$"
ADD_KERNEL = r"CUDAFunctor_add|AddFunctor|add_kernel"
# Within `cross_entropy` the logarithm of softmax is asked for in the type of its input
# (ATen/native/LossNLL.cpp), and only the loss is computed in 32 bits: so in `t4_mlp_amp`, a development pair.
LOG = r"log_softmax"
LOG_KERNEL = r"(?i)log_?softmax|softmax_warp_\w+<[^>]*\b\d+, (true|\(bool\)1),"
LOSS = r"(?i)nll_loss"
COMPILED = r"triton_"  # Inductor writes casts into the kernels around them
SUM = r"aten::sum$"
SUM_KERNEL = r"reduce_kernel.*(sum_functor|SumOps|sum_kernel)"


def _stays_wide(op: Operator) -> bool:
    norm = op.family == "normalization" and "batch_norm" not in op.name
    return norm or op.family in ("softmax", "loss") or "loss" in op.traits


def _is_cast_inside(op: Operator) -> bool:
    """Whether it takes a 16-bit input and gives a 32-bit result in one kernel, its gradient the other way."""
    return op.family == "softmax" or op.autocast_gpu == "32 result"


class Work(NamedTuple):
    """A kernel of a lane, or a call of the forward pass: what decides its type.

    `wants` are bits: 16 of a product, 32 of what autocast keeps wide, 0 of what takes what it is given.
    """

    wants: int
    adds: bool = False
    backward: bool = False
    casts: bool = False  # inside, from one type to the other
    sums: bool = False
    widens: bool = False  # a parameter of 32 bits goes in


class Types(NamedTuple):
    """Bits that work is given, that it runs in and that it wants, 0 for none; and whether it is a residual sum."""

    given: int
    runs: int
    wants: int
    residual: bool


def walk(works: Sequence[Work], *, calls: bool = False) -> list[Types]:
    """Return the types of a step's work in its order; a step begins in 32 bits.

    Of `calls` every sum adds activations, so that the first one tells the type of the stream that others add to.
    Of kernels some add what belongs to an operator.
    """
    wants = [work.wants for work in works]
    residual = []
    ahead = 32
    left = 32
    stream = 0
    for work, want, behind in zip(works, wants, _behind(wants), strict=True):
        beside_wide = behind == 32 or (ahead if work.backward else stream) == 32
        residual.append(not want and (work.widens or (work.adds and beside_wide)))
        ahead = want or ahead
        left = 32 if residual[-1] else want or left
        stream = stream or left * work.adds * calls
    wants = [32 if wide else want for want, wide in zip(wants, residual, strict=True)]
    # A sum of the backward pass, the gradient of a bias, takes what it is given.
    sums = [work.sums and work.backward and work.wants != 32 for work in works]
    behind_it = _behind([0 if sums_up else want for want, sums_up in zip(wants, sums, strict=True)])
    given = 32
    found = []
    for at, work in enumerate(works):
        mirrored = work.backward and not sums[at]
        want = wants[at] or (behind_it[at] if mirrored else 0)
        found.append(Types(given, want or given, want, residual[at]))
        turns = work.wants == 32 and work.casts and work.backward
        given = 16 if turns else want or given
    return found


def wants(op: Operator, *, on_gpu: bool) -> int:
    """Return how many bits autocast gives a call of an operator: 16, 32, or 0 for what it is given.

    A loss is none of these: it may be called outside of autocast.
    """
    told = op.autocast_gpu if on_gpu else op.autocast_cpu
    if told == "16" or op.family in ("attention", "recurrent"):
        return 16
    # Within `cross_entropy` the logarithm of softmax has the type of the logits (LossNLL.cpp).
    wide = told.startswith("32") and "loss" not in op.traits
    return 32 if wide and not op.name.endswith("log_softmax") else 0


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


def flow(graph: Graph, kernels: Selection) -> Flow:
    """Return which of some 32-bit kernels of forward, loss and backward autocast runs in 16 bits.

    Not known: a third use of an activation (one that feeds three products is cast once here), and which of several
    streams an activation came from.
    """
    matrix = kernels.where(lambda tasks: is_matrix(graph, tasks))
    wide = wide_work(kernels) - matrix
    bits = 16 * kernels.is_in(matrix) + 32 * kernels.is_in(wide)
    chosen = (
        kernels.where(op=ADD) | kernels.where(name=ADD_KERNEL),
        kernels.where(phase="backward"),
        kernels.where(op=operators_that(_is_cast_inside))
        | kernels.where(lambda tasks: kernels_are(tasks, "softmax")),
        kernels.where(op=SUM) | kernels.where(name=SUM_KERNEL),
    )
    columns = (bits, *(kernels.is_in(some) for some in chosen))
    works = map(Work, *(column.tolist() for column in columns))
    compiled = kernels.is_in(kernels.where(name=COMPILED)).tolist()
    places = zip(kernels.step.tolist(), kernels.lane.tolist(), strict=True)
    rows = sorted(
        zip(places, kernels.ids.tolist(), compiled, works, strict=True), key=lambda row: row[0]
    )  # in program order within
    found: dict[str, list[int]] = {"narrow": [], "to 16": [], "to 32": []}
    for _, of_lane in groupby(rows, lambda row: row[0]):
        lane = [*of_lane]
        before = False
        for (_, task, fused, work), types in zip(
            lane, walk([row[-1] for row in lane]), strict=True
        ):
            if types.runs == 16:
                found["narrow"].append(task)
            casts = types.residual or (work.wants == 32 and work.casts)
            if not (fused or before) and types.wants + types.given == 48:
                if types.wants == 16:
                    found["to 16"].append(task)
                elif work.backward or not casts:
                    found["to 32"].append(task)
            before = fused
    return Flow(*(kernels.is_in(graph.tasks(tasks)) for tasks in found.values()))


def _behind(values: list[int]) -> list[int]:
    """Return for each place the next value behind it that is not 0, 0 where none is."""
    found = []
    value = 0
    for each in reversed(values):
        found.append(value)
        value = each or value
    return found[::-1]
