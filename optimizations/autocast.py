"""Autocast: 16-bit matrix products and the casts that come with them, by shapes and this GPU's peaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from daydream.optimizations._autocast_types import flow
from daydream.optimizations._weighted_products import insert_elementwise

from daydream import Graph
from daydream.costs import is_matrix, say_evidence
from daydream.memory import hold_16_bits
from daydream.model import (
    DOUBT_OF_CONVOLUTIONS,
    LAYOUT_CHANGE,
    border_kernel_ns,
    cast_ns,
    changes_layout,
    dispatch_ns,
    in_16_bits,
    operand_elements,
    streaming_ns,
    weight_casts,
    wide_kernels,
)
from daydream.transforms import stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"amp", "tf32"})
memory = hold_16_bits
CODE = 'torch.autocast("cuda", torch.bfloat16)'


def autocast(graph: Graph, *, dtype: Literal["float16", "bfloat16"] = "float16", casts: bool = True) -> None:
    """Predict `torch.autocast` in forward, loss and backward.

    Products and convolutions run in `dtype`: by FLOP and bytes, at the efficiency that each reaches
    today (docs/costs.md). Fused attention takes torch's 16-bit kernels. Softmax, norms, losses and the
    residual stream between norms stay in 32 bits, as autocast keeps them (ATen/autocast_mode.h); all
    other float32 kernels move half the bytes, at a lower rate. Casts are inserted, each of
    6 B an element, a launch and the CPU time of an element-wise operator of this trace: of every
    weight once a step and of its gradient back, of an activation wherever 32-bit work feeds a product
    and the other way round. Without `casts` (`--no-casts`) they are left out. 32-bit convolutions of
    NCHW tensors that move to tensor cores bring changes of layout.

    A kernel that no operator launches stays. Which tensor a kernel reads is not recorded: types follow
    from the order of kernels on a stream. So one activation that feeds three products is cast once, not
    three times. Not modelled: convergence; the scaler that float16 needs (`autocast+grad-scaler`).

    Memory: products, what follows them and what they save are half as large. Held as well is a 16-bit
    copy of each product's weight, from the forward pass (which caches it) to its backward pass; gradients
    of weights come in 16 bits and are cast. A loss computed under autocast too is in the range, not in
    the expected figure.
    """
    wide = wide_kernels(graph)
    matrix = wide.where(lambda tasks: is_matrix(graph, tasks))
    matrix.need("32-bit matrix products or convolutions of operators: autocast changes nothing without them")
    types = flow(graph, wide)
    narrow, border = graph.tasks(wide.ids[types.narrow]), types.to_16 | types.to_32
    in_half = in_16_bits(graph, narrow, dtype)
    cast = graph.tasks(wide.ids[border])
    beside = border_kernel_ns(wide, types.to_16, matrix)[border]
    weights, sizes = weight_casts(matrix)
    activations_ns = cast_ns(graph, operand_elements(cast)[0], beside, types.to_32[border])
    weights_ns = cast_ns(graph, sizes, np.zeros(len(weights)), weights.phase == "backward")
    dispatch = dispatch_ns(graph)
    say_evidence(graph, narrow)
    turned, moved = changes_layout(graph, matrix)
    turned_ns = streaming_ns(graph, moved) if len(turned) else np.zeros(0)

    narrow.set(duration_ns=in_half.times.duration_ns, dtype=dtype).doubt(in_half.doubt)
    graph.note(in_half.times.words())
    if len(turned):
        graph.insert_before(turned, LAYOUT_CHANGE, duration_ns=turned_ns).doubt(DOUBT_OF_CONVOLUTIONS)
        graph.note(
            f"Changes of layout inserted: {len(turned):,}, {turned_ns.sum() / 1e6:,.2f} ms in total. "
            "Tensor cores take channels last; see channels-last."
        )
    if not casts:
        return
    for tasks, time, what in ((cast, activations_ns, "activation"), (weights, weights_ns, "weight")):
        if len(tasks):
            insert_elementwise(graph, tasks, f"cast of {what}", time)
    total = (activations_ns.sum() + weights_ns.sum()) / 1e6
    graph.note(
        f"Casts inserted: {len(cast):,} of activations, {len(weights):,} of weights and their gradients, "
        f"{total:,.2f} ms in total."
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
