"""Autocast: 16-bit matrix products and the casts that come with them, by shapes and this GPU's peaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from daydream import Graph
from daydream.costs import retime
from daydream.costs.precision import (
    borders,
    cast_ns,
    dispatch_ns,
    in_32_bits,
    operands,
    refuse_narrow,
    tasks_in_matrix_units,
    time_beside,
    weight_casts,
)
from daydream.transforms import stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"amp", "tf32"})
CODE = 'torch.autocast("cuda", torch.bfloat16)'


def autocast(graph: Graph, *, dtype: Literal["float16", "bfloat16"] = "float16", casts: bool = True) -> None:
    """Predict `torch.autocast` in forward, loss and backward.

    Products and convolutions run in `dtype`: by FLOP and bytes, at the efficiency that each reaches
    today (docs/costs.md). Softmax, norms, losses and sums stay in 32 bits, as autocast keeps them
    (ATen/autocast_mode.h); all other float32 kernels move half the bytes. Casts are inserted, each of
    6 B an element, a launch and the CPU time of an element-wise operator of this trace: of every
    weight once a step and of its gradient back, of an activation wherever 32-bit work feeds a product
    and the other way round. Without `casts` (`--no-casts`) they are left out.

    Which tensor a kernel reads is not recorded: a kernel in between takes the type of the work before
    it on its stream. So a residual path that stays in 32 bits is predicted too fast, and one
    activation that feeds three products is cast once, not three times: of 197 casts in a public trace
    of float16 autocast (`a100_particle_transformer_forward_batch128`) the kernels between tell 167. Not
    modelled: convergence; the scaler that float16 needs (`autocast+grad-scaler`); Python of the context.
    """
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    passes.need("kernels in the forward or backward pass")
    refuse_narrow(graph, passes)
    wide = passes.where(dtype="float32").need("32-bit kernels in the forward or backward pass")
    matrix = wide.where(lambda tasks: tasks_in_matrix_units(graph, tasks))
    matrix.need("32-bit matrix products or convolutions: autocast changes nothing without them")
    narrow = wide - (in_32_bits(wide) - matrix)
    retimed = retime(graph, narrow, dtype=dtype)
    to_16, to_32 = borders(graph, wide)
    cast = graph.tasks(wide.ids[to_16 | to_32])
    beside = time_beside(wide, to_16, matrix)[to_16 | to_32]
    weights, sizes = weight_casts(matrix)
    activations_ns = cast_ns(graph, operands(cast)[0], beside)
    weights_ns = cast_ns(graph, sizes, np.zeros(len(weights)))
    dispatch = dispatch_ns(graph)

    narrow.set(duration_ns=np.minimum(retimed.duration_ns, narrow.duration_ns), dtype=dtype)
    graph.note(retimed.words())
    if not casts:
        return
    for tasks, time, what in ((cast, activations_ns, "activation"), (weights, weights_ns, "weight")):
        called = tasks.where(lambda them: them.launch >= 0)
        if dispatch and len(called):
            graph.insert_before(called, f"operator of cast of {what}", kind="cpu", duration_ns=dispatch)
        if len(tasks):
            graph.insert_before(tasks, f"cast of {what}", duration_ns=time)
    total = (activations_ns.sum() + weights_ns.sum()) / 1e6
    graph.note(
        f"Casts inserted: {len(cast):,} of activations, {len(weights):,} of weights and their gradients, "
        f"{total:,.2f} ms in all."
    )
    if dispatch:
        graph.note(f"Each cast takes {dispatch / 1e3:,.1f} us of CPU time besides its launch.")
    if not len(weights):
        graph.note("No casts of weights: which kernels multiply by weights is not recorded.")
    elif not (sizes > 0).any():
        graph.note("Sizes of weights are not recorded: their casts take what an empty kernel takes.")


@contextmanager
def apply(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: the model's forward call runs under autocast on its parameters' device."""
    import torch

    before = model.forward
    parameter = next(model.parameters())
    dtype = getattr(torch, options.get("dtype", "float16"))
    model.forward = torch.autocast(parameter.device.type, dtype=dtype)(before)
    try:
        yield
    finally:
        model.forward = before
