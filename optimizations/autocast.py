"""Mixed precision: 16-bit matrix products and the casts around them, by shapes and this GPU's peaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from daydream import Graph, GraphError
from daydream.costs import (
    PAPER_SPEEDUPS,
    by_counters,
    is_matrix,
    measured_first,
    runs_in_tf32,
    say_evidence,
    sped_up,
)
from daydream.model import (
    DOUBT_OF_CONVOLUTIONS,
    LAYOUT_CHANGE,
    border_kernel_ns,
    cast_ns,
    changes_layout,
    dispatch_ns,
    flow,
    in_16_bits,
    insert_elementwise,
    operand_elements,
    streaming_ns,
    weight_casts,
    wide_kernels,
)
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

STAGE = stages.PRECISION
COMMANDS = {
    "amp": {"EXCLUDES": {"autocast"}},  # the same change
}
CODE = 'torch.autocast("cuda", torch.bfloat16)'


def memory(held: Allocations, **options: Any) -> None:
    """Hold 16 bits in products and what follows them."""
    from daydream.memory import hold_16_bits  # asked only where memory was recorded

    hold_16_bits(held, **options)


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

    Args:
        dtype: Type to compute in.
        casts: Count the time of casts.
    """
    wide = wide_kernels(graph)
    matrix = wide.where(lambda tasks: is_matrix(graph, tasks))
    matrix.need("32-bit matrix products or convolutions of operators: autocast changes nothing without them")
    types = flow(graph, wide)
    narrow = wide[types.narrow]
    border = types.to_16 | types.to_32
    in_half = in_16_bits(graph, narrow, dtype)
    cast = wide[border]
    beside = border_kernel_ns(wide, types.to_16, matrix)[border]
    weights, sizes = weight_casts(matrix)
    activations_ns = cast_ns(graph, operand_elements(cast)[0], beside, types.to_32[border])
    weights_ns = cast_ns(graph, sizes, 0 * sizes, weights.phase == "backward")
    dispatch = dispatch_ns(graph)
    say_evidence(graph, narrow)
    turned, moved = changes_layout(graph, matrix)
    turned_ns = streaming_ns(graph, moved) if len(turned) else moved

    narrow.set(duration_ns=in_half.duration_ns, dtype=dtype).doubt(in_half.doubt)
    graph.note(in_half.words())
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


def amp(
    graph: Graph,
    *,
    math_speedup: float = 3.0,
    memory_speedup: float = 2.0,
    model: Literal["measured", "paper"] = "measured",
) -> None:
    """Predict mixed-precision training from a single-precision trace.

    Each kernel gains what its kind was measured to gain on a GPU with these peaks, and casts are inserted
    (see `autocast`). Only 32-bit kernels of the forward and backward pass change; the optimizer keeps its
    32-bit weights. With `model` paper, or other factors than the paper's, matrix kernels gain `math_speedup`
    and all others `memory_speedup` (Daydream, section 5.1). Not modelled: convergence, the scaler of float16.

    Args:
        math_speedup: Gain of matrix kernels (paper).
        memory_speedup: Gain of other kernels (paper).
        model: Measured or the paper's.
    """
    math = math_speedup
    memory = memory_speedup
    if min(math, memory) <= 0:
        raise GraphError(f"math_speedup and memory_speedup must be above 0, not {math:g} and {memory:g}")
    if model == "measured" and (math, memory) == PAPER_SPEEDUPS:
        autocast(graph)
        return
    if math == memory == 1:
        graph.does_not_apply("a math_speedup and a memory_speedup of 1 leave every kernel as it is")
    kernels = wide_kernels(graph).where(lambda tasks: ~runs_in_tf32(graph, tasks))
    kernels.need("32-bit kernels in the forward or backward pass; it may run in 16 bits or TF32 already")
    old = 1.0 * kernels.duration_ns
    by_name = memory + (math - memory) * is_matrix(graph, kernels)
    by_paper = sped_up(old, by_counters(graph, kernels, by_name, math, memory), "paper")
    kernels.set(duration_ns=measured_first(graph, kernels, by_paper, dtype="float16").duration_ns)
    kernels.set(dtype="float16")
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    if untyped := len(passes) - int(passes.group_by("dtype").sizes.sum()):
        graph.note(f"Kernels of unknown element type, left as they are: {untyped:,}.")


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
