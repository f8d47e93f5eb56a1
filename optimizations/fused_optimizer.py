"""Fused optimizer of any common kind: one kernel a step updates all parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import say_evidence
from daydream.memory import Allocations
from daydream.model import (
    FUSED_UPDATE_KERNEL,
    FUSED_UPDATE_OP,
    UPDATE_RULES,
    fused_update_ns,
    need_setting,
    update_calls,
    update_of,
)
from daydream.transforms import optimizer_settings, stages

STAGE = stages.FUSION
EXCLUDES = frozenset({"fused-adam", "foreach-optimizer", "offload-optimizer"})
CODE = "torch.optim.AdamW(parameters, fused=True)  # or Adam, SGD, Adagrad"

Kind = Literal["auto", "sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "lamb"]
Model = Literal["bytes", "sum"]


def fused_optimizer(
    graph: Graph, *, kind: Kind = "auto", model: Model = "bytes", memory_speedup: float = 1.0
) -> None:
    """Predict an optimizer step that is one kernel.

    The update of a step becomes one launch that reads and writes each value once: 12 B for
    a float32 parameter of plain SGD, 20 B with momentum, Adagrad or RMSprop, 28 B of Adam and
    AdamW, 52 B of LAMB, at the bandwidth that the trace's own streaming work reaches. How many
    parameters there are the run tells, else shapes, gradients that are reduced, or the grids of the update's
    kernels. Where nothing does, and with `model` sum, it takes as long as the separate kernels together
    (Daydream, section 5.1). The CPU time between the optimizer's first
    and last operator goes, but for a launch and Python over the parameters (of Adam 21 us and 4 us a tensor;
    measured, see daydream/model/optimizers.py). On a CPU-only trace the operators become one.

    `kind` is that of the trace; another one predicts the change of optimizer as well.
    `memory_speedup` divides the update's time. Not modelled: another course of training.

    Memory: what the separate operators make on their way goes. A `kind` with other states than the trace's
    keeps these. Of Adam on a GPU each parameter brings a count of steps there (torch/optim/adam.py).

    Args:
        kind: Optimizer to fuse to; auto: the recorded one.
        model: Time by bytes, or the sum of the kernels.
        memory_speedup: Further speed-up of the update.
    """
    if memory_speedup <= 0:
        raise GraphError(f"memory_speedup must be above 0, not {memory_speedup:g}")
    on_gpu = len(graph.select(on="gpu")) > 0
    cpu = update_calls(graph)
    updates = graph.select(kind="kernel", phase="optimizer") if on_gpu else cpu
    updates.need("optimizer work: no `Optimizer.step` range holds any")
    if len(updates.where(op=FUSED_UPDATE_OP) | updates.where(name=FUSED_UPDATE_KERNEL)):
        graph.does_not_apply("the optimizer runs a fused kernel already")
    if kind == "auto":
        need_setting(graph, "fused")
    if (updates.group_by("step").sizes == 1).all():
        graph.does_not_apply("the optimizer runs one kernel per step: it is fused already")
    update = update_of(graph)
    chosen = update.kind if kind == "auto" else kind
    steps = updates.group_by("step")
    time, said = fused_update_ns(graph, steps, update, kind=chosen, by_bytes=model == "bytes")

    if on_gpu:
        say_evidence(graph, updates)
    behind = steps.last().gap_ns
    fused = steps.fuse("fused optimizer", duration_ns=time / memory_speedup)
    if on_gpu:
        keep = graph.select(on="gpu", phase="optimizer").launches()
        (cpu - keep).remove()
    else:
        fused.set(gap_ns=behind)
    walk = fused.launches() if on_gpu else fused
    if update.python_ns(chosen) and len(walk):
        graph.insert_before(walk, "parameters in Python", duration_ns=update.python_ns(chosen))
    graph.note(said)
    if chosen in UPDATE_RULES and chosen != update.kind:
        graph.note(f"The trace's own optimizer is {update.kind or 'unknown'}, the predicted one {chosen}.")


def memory(
    held: Allocations, *, kind: Kind = "auto", model: Model = "bytes", memory_speedup: float = 1.0
) -> None:
    """Take away what the update makes on its way, and let it keep the states of its kind."""
    held.remove(held.where(phase="optimizer", kind="temporary"))
    old = update_of(held.graph).kind
    new = old if kind == "auto" else kind
    if new in ("adam", "adamw"):
        held.add(np.flatnonzero(held.where(kind="parameter", on="gpu")), bytes=4, kind="optimizer_state")
    if new == old or new not in UPDATE_RULES:
        return
    states, more = held.where(kind="optimizer_state"), UPDATE_RULES[new].states
    if states.any() and old in UPDATE_RULES and UPDATE_RULES[old].states:
        held.scale(states, more / UPDATE_RULES[old].states)
    else:
        held.remove(states)
        parameters = np.flatnonzero(held.where(kind="parameter"))
        held.add(np.repeat(parameters, more), kind="optimizer_state")


def apply(model: Any = None, optimizer: Any = None, **options: Any) -> AbstractContextManager[None]:
    """Make the change for real: the optimizer's parameter groups ask for the fused kernel."""
    return optimizer_settings(optimizer, fused=True, foreach=False)
