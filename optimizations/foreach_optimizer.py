"""Foreach optimizer: a few multi-tensor kernels instead of some for each parameter."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import floor_ns
from daydream.memory import Allocations, parts_of, place_before
from daydream.model import FUSED_UPDATE_KERNEL, FUSED_UPDATE_OP, need_setting, update_calls, update_of
from daydream.transforms import optimizer_settings, stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"fused-adam", "fused-optimizer", "offload-optimizer"})
NEEDS_GPU = True  # on a CPU the same operators run one by one: measured five times, it gained nothing
CODE = "torch.optim.AdamW(parameters, foreach=True)  # or your optimizer"

MULTI_TENSOR = r"_foreach_|^_fused_|aten::_fused_"
MULTI_TENSOR_KERNEL = r"multi_tensor_apply"
AT_ONCE = {"sgd": 0, "momentum": 0, "adam": 1, "adamw": 1, "rmsprop": 1, "adagrad": 2}
ADDED_DECAY = r"^aten::add$"  # `grad = grad.add(param, alpha=weight_decay)`


def foreach_optimizer(graph: Graph, *, tensors_per_kernel: int = 64) -> None:
    """Predict `foreach=True`: each operator of the update runs once on all parameters.

    The kernels of one operator become one for every `tensors_per_kernel` parameters: torch's
    argument space holds 110 tensors of one list, 64 of two, 48 of three (MultiTensorApply.cuh;
    seven times that from CUDA 13 on). They move the same bytes; what goes is the fixed cost of
    small kernels, all but one launch and operator call for each new kernel, and Python between
    them; what stays is Python's walk over the parameters (measured, daydream/model/optimizers.py).
    On a CPU torch runs the same operators one by one, so only Python's time goes. Not
    modelled: cache misses of whole-model intermediates on a CPU.

    Memory: an operator that makes a new tensor makes it for all parameters at once. How many of these there
    are is read in torch/optim (2.13): one of Adam, AdamW and RMSprop, two of Adagrad, none of SGD, and one
    more for decay that is added to the gradients. Of other kinds it is one, up to two.

    Args:
        tensors_per_kernel: Parameters that one kernel updates.
    """
    if tensors_per_kernel < 1:
        raise GraphError(f"tensors_per_kernel must be 1 or more, not {tensors_per_kernel}")
    updates = graph.select(phase="optimizer", kind="kernel") | update_calls(graph)
    updates.need("optimizer work: no `Optimizer.step` range holds any")
    by_name = updates.where(name=(MULTI_TENSOR_KERNEL, FUSED_UPDATE_KERNEL))
    if len(updates.where(op=(MULTI_TENSOR, FUSED_UPDATE_OP)) | by_name):
        graph.does_not_apply("the optimizer runs multi-tensor operators already")
    need_setting(graph, "foreach")
    walk_ns = update_of(graph).python_ns()
    operators = updates.where(lambda tasks: tasks.op != None).need("operators in the update")  # noqa: E711
    kernels = operators.where(kind="kernel")
    if len(kernels):
        groups = kernels.group_by("step", "op")
        parts = -(-groups.sizes // tensors_per_kernel)
        together = groups.total("duration_ns")
        fixed = np.minimum(floor_ns(graph) * (groups.sizes - parts), 0.9 * together)
        kept = groups.first().operators()
        fused = groups.fuse("multi_tensor_apply", duration_ns=together - fixed)
        kept = kept | graph.select(on="gpu", phase="optimizer").launches()
        for count in np.unique(parts[parts > 1]).tolist():
            graph.tasks(fused.ids[parts == count]).split(count, launched=True)
        gone = (updates - kept).where(kind="cpu")
    else:
        kept = operators
        inner = kept - kept.group_by("step").last()
        inner.set(gap_ns=0)
        gone = updates - kept
    if walk_ns:
        graph.insert_before(kept.group_by("step").first(), "parameters in Python", duration_ns=walk_ns)
    if len(gone):
        gone.where(lambda tasks: graph.alive[tasks.ids]).remove()


def memory(held: Allocations, *, tensors_per_kernel: int = 64) -> None:
    """Let the update make what it makes on its way for all parameters at once."""
    steps = parts_of(held, held.where(phase="optimizer"), held["step"])
    temporary = held.where(phase="optimizer", kind="temporary")
    decays = bool((temporary & held.where(op=ADDED_DECAY)).any())
    kind = update_of(held.graph).kind
    known = AT_ONCE.get(kind or "")
    count = held.among(0, 1, 2) if known is None else known + (decays and kind != "adagrad")
    held.remove(temporary)
    gradient, rows, part = held.where(kind="gradient"), [], []
    for step, (rank, *_) in enumerate(steps.keys.tolist()):
        first = steps.first[step]
        there = gradient & (held["rank"] == rank) & (held["begin"] < first) & (held["end"] > first)
        rows.append(np.repeat(np.flatnonzero(there), count))
        part.append(np.full(len(rows[-1]), step))
    updated, of = (np.concatenate([*each, np.empty(0, np.int64)]) for each in (rows, part))
    ends = place_before(held, steps.until)
    held.add(updated, begin=steps.first[of], end=ends[of], kind="temporary", phase="optimizer")


def apply(model: Any = None, optimizer: Any = None, **options: Any) -> AbstractContextManager[None]:
    """Make the change for real: the optimizer's parameter groups ask for foreach operators."""
    return optimizer_settings(optimizer, foreach=True, fused=False)
