"""Automatic mixed precision: run the forward and backward kernels in 16 bits."""

from __future__ import annotations

from typing import Literal

import numpy as np
from daydream.optimizations.autocast import apply, autocast

from daydream import Graph, GraphError
from daydream.costs import PAPER_SPEEDUPS, by_counters, is_matrix, measured_first, runs_in_tf32, sped_up
from daydream.memory import hold_16_bits
from daydream.model import wide_kernels
from daydream.transforms import stages

__all__ = ["amp", "apply", "memory"]

STAGE = stages.PRECISION
EXCLUDES = frozenset({"autocast"})  # the same change
memory = hold_16_bits
CODE = 'torch.autocast("cuda", torch.bfloat16)'


def amp(
    graph: Graph, *, math_speedup: float = 3.0, memory_speedup: float = 2.0,
    model: Literal["measured", "paper"] = "measured",
) -> None:  # fmt: skip
    """Predict mixed-precision training from a single-precision trace.

    It is the prediction of `autocast`: each kernel gains what its sort was measured to gain on a GPU with
    these peaks, and casts are inserted. By `model` paper products, convolutions and attention gain
    `math_speedup` and all others `memory_speedup` (Daydream, section 5.1); another factor than the paper's
    asks for that model. Only 32-bit kernels of the forward and backward pass change: copies, collectives and
    the optimizer with its 32-bit weights stay, by `paper` kernels in TF32, too. A `--table` goes before
    counters, these before names. Not modelled: convergence, the scaler of float16. Memory is that of
    `autocast`.
    """
    math, memory = math_speedup, memory_speedup
    if min(math, memory) <= 0:
        raise GraphError(f"math_speedup and memory_speedup must be above 0, not {math:g} and {memory:g}")
    if model == "measured" and (math, memory) == PAPER_SPEEDUPS:
        autocast(graph)
        return
    if math == memory == 1:
        graph.does_not_apply("a math_speedup and a memory_speedup of 1 leave every kernel as it is")
    kernels = wide_kernels(graph).where(lambda tasks: ~runs_in_tf32(graph, tasks))
    kernels.need("32-bit kernels in the forward or backward pass; it may run in 16 bits or TF32 already")
    old = kernels.duration_ns.astype(np.float64)
    by_name = np.where(is_matrix(graph, kernels), math, memory)
    by_paper = sped_up(old, by_counters(graph, kernels, by_name, math, memory), "paper")
    kernels.set(duration_ns=measured_first(graph, kernels, by_paper, dtype="float16").duration_ns)
    kernels.set(dtype="float16")
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    if untyped := len(passes) - int(passes.group_by("dtype").sizes.sum()):
        graph.note(f"Kernels of unknown element type, left as they are: {untyped:,}.")
