"""Automatic mixed precision: run the forward and backward kernels in 16 bits."""

from __future__ import annotations

from daydream import Graph
from daydream.transforms import stages

STAGE = stages.PRECISION

MATH_BOUND = r"(?i)gemm|conv|cudnn|cutlass|xmma|wgrad|dgrad|fprop|flash|fmha"
ALREADY_TENSOR_CORES = r"tf32|s1688|s884|h884|s16816|h16816|bf16|half|fp16"


def amp(graph: Graph, *, math_speedup: float = 3.0, memory_speedup: float = 2.0) -> None:
    """Predict mixed-precision training from a single-precision trace.

    Matrix and convolution kernels move to tensor cores and gain `math_speedup`; every
    other kernel moves half the bytes and gains `memory_speedup` (Daydream, section 5.1).
    Only 32-bit kernels of the forward and backward pass change: copies, collectives, the
    optimizer with its 32-bit master weights, and kernels that already run in TF32 or 16
    bits stay as they are. Not modelled: the casts, the gradient scaler, convergence.
    """
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    passes.need("kernels in the forward or backward pass")
    kernels = passes.where(dtype="float32")
    kernels = kernels - kernels.where(name=ALREADY_TENSOR_CORES)
    math_bound = kernels.where(name=MATH_BOUND)
    memory_bound = kernels - math_bound

    kernels.need("32-bit kernels in the forward or backward pass; it may run in 16 bits or TF32 already")
    if len(math_bound):
        math_bound.scale(1 / math_speedup)
    if len(memory_bound):
        memory_bound.scale(1 / memory_speedup)
    untyped = passes.where(lambda tasks: tasks.dtype == None)  # noqa: E711 - a column of texts and None
    if len(untyped):
        graph.note(f"Kernels of unknown element type, left as they are: {len(untyped):,}.")
