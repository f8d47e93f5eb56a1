"""Fused Adam: one kernel a step updates all parameters."""

from __future__ import annotations

from typing import Literal

from daydream.optimizations.fused_optimizer import apply, fused_optimizer
from daydream.optimizations.fused_optimizer import memory as memory_of_fused

from daydream import Graph
from daydream.memory import Allocations
from daydream.model import update_of
from daydream.transforms import stages

__all__ = ["apply", "fused_adam", "memory"]  # the real change is the same for all kinds

STAGE = stages.FUSION
EXCLUDES = frozenset({"fused-optimizer", "foreach-optimizer", "offload-optimizer"})
OPTIMIZERS = frozenset({"Adam", "AdamW"})
CODE = "torch.optim.AdamW(parameters, fused=True)"


def fused_adam(
    graph: Graph, *, model: Literal["bytes", "sum"] = "bytes", memory_speedup: float = 1.0
) -> None:
    """Predict FusedAdam: one launch a step instead of hundreds.

    `fused-optimizer` for the optimizer of the trace. Of Adam a fused step reads p, g, m, v and
    writes p, m, v: 28 B a float32 parameter, at the bandwidth of the trace's own streaming
    work; with `model` sum, and where nothing tells how many parameters there are, it takes as long as
    the kernels it replaces together (Daydream, section 5.1). torch 2's default, foreach, has
    few launches already, so its gain is traffic. `memory_speedup` divides the update's time. Memory: what the
    operators make on their way goes.

    Args:
        model: Time by bytes, or the sum of the kernels.
        memory_speedup: Further speed-up of the update.
    """
    kind = update_of(graph).kind
    fused_optimizer(graph, model=model, memory_speedup=memory_speedup)
    if kind not in ("adam", "adamw"):
        graph.note(f"The trace's optimizer is {kind or 'unknown'}, not Adam; its own update is fused.")


def memory(
    held: Allocations, *, model: Literal["bytes", "sum"] = "bytes", memory_speedup: float = 1.0
) -> None:
    """Take away what the update makes on its way."""
    memory_of_fused(held)
