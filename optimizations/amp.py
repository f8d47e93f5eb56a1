"""Automatic mixed precision: run the forward and backward kernels in 16 bits."""

from __future__ import annotations

from daydream import Graph, GraphError
from daydream.costs.precision import gain_in_16_bits, refuse_narrow, set_measured, tasks_in_matrix_units
from daydream.transforms import stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"autocast"})  # the same change, by shapes and with its casts
CODE = 'torch.autocast("cuda", torch.bfloat16)'

ALREADY_TENSOR_CORES = r"tf32|s1688|s884|h884|s16816|h16816|bf16|half|fp16"


def amp(graph: Graph, *, math_speedup: float = 3.0, memory_speedup: float = 2.0) -> None:
    """Predict mixed-precision training from a single-precision trace.

    Products, convolutions and attention move to tensor cores and gain `math_speedup`, on a known GPU no more
    than the ratio of its peaks; all others, batch norms and layout changes of the same libraries too, move
    half the bytes and gain `memory_speedup` (Daydream, section 5.1). Only 32-bit kernels of the forward and
    backward pass change, and are float16 for what comes on top: copies, collectives, the optimizer with
    its 32-bit weights, and kernels that run in TF32 or 16 bits already stay as they are. A `--table` comes
    first. Not modelled: convergence, casts (see autocast), the scaler of float16 (`amp+grad-scaler`).
    """
    if min(math_speedup, memory_speedup) <= 0:
        raise GraphError(
            f"math_speedup and memory_speedup must be above 0, not {math_speedup:g} and {memory_speedup:g}"
        )
    if math_speedup == memory_speedup == 1:
        graph.does_not_apply("a math_speedup and a memory_speedup of 1 leave every kernel as it is")
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    passes.need("kernels in the forward or backward pass")
    refuse_narrow(graph, passes)
    kernels = passes.where(dtype="float32")
    kernels = kernels - kernels.where(name=ALREADY_TENSOR_CORES)
    kernels.need("32-bit kernels in the forward or backward pass; it may run in 16 bits or TF32 already")
    products = kernels.where(lambda tasks: tasks_in_matrix_units(graph, tasks))
    measured = set_measured(graph, kernels, dtype="float16", otherwise="paper")
    if len(products - measured):
        (products - measured).scale(1 / gain_in_16_bits(graph, math_speedup))
    if len(kernels - products - measured):
        (kernels - products - measured).scale(1 / memory_speedup)
    kernels.set(dtype="float16")
    untyped = len(passes) - int(passes.group_by("dtype").sizes.sum())
    if untyped:
        graph.note(f"Kernels of unknown element type, left as they are: {untyped:,}.")
