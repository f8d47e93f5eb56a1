"""Attention that runs as separate kernels: where it is in a graph, and what one fused kernel takes."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from daydream.costs.device.call_scaling import memory_bandwidth
from daydream.costs.kernels import floor_ns, is_matrix, work
from daydream.costs.operators import operators_that
from daydream.costs.workload.formulas import attention
from daydream.costs.workload.operator import itemsize
from daydream.costs.workload.shapes import Shape, parse_shapes
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection

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
EXPONENTIAL, LARGEST = r"exp_kernel|aten::exp\b", r"MaxOps|aten::a?max\b"
BETWEEN = ("element-wise", "softmax", "copy", "reduction")
BETWEEN_KERNEL = (
    r"(?i)elementwise|soft_?max|dropout|reduce_kernel|masked|copy|triu_tril"  # or makes a mask
)
BETWEEN_COPY = (
    r"(?i)dtod|device\s*->\s*device"  # a contiguous tensor is copied before a mask is filled in
)


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
    matrix = device.where(kind="kernel").where(lambda tasks: is_matrix(graph, tasks))
    rest = device - matrix
    parts = rest.stretches(matrix, on_lane=True)
    empty = Groups(device, np.full(len(device), -1), [])
    if not len(parts) or not len(matrix):
        return empty, empty
    soft = rest.where(name=SOFTMAX) | rest.where(op=SOFTMAX)
    soft = soft - soft.where(name=OTHER_SOFTMAX) - soft.where(op=OTHER_SOFTMAX)
    back = soft.where(name=BACKWARD) | soft.where(op=BACKWARD)
    family = work(graph, rest).family.astype(str)
    known = graph.tasks(rest.ids[np.isin(family, BETWEEN)])
    fits = (
        known
        | rest.where(name=BETWEEN_KERNEL, kind="kernel")
        | rest.where(name=BETWEEN_COPY, kind="memcpy")
    )
    whole = _all(parts, fits)
    written_out = _any(parts, _either(rest, EXPONENTIAL)) & _any(parts, _either(rest, LARGEST))
    forward = whole & (_any(parts, soft - back) | written_out)
    backward = whole & _any(parts, back)
    return _with_products(graph, parts.where(forward), matrix, fits, 1), _with_products(
        graph, parts.where(backward), matrix, fits, 2
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
    floor, rate = floor_ns(graph), memory_bandwidth(graph)
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


def _either(tasks: Selection, pattern: str) -> Selection:
    return tasks.where(name=pattern) | tasks.where(op=pattern)


def _any(parts: Groups, tasks: Selection) -> np.ndarray:
    """Mask of the groups that hold any of some tasks."""
    number = np.repeat(np.arange(len(parts)), parts.sizes)
    return np.bincount(number, np.isin(parts.by_group.ids, tasks.ids), len(parts)) > 0


def _all(parts: Groups, tasks: Selection) -> np.ndarray:
    number = np.repeat(np.arange(len(parts)), parts.sizes)
    return np.bincount(number, np.isin(parts.by_group.ids, tasks.ids), len(parts)) == parts.sizes


def _with_products(
    graph: Graph, parts: Groups, matrix: Selection, fits: Selection, sides: int
) -> Groups:
    """Return the groups with `sides` products before and behind each, and what lies between those.

    A loop over chains: each takes its products from its own place on its lane.
    """
    lanes = graph.lane
    chains: list[np.ndarray] = []
    on_lane: dict[int, np.ndarray] = {}
    place = np.empty(graph.size, np.int64)
    product = np.zeros(graph.size, bool)
    product[matrix.ids] = True
    fitting = product.copy()
    fitting[fits.ids] = True
    batched = np.zeros(graph.size, bool)
    known = matrix.op != None  # noqa: E711 - an array, compared one by one
    batched[matrix.ids] = ~known
    batched[
        matrix.where(op=operators_that(lambda op: op.is_batched or op.name == "matmul")).ids
    ] = True
    for lane in np.unique(lanes[matrix.ids]).tolist():
        on_lane[lane] = graph.ids[lanes[graph.ids] == lane]
        place[on_lane[lane]] = np.arange(len(on_lane[lane]))
    step = graph.step
    for first, last in zip(parts.first().ids.tolist(), parts.last().ids.tolist(), strict=True):
        line = on_lane.get(int(lanes[first]))
        if line is None:
            continue
        where = np.flatnonzero(product[line])
        before = np.searchsorted(where, place[first]) - sides
        behind = np.searchsorted(where, place[last]) + sides - 1
        if before < 0 or behind >= len(where):
            continue
        chain = line[where[before] : where[behind] + 1]
        products = chain[product[chain]]
        if fitting[chain].all() and batched[products].all() and len(set(step[chain].tolist())) == 1:
            chains.append(chain)
    tasks = graph.tasks(np.concatenate([*chains, matrix.ids[:0]]))
    number = np.repeat(np.arange(len(chains)), [len(chain) for chain in chains])
    groups = Groups(tasks, number, list(range(len(chains))))
    return groups.where(
        np.array([_plausible(graph, chain, product, sides) for chain in chains], bool)
    )


def _plausible(graph: Graph, chain: np.ndarray, product: np.ndarray, sides: int) -> bool:
    """Say whether the shapes of a chain's products are those of attention, or not recorded."""
    texts = graph.column("shapes", chain[product[chain]])
    if any(text is None for text in texts.tolist()):
        return True
    return _of_shapes(texts.tolist(), backward=sides == 2) is not None


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
