"""Automatic mixed precision: run the forward and backward kernels in 16 bits."""

from __future__ import annotations

from daydream import Graph
from daydream.costs.precision import gain_in_16_bits, refuse_narrow, set_measured
from daydream.transforms import stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"autocast"})  # the same change, by shapes and with its casts

MATH_BOUND = r"(?i)gemm|conv|cudnn|cutlass|xmma|wgrad|dgrad|fprop|flash|fmha"
ALREADY_TENSOR_CORES = r"tf32|s1688|s884|h884|s16816|h16816|bf16|half|fp16"


def amp(graph: Graph, *, math_speedup: float = 3.0, memory_speedup: float = 2.0) -> None:
    """Predict mixed-precision training from a single-precision trace.

    Matrix and convolution kernels move to tensor cores and gain `math_speedup`, on a known GPU no more than
    the ratio of its peaks; all others move half the bytes and gain `memory_speedup` (Daydream, section 5.1).
    Only 32-bit kernels of the forward and backward pass change: copies, collectives, the optimizer with its
    32-bit weights, and kernels that run in TF32 or 16 bits already stay as they are. A `--table` comes
    first. Not modelled: convergence, casts (see autocast), the scaler of float16 (`amp+grad-scaler`).
    """
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    passes.need("kernels in the forward or backward pass")
    refuse_narrow(graph, passes)
    kernels = passes.where(dtype="float32")
    kernels = kernels - kernels.where(name=ALREADY_TENSOR_CORES)
    kernels.need("32-bit kernels in the forward or backward pass; it may run in 16 bits or TF32 already")
    kernels = kernels - set_measured(graph, kernels, dtype="float16", otherwise="paper")
    math_bound = kernels.where(name=MATH_BOUND)
    if len(math_bound):
        math_bound.scale(1 / gain_in_16_bits(graph, math_speedup))
    if len(kernels - math_bound):
        (kernels - math_bound).scale(1 / memory_speedup)
    untyped = len(passes) - int(passes.group_by("dtype").sizes.sum())
    if untyped:
        graph.note(f"Kernels of unknown element type, left as they are: {untyped:,}.")
