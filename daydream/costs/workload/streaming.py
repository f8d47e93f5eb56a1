"""FLOP and elements of work by index and by window: embeddings, gathers, scatters, pooling.

FLOP and elements of work that streams through memory: element-wise, losses, copies, optimizers, ...

FLOP per element are counted from the defining formulas, any elementary function as
one: such kernels are bound by memory, so what counts is their traffic.
"""

from __future__ import annotations

from daydream.costs.workload.matrix import Formula, tensors
from daydream.costs.workload.shapes import Amount, Argument, Shape, broadcast, elements

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


LOOKUPS: dict[str, Formula] = {
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
WINDOWS = frozenset(name for name, formula in LOOKUPS.items() if formula in (_pooling, _max_pooling))


MASK_BYTES = 1

# Element-wise operators by how many tensors they read; a further shape is an output handed in.
READ_ONE = (
    "abs ceil clamp clamp_min clamp_max cos erf exp exp2 expm1 floor gelu hardswish hardsigmoid hardtanh "
    "leaky_relu elu log log1p log2 logical_not isfinite isnan isinf bitwise_not neg nan_to_num reciprocal "
    "relu relu6 round rsqrt sigmoid sign silu mish sin softplus sqrt square tan tanh threshold tril triu "
    "hardshrink log_sigmoid_forward logit frac trunc erfinv"
)
READ_TWO = (
    "add sub rsub mul div true_divide floor_divide remainder fmod pow maximum minimum "
    "atan2 "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor _prelu_kernel "
    "threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward hardtanh_backward "
    "leaky_relu_backward softplus_backward hardswish_backward hardsigmoid_backward "
    "mish_backward relu_backward logit_backward log_sigmoid_backward prelu mse_loss smooth_l1_loss "
    "huber_loss "
    "l1_loss binary_cross_entropy_with_logits binary_cross_entropy kl_div xlogy nextafter"
)
READ_THREE = (
    "addcmul addcdiv lerp mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "binary_cross_entropy_backward clamp_Tensor"
)
COMPARISONS = "eq ne lt le gt ge"
FLOP_OF = {"addcmul": 3, "addcdiv": 3, "lerp": 3, "mse_loss": 3, "mse_loss_backward": 3}
WRITE_ONLY = "fill zero uniform normal random bernoulli exponential geometric log_normal cauchy"
REDUCTIONS = (
    "sum mean max min amax amin aminmax argmax argmin all any prod norm linalg_vector_norm var std var_mean "
    "std_mean logsumexp count_nonzero nansum nanmean"
)
COPIES = "clone contiguous _to_copy to repeat_interleave flip roll permute_copy transpose_copy"


def _element_wise(reads: int, flop: int) -> Formula:
    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        found = tensors(arguments[:reads])
        out = broadcast(found)
        if not found or out is None:
            return None
        written = elements(out)
        return Amount("element-wise", flop * written, sum(map(elements, found)) + written)

    return formula


def _masked(arguments: list[Argument], mask: int) -> Amount | None:
    """Reads three arguments at most, one of them a mask."""
    found = tensors(arguments[:3])
    out = broadcast(found)
    if not found or out is None or len(arguments) <= mask:
        return None
    masks = elements(arguments[mask])
    read = sum(map(elements, found)) - masks
    return Amount("element-wise", elements(out), read + elements(out), masks * MASK_BYTES)


def _where(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    return _masked(arguments, 0)


def _masked_fill(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    return _masked(arguments[:2], 1)


def _comparison(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments[:2])
    out = broadcast(found)
    if not found or out is None:
        return None
    return Amount("element-wise", elements(out), sum(map(elements, found)), elements(out) * MASK_BYTES)


def _elu_backward(arguments: list[Argument], hint: Shape | None) -> Amount | None:
    return _element_wise(2, 1)(list(tensors(arguments)), hint)  # three numbers stand between the tensors


def _glu(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """One half times the sigmoid of the other."""
    found = tensors(arguments)
    if not found:
        return None
    half = elements(found[0]) // 2
    return Amount("element-wise", 2 * half, 3 * half)


def _glu_backward(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    size = elements(found[1])
    return Amount("element-wise", 3 * size, elements(found[0]) + 2 * size)


def _write(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    return Amount("element-wise", 0, elements(found[0])) if found else None


def _reduction(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """What is written is left out: the dimensions reduced over are not recorded."""
    found = tensors(arguments)
    return Amount("reduction", elements(found[0]), elements(found[0])) if found else None


def _scan(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    return Amount("reduction", elements(found[0]), 2 * elements(found[0])) if found else None


def _normalization(flop: int, large: int) -> Formula:
    """`large` tensors of the input's size are read or written, and the parameters once."""

    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        found = tensors(arguments)
        if not found:
            return None
        size = elements(found[0])
        small = sum(elements(shape) for shape in found[1:] if elements(shape) < size)
        return Amount("normalization", flop * size, large * size + small)

    return formula


def _softmax(flop: int, large: int) -> Formula:
    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        found = tensors(arguments)
        return Amount("softmax", flop * elements(found[0]), large * elements(found[0])) if found else None

    return formula


def _nll(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    rows = elements(found[1])
    return Amount("loss", 2 * rows, rows, rows * INDEX_BYTES)


def _nll_backward(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if len(found) < 2:
        return None
    scores, target = found[-2:] if len(found) == 2 else sorted(found, key=elements)[-1:-3:-1]
    return Amount("loss", elements(target), elements(scores), elements(target) * INDEX_BYTES)


def _copy(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Both sides at the call's element type: a cast's other type is not recorded."""
    found = tensors(arguments)
    if not found:
        return None
    read = elements(found[1]) if len(found) > 1 else elements(found[0])
    return Amount("copy", 0, read + elements(found[0]))


def _clone(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    return Amount("copy", 0, 2 * elements(found[0])) if found else None


def _concatenate(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    parts = [part for part in arguments if isinstance(part, list)]
    return Amount("copy", 0, 2 * elements(parts[0]), tensors=len(parts[0])) if parts else None


def _dropout(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    found = tensors(arguments)
    if not found:
        return None
    size = elements(found[0])
    return Amount("element-wise", 2 * size, 2 * size, size * MASK_BYTES)


def _lstm_cell(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Gates from two inputs of 4H, with the cell read; hidden, cell and activated gates written."""
    found = tensors(arguments)
    if len(found) < 3:
        return None
    gates, cell = elements(found[0]), elements(found[2])
    return Amount("element-wise", 2 * gates + 5 * cell, 3 * gates + 3 * cell)


def _gru_cell(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
    """Gates from two inputs of 3H, with the state read; the state and five values for later written."""
    found = tensors(arguments)
    if len(found) < 3:
        return None
    gates, state = elements(found[0]), elements(found[2])
    return Amount("element-wise", 2 * gates + 4 * state, 2 * gates + 7 * state)


def _list_update(flop: int, writes: int) -> Formula:
    """An operator on lists of tensors reads every list and writes `writes` of the first one's size."""

    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        parts = [part for part in arguments if isinstance(part, list)]
        if not parts:
            return None
        size = elements(parts[0])
        read = sum(elements(part) for part in parts)
        return Amount("optimizer", flop * size, read + writes * size, tensors=len(parts[0]))

    return formula


def _fused_optimizer(flop: int, lists: int) -> Formula:
    """The first `lists` lists (parameters, gradients, state) are read, all but the gradients written."""

    def formula(arguments: list[Argument], _hint: Shape | None) -> Amount | None:
        parts = [part for part in arguments if isinstance(part, list)]
        if len(parts) < 2:
            return None
        used = [part for part in parts[:lists] if elements(part)]
        size = elements(parts[0])
        moved = sum(elements(part) for part in used) + (len(used) - 1) * size
        return Amount("optimizer", flop * size, moved, tensors=len(parts[0]))

    return formula


FORMULAS: dict[str, Formula] = {
    **{name: _element_wise(1, FLOP_OF.get(name, 1)) for name in READ_ONE.split()},
    **{name: _element_wise(2, FLOP_OF.get(name, 1)) for name in READ_TWO.split()},
    **{name: _element_wise(3, FLOP_OF.get(name, 1)) for name in READ_THREE.split()},
    "where": _where,
    "masked_fill": _masked_fill,
    **dict.fromkeys(COMPARISONS.split(), _comparison),
    "elu_backward": _elu_backward,
    "glu": _glu,
    "glu_backward": _glu_backward,
    **dict.fromkeys(WRITE_ONLY.split(), _write),
    **dict.fromkeys(REDUCTIONS.split(), _reduction),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _scan),
    # Normalization: mean 1, variance 3, normalize 2, scale and shift 2; backward two sums of products
    # (4), the gradient of the input (6) and those of the parameters (4).
    **dict.fromkeys(
        ("native_layer_norm", "layer_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
         "native_group_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm",
         "_batch_norm_impl_index", "group_norm", "instance_norm"),
        _normalization(8, 2),
    ),
    **dict.fromkeys(("_fused_rms_norm", "rms_norm"), _normalization(5, 2)),
    **dict.fromkeys(
        ("native_layer_norm_backward", "native_batch_norm_backward", "cudnn_batch_norm_backward",
         "miopen_batch_norm_backward", "native_group_norm_backward", "batch_norm_backward",
         "_fused_rms_norm_backward"),
        _normalization(14, 3),
    ),
    # Softmax: maximum, difference, exponential, sum, quotient; backward product, sum, difference, product.
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"), _softmax(5, 2)),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax(4, 3)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss_nd"), _nll),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
    "copy": _copy,
    "_foreach_copy": _list_update(0, 0),
    **dict.fromkeys(COPIES.split(), _clone),
    **dict.fromkeys(("cat", "_cat", "concat", "stack"), _concatenate),
    **dict.fromkeys(("native_dropout", "_fused_dropout"), _dropout),
    "native_dropout_backward": _element_wise(2, 2),
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_gru_cell": _gru_cell,
    **{
        f"_foreach_{name}": _list_update(flop, 1)
        for name, flop in {
            "add": 1, "sub": 1, "mul": 1, "div": 1, "sqrt": 1, "rsqrt": 1, "neg": 1, "abs": 1, "exp": 1,
            "maximum": 1, "minimum": 1, "clamp_min": 1, "clamp_max": 1, "pow": 1, "reciprocal": 1, "sign": 1,
            "lerp": 3, "addcmul": 3, "addcdiv": 3,
        }.items()
    },
    "_foreach_zero": _list_update(0, 0),
    "_foreach_norm": _list_update(2, 0),
    "_amp_foreach_non_finite_check_and_unscale": _list_update(2, 1),
    # Adam: two moments (3 + 4), denominator (3), update (2); parameters, gradients and both moments, with
    # `amsgrad` the largest second moments, too.
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), _fused_optimizer(12, 5)),
    "_fused_sgd": _fused_optimizer(4, 3),
    "_fused_adagrad": _fused_optimizer(6, 3),
}  # fmt: skip
