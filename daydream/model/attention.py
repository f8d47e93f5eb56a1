"""Attention that runs as separate kernels: where it is in a graph, and what one fused kernel takes."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from daydream.costs.device.call_scaling import memory_bandwidth
from daydream.costs.kernels import floor_ns, is_matrix, work
from daydream.costs.operators import names_fit, operator
from daydream.costs.workload.formulas import Shape, attention, parse_shapes
from daydream.costs.workload.operator import itemsize
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.select import of_tasks
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.model.chains import matched

FUSED_ATTENTION_OP = (
    r"_scaled_dot_product_(flash|efficient|cudnn|fused)|_flash_attention|_efficient_attention"
)
FUSED_ATTENTION_KERNEL = (
    r"(?i)flash|fmha|mem_eff|attn_fwd|attn_bwd|attention_kernel|paged_attention|aotriton"
)
SOFTMAX = r"(?i)soft_?max"
# A loss, or a softmax that keeps its logarithm, is not within attention.
OTHER_SOFTMAX = r"(?i)log_?soft_?max|nll_loss|cross_entropy"
BACKWARD = r"(?i)backward"
EXPONENTIAL = r"exp_kernel|aten::exp\b"
LARGEST = r"MaxOps|aten::a?max\b"
BETWEEN = ("element-wise", "softmax", "copy", "reduction")
BETWEEN_KERNEL = (
    r"(?i)elementwise|soft_?max|dropout|reduce_kernel|masked|copy|triu_tril"  # or makes a mask
)
BETWEEN_COPY = (
    r"(?i)dtod|device\s*->\s*device"  # a contiguous tensor is copied before a mask is filled in
)

# Letters: a batched product, another product or work that does not fit, the gradient of a softmax, a softmax, the
# exponential and the maximum it is written with, and what else fits between products.
FORWARD = r"P(?=[fem]*(s|e[fem]*m|m[fem]*e))[fsem]+P"
GRADIENT = r"P[fsem]*P[fsem]*b[fsbem]*P[fsem]*P"


def attention_chains(graph: Graph) -> tuple[Groups, Groups]:
    """Return the kernels of each attention call, forward and backward: groups of chains on a stream.

    Forward is a batched product, at most element-wise work, copies and reductions around a
    softmax (or the exponential and the maximum it is written with), and another batched product;
    backward the gradient of a softmax between two products on either side. Where
    shapes are recorded they must fit together: scores L x S, made from L x d and d x S.

    Returns:
        chains of the forward and of the backward pass, a group of kernels each.
    """
    device = graph.select(on="gpu")

    def said(pattern: str) -> np.ndarray:
        search = regex(pattern).search
        return names_fit(device, search) | of_tasks(
            device, "op", lambda op: op and search(op), bool
        )

    def is_batched(op: str | None) -> bool:
        return op is None or operator(op).is_batched or operator(op).name == "matmul"

    kind = device.kind
    product = (kind == "kernel") & is_matrix(graph, device)
    fits = work(graph, device).is_of(*BETWEEN)
    fits |= (kind == "kernel") & names_fit(device, regex(BETWEEN_KERNEL).search)
    fits |= (kind == "memcpy") & names_fit(device, regex(BETWEEN_COPY).search)
    soft = said(SOFTMAX) & ~said(OTHER_SOFTMAX)
    letters = np.select(
        [
            product & of_tasks(device, "op", is_batched, bool),
            product | ~fits,
            soft & said(BACKWARD),
            soft,
            said(EXPONENTIAL),
            said(LARGEST),
        ],
        ["P", "-", "b", "s", "e", "m"],
        "f",
    )
    forward = matched(device, letters, FORWARD)
    backward = matched(device, letters, GRADIENT)
    products = device.where(lambda _: product)
    return _plausible(forward, products, backward=False), _plausible(
        backward, products, backward=True
    )


def fused_attention_ns(graph: Graph, chains: Groups, *, backward: bool) -> tuple[np.ndarray, int]:
    """Return the time of each chain as one kernel.

    FLOP at the rate of the trace's own products of that element type, or bytes of queries, keys,
    values, mask and output at its own bandwidth, whichever takes longer, on top of the fixed cost
    of a kernel. Without shapes: as long as the chain's products, and in the backward pass 5/4 of
    them, because the scores are computed again. Never longer than the chain.

    Args:
        graph: the graph of the trace.
        chains: those of one pass (`attention_chains`).
        backward: they are of the backward pass.

    Returns:
        ns, shape (chains,), float64; and for how many chains shapes tell it.
    """
    tasks = chains.by_group
    number = np.repeat(np.arange(len(chains)), chains.sizes)
    products = is_matrix(graph, tasks)
    floor = floor_ns(graph)
    rate = memory_bandwidth(graph)
    of_products = np.bincount(number, tasks.duration_ns * products, len(chains))
    time = np.maximum(of_products * (1.25 if backward else 1.0), floor)
    known = 0
    texts = tasks.shapes
    speeds: dict[str | None, float | None] = {}
    for chain in range(len(chains)):
        mine = np.flatnonzero((number == chain) & products)
        qkv = _of_shapes([texts[place] for place in mine.tolist()], backward=backward)
        dtype = tasks.dtype[mine[0]]
        if dtype not in speeds:
            speeds[dtype] = _rate_of_products(graph, dtype)
        speed = speeds[dtype]
        amount = attention(*qkv, backward=backward) if qkv else None
        if amount is None or amount.flop is None or speed is None or rate is None:
            continue
        known += 1
        masks = sum(map(_mask, texts[number == chain].tolist(), tasks.op[number == chain].tolist()))
        nbytes = (itemsize(dtype) or 0) * ((amount.elements or 0) + masks)
        time[chain] = floor + max(amount.flop / speed, nbytes / rate)
    return np.minimum(time, chains.total("duration_ns")), known


def _plausible(chains: Groups, products: Selection, *, backward: bool) -> Groups:
    """Return the chains whose products have the shapes of attention, or none that were recorded."""
    texts = [(chain & products).shapes.tolist() for chain in chains]
    fits = [None in each or _of_shapes(each, backward=backward) is not None for each in texts]
    return chains.where(np.array(fits, bool))


def _of_shapes(texts: list[str | None], *, backward: bool) -> tuple[Shape, Shape, Shape] | None:
    """Return the shapes of queries, keys and values from those of the products; None if they do not fit."""
    pairs = [_batched_pair(text) for text in texts]
    known = [pair for pair in pairs if pair is not None]
    if not backward:
        if not len(pairs) == len(known) == 2:
            return None
        (q, k), (scores, v) = known
        if (*q[:2], k[2]) != scores or v[1] != scores[2]:
            return None
        return _four(q), _four((k[0], k[2], k[1])), _four(v)
    return _of_gradients(known) if len(pairs) == len(known) == 4 else None


def _of_gradients(pairs: list[tuple[Shape, Shape]]) -> tuple[Shape, Shape, Shape] | None:
    """Return queries, keys and values from the gradients' products: those of V and scores, those of Q and K.

    dP = dO V', dV = P' dO, then dQ = dS K and dK = dS' Q (or its transpose Q' dS); either may come first.
    """
    for scores, values in (pairs[:2], pairs[1::-1]):
        (batch, length, wide), keys = scores[0], scores[1][2]
        if (values[0][1:], values[1][1:]) != ((keys, length), (length, wide)):
            continue
        for queries, others in (pairs[2:], pairs[:1:-1]):
            width = queries[1][2]
            turned = ((keys, length), (length, width)), ((width, length), (length, keys))
            if queries[0][1:] == (length, keys) and (others[0][1:], others[1][1:]) in turned:
                return (batch, 1, length, width), (batch, 1, keys, width), (batch, 1, keys, wide)
    return None


def _batched_pair(text: str | None) -> tuple[Shape, Shape] | None:
    found = [
        shape for shape in parse_shapes(text) or [] if isinstance(shape, tuple) and len(shape) == 3
    ]
    if len(found) < 2:
        return None
    left, right = found[-2:]
    return (left, right) if left[0] == right[0] and left[2] == right[1] else None


def _mask(text: str | None, op: str | None) -> int:
    """Return the elements of what a kernel of the chain adds to the scores, or masks them with."""
    found = [shape for shape in parse_shapes(text) or [] if isinstance(shape, tuple) and shape]
    if op == "aten::baddbmm" and len(found) == 3:
        return prod(found[0])
    masks = op is not None and re.search(r"aten::(add|masked_fill|where)_?$", op)
    return min(map(prod, found)) if masks and len(found) > 1 else 0


def _four(shape: Shape) -> Shape:
    return (shape[0], 1, shape[1], shape[2])


def _rate_of_products(graph: Graph, dtype: str | None) -> float | None:
    """Return FLOP/ns that the matrix products of an element type reach in this graph together."""
    kernels = graph.select(kind="kernel", dtype=dtype) if dtype else graph.select(kind="kernel")
    amounts = work(graph, kernels)
    mine = (amounts.family == "matmul") & (amounts.flop > 0)
    time = int(kernels.duration_ns[mine].sum())
    return float(amounts.flop[mine].sum()) / time if time else None
