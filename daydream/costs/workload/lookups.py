"""FLOP and elements of work by index and by window: embeddings, gathers, scatters, pooling."""

from __future__ import annotations

from daydream.costs.workload.amount import Amount
from daydream.costs.workload.matrix import Formula, tensors
from daydream.costs.workload.shapes import Argument, Shape, elements

INDEX_BYTES = 8  # torch indexes with int64


def _embedding(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2 or len(found[0]) < 1:
        return None
    rows = elements(found[1])
    width = elements(found[0]) // max(found[0][0], 1)
    return Amount("gather", 0, 2 * rows * width, rows * INDEX_BYTES)


def _embedding_backward(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Gradient read, its rows of the weight's gradient written; the weight's size is not recorded."""
    found = tensors(arguments)
    if len(found) < 2:
        return None
    size = elements(found[0])
    return Amount("gather", size, 2 * size, elements(found[1]) * INDEX_BYTES)


def _embedding_bag(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Rows are read and added up; a row a bag is written."""
    found = tensors(arguments)
    if len(found) < 3:
        return None
    rows, bags = elements(found[1]), elements(found[2])
    width = elements(found[0]) // max(found[0][0], 1)
    return Amount("gather", rows * width, (rows + bags) * width, (rows + bags) * INDEX_BYTES)


def _gather(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    return Amount("gather", 0, 2 * elements(found[1]), elements(found[1]) * INDEX_BYTES)


def _scatter(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    moved = elements(found[-1])
    return Amount("gather", moved, 3 * moved, moved * INDEX_BYTES)


def _pooling(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if not found:
        return None
    written = elements(hint) if hint is not None and len(hint) == len(found[0]) else 0
    return Amount("pooling", elements(found[0]), elements(found[0]) + written)


def _max_pooling(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    """Writes where each maximum was, too."""
    pooled = _pooling(arguments, hint)
    if pooled is None or pooled.elements is None:
        return None
    written = pooled.elements - elements(tensors(arguments)[0])
    return Amount("pooling", pooled.flop, pooled.elements, written * INDEX_BYTES)


def _pooling_backward(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    indices = elements(found[2]) * INDEX_BYTES if len(found) > 2 else 0
    return Amount("pooling", elements(found[1]), elements(found[0]) + elements(found[1]), indices)


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("embedding", "index_select"), _embedding),
    **dict.fromkeys(("embedding_dense_backward", "embedding_backward"), _embedding_backward),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag),
    "gather": _gather,
    **dict.fromkeys(("scatter_add", "scatter", "index_add", "index_put", "_index_put_impl"), _scatter),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        _max_pooling,
    ),
    **dict.fromkeys(
        ("max_pool2d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d",
         "_adaptive_avg_pool3d", "adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d"),
        _pooling,
    ),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
         "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
         "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
        _pooling_backward,
    ),
}  # fmt: skip
NEEDS_OUTPUT = frozenset(name for name, formula in FORMULAS.items() if formula in (_pooling, _max_pooling))
