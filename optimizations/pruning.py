"""Pruning: weights of linear layers with zeros, 2 of 4 or anywhere, and what the hardware makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from daydream.optimizations._weight_gradients import gradient_parts
from daydream.optimizations._weighted_products import (
    Products,
    elementwise_ns,
    insert_elementwise,
    linear_operators,
    weighted_products,
)

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import device_of, in_place, itemsize, retime, runs_in_tf32, work
from daydream.memory import unchanged
from daydream.model import operand_elements
from daydream.transforms import counted, stages

STAGE = stages.PRECISION
CODE = "torch.sparse.to_sparse_semi_structured(weight)"
memory = unchanged

TWO_OF_FOUR = "2:4"
# cuSPARSELt's documentation lists compute capability 8.0 and up; twice the rate of dense tensor cores at most
# ("Accelerating Sparse Deep Neural Networks", NVIDIA, arXiv 2104.08378).
HARDWARE_SPEEDUP = 2.0
# Two values of four, and a 2-bit place for each: bytes of a compressed weight, by bytes of an element.
COMPRESSED = {1: 0.5 + 0.125, 2: 0.5 + 0.0625, 4: 0.5 + 0.03125}
# Rows and columns of a weight are multiples of these: `_DTYPE_SHAPE_CONSTRAINTS` of torch.sparse (2.13).
MULTIPLES = {1: (32, 32), 2: (16, 16), 4: (8, 8)}
FITS = ("float16", "bfloat16", "int8", "float8_e4m3fn")


def pruning(
    graph: Graph,
    *,
    sparsity: str = TWO_OF_FOUR,
    layer: str | None = None,
    masks: bool = True,
    product_speedup: float = 1.5,
) -> None:
    """Predict linear layers whose weights are pruned: `sparsity` 2:4, or a fraction of zeros such as 0.9.

    Zeros anywhere make no dense kernel faster: libraries multiply by them. What a fraction changes is the
    mask: while training a kernel multiplies each weight by its mask before it is used (reads
    both, writes the masked weight). `masks` false leaves it out, as where zeros are stored once.

    Zeros in two of every four places let sparse tensor cores skip half of a product: NVIDIA GPUs of compute
    capability 8.0 and up, in 16 or 8 bits or TF32. There the forward product gains, and while
    training the one for the input's gradient, as torch prunes in tiles of 4 x 4 that serve both; the
    weight's gradient stays dense. A product becomes at most `product_speedup` times as fast, never
    more than 2, the hardware's limit, and never faster than its memory traffic, of which only the weight
    shrinks (to 9/16 in 16 bits). 1.5 is what torch's own layer leaves: 1.3 over forward and
    backward, a third of which stays dense (ViT-L on an A100, pytorch.org, "Accelerating Neural Network
    Training with Semi-Structured (2:4) Sparsity"). While training each weight is pruned and compressed anew,
    for both directions, one kernel that reads it and writes both. Weights whose sizes are no multiples of 8
    (32 bits), 16 or 32 (8 bits) stay dense. On a CPU and on other GPUs only masks change.

    `layer` takes those layers alone whose path matches, for example `blocks.*`.

    With a table of `daydream calibrate --tool` the masked layers take what was measured in place.

    Not modelled: sparse convolutions and attention, AMD's sparse matrix units, what zeros do to accuracy.
    """
    share = _share(sparsity)
    if not 1 <= product_speedup <= HARDWARE_SPEEDUP:
        raise GraphError(f"product_speedup must be 1 to 2, the hardware's limit, not {product_speedup:g}")
    products = weighted_products(graph, layer)
    trains = len(graph.select(phase="backward")) > 0
    measured = in_place(graph, products.work)
    if len(measured.tasks):
        measured.tasks.set(duration_ns=measured.duration_ns)
        graph.note(measured.words())
        return
    reason = f"{share:.0%} zeros anywhere make no dense kernel faster" if share else _why_not(graph, products)
    if reason is None:
        _on_sparse_units(graph, products, layer, product_speedup, trains=trains)
        return
    if not trains or not masks:
        graph.does_not_apply(f"{reason}, and zeros that are stored once need no mask")
    _mask(graph, products, reason)


def tool(*, sparsity: str = TWO_OF_FOUR, layer: str | None = None) -> Any:
    """Return what masks the weights of a running model; its kernels stay dense."""
    from daydream.instrument.tools import Pruning, chosen

    share = _share(sparsity)
    return Pruning(TWO_OF_FOUR if share is None else share, where=chosen("^aten::linear$", layer))


def _share(sparsity: str) -> float | None:
    """Return the fraction of zeros, None for 2:4. Raises `GraphError` for anything else."""
    if sparsity == TWO_OF_FOUR:
        return None
    try:
        share = float(sparsity)
    except ValueError:
        share = float("nan")
    if not 0 < share < 1:
        raise GraphError(f"sparsity must be 2:4 or a fraction between 0 and 1, not {sparsity!r}")
    return share


def _why_not(graph: Graph, products: Products) -> str | None:
    """Return why 2:4 zeros make nothing faster here; None if they do."""
    if not products.on_gpu:
        return "a CPU has no units for 2:4 zeros"
    device = device_of(graph)  # raises where it is not known: so is what 2:4 zeros give there
    if device.name.startswith(("MI", "Radeon")):
        return f"the sparse matrix units of a {device.name} are not modelled"
    if "tf32" not in device.tflops:  # NVIDIA's tensor cores have TF32 and 2:4 zeros since one generation
        return f"a {device.name} has no sparse tensor cores (compute capability 8.0 and up)"
    if not len(_sparse(graph, products.work)):
        return "these products do not run on tensor cores in 16 or 8 bits or TF32, or their sizes do not fit"
    return None


def _sparse(graph: Graph, tasks: Selection) -> Selection:
    """Return those products that sparse tensor cores can take, by element type and sizes of the weight."""
    if not len(tasks):
        return tasks
    narrow = np.isin(tasks.dtype.astype(str), FITS) | runs_in_tf32(graph, tasks)
    inputs, weights, _ = operand_elements(tasks)
    flop = work(graph, tasks).flop
    fits = [_fits(*each) for each in zip(inputs, weights, flop, tasks.dtype.tolist(), strict=True)]
    return tasks.of(tasks.ids[narrow & np.array(fits, bool)], "products of sparse tensor cores", ordered=True)


def _fits(inputs: int, weights: int, flop: int, dtype: str | None) -> bool:
    """Tell whether the sizes of a weight, (inner, outer), are multiples of what libraries ask for.

    Of a product n x k by k x m: 2 n k m FLOP, n k inputs, k m weights.
    """
    if inputs <= 0 or weights <= 0 or flop <= 0:
        return False
    outer = flop / 2 / inputs
    inner = weights / outer
    rows, columns = MULTIPLES.get(itemsize(dtype) or 4, MULTIPLES[4])
    return outer % rows == 0 and inner % columns == 0


def _on_sparse_units(
    graph: Graph, products: Products, layer: str | None, product_speedup: float, *, trains: bool
) -> None:
    forward = _sparse(graph, products.work)
    backward = graph.select(kind="kernel", phase="backward", layer=layer, op=linear_operators())
    if len(backward):
        of_inputs = gradient_parts(graph, backward).inputs
        backward = backward.of(backward.ids[of_inputs >= 1], "gradients of inputs", ordered=True)
    gaining = forward | _sparse(graph, backward)
    before = gaining.duration_ns
    right = operand_elements(gaining)[1]
    width = np.array([itemsize(dtype) or 4 for dtype in gaining.dtype.tolist()])
    moved = np.maximum(work(graph, gaining).nbytes, 1)
    saved = right * width * (1 - np.array([COMPRESSED.get(one, 1.0) for one in width.tolist()]))
    factor = np.clip(1 - saved / moved, 0.5, 1.0)
    new = retime(graph, gaining, flop_factor=1 / HARDWARE_SPEEDUP, bytes_factor=factor).duration_ns
    gaining.set(duration_ns=np.maximum(new, before / product_speedup))
    graph.note(
        f"{counted(len(gaining), 'product')} on sparse tensor cores: {before.sum() / 1e6:,.3f} ms become "
        f"{gaining.total('duration_ns') / 1e6:,.3f} ms; accuracy with half of the weights is not predicted."
    )
    if not trains:
        return
    first = products.first.of(
        np.intersect1d(products.first.ids, forward.ids), "sparse products", ordered=True
    )
    mine = np.isin(products.first.ids, first.ids)
    size, each = products.weights[mine], products.width[mine]
    kept = np.array([COMPRESSED.get(one, 1.0) for one in each.tolist()])
    time = elementwise_ns(graph, size * each * (1 + 2 * kept), on_gpu=True)
    assert time is not None  # noqa: S101 - of a GPU it is known or raises
    spent = insert_elementwise(graph, first, "prune and compress weight", time)
    graph.note(f"Pruning and compressing weights anew takes {spent / 1e6:,.3f} ms.")


def _mask(graph: Graph, products: Products, reason: str) -> None:
    """Insert the masks of training: before each product a kernel that reads weight and mask."""
    time = elementwise_ns(graph, 3 * products.weights * products.width, on_gpu=products.on_gpu)
    if time is None:
        raise NotApplicableError(
            "what a mask takes is not known: this trace has no element-wise work to go by"
        )
    spent = insert_elementwise(graph, products.first, "mask of weight", time)
    graph.note(f"No product gets faster: {reason}. Masks of weights take {spent / 1e6:,.3f} ms.")
