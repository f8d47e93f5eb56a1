"""Which operands of recorded calls are parameters, and which are the factors of a product."""

from __future__ import annotations

import numpy as np

from daydream.costs.workload.calls import Calls
from daydream.costs.workload.operator import bare_name
from daydream.costs.workload.shapes import Argument, Shape, parse_shapes

WEIGHT_ARGUMENTS = {  # where operators take a parameter; of `addmm` the weight comes transposed
    "linear": (1, 2), "addmm": (0, 2), "embedding": (0,), "conv1d": (1, 2), "conv2d": (1, 2),
    "conv3d": (1, 2), "convolution": (1, 2), "layer_norm": (2, 3), "native_layer_norm": (2, 3),
    "batch_norm": (1, 2, 3, 4), "native_batch_norm": (1, 2, 3, 4), "cudnn_batch_norm": (1, 2, 3, 4),
    "miopen_batch_norm": (1, 2, 3, 4), "cudnn_convolution": (1,), "miopen_convolution": (1, 2),
    "group_norm": (2, 3), "mkldnn_rnn_layer": (1, 2, 3, 4), "conv_transpose2d": (1, 2),
    # Losses and softmax take no parameters, the weights of classes at most.
    "softmax": (), "_softmax": (), "_softmax_backward_data": (), "log_softmax": (), "_log_softmax": (),
    "_log_softmax_backward_data": (), "cross_entropy_loss": (2,), "nll_loss": (2,), "nll_loss_nd": (2,),
    "nll_loss_forward": (2,), "nll_loss_backward": (3,),
    "sum": (),  # of a gradient over samples or tokens, as large as a weight it may be
}  # fmt: skip
# Products with a matrix: where the left factor stands; the right one is the next argument.
PRODUCTS = {
    "mm": 0, "_int_mm": 0, "_scaled_mm": 0, "_sparse_mm": 0, "addmm": 1, "_addmm_activation": 1,
}  # fmt: skip
BATCHED = ("bmm", "baddbmm")
LINEAR = ("linear", "mkldnn_linear", "mkldnn::_linear_pointwise")


def parameter_shapes(calls: Calls) -> set[Shape]:
    """Return the shapes of parameters, and of matrices also transposed."""
    trace = calls.trace
    found: set[Shape] = set()
    for parameter in trace.metadata.get("parameters") or []:
        found.add(tuple(parameter.get("shape") or ()))
    for name, shapes, _ in calls.keys:
        recorded = parse_shapes(shapes) or []
        for place in WEIGHT_ARGUMENTS.get(bare_name(name), ()):
            if place < len(recorded) and isinstance(recorded[place], tuple):
                found.add(tuple(recorded[place]))  # type: ignore[arg-type]
    return found | {(shape[1], shape[0]) for shape in found if len(shape) == 2}


def is_feature(calls: Calls, size: int) -> bool:
    """Tell whether a size is also that of features or of a head.

    Features: a bias or a norm's weight has it. Heads: both sides of a batched product are squares of it.
    """
    square = (size, size)
    for name, shapes, _ in calls.keys:
        tensors = [part for part in (parse_shapes(shapes) or []) if isinstance(part, tuple)]
        bare = bare_name(name)
        if (
            bare in BATCHED
            and len(tensors) > 1
            and all(len(t) == 3 and t[-2:] == square for t in tensors[:2])
        ):
            return True
        if "attention" in bare and tensors and tensors[0][-2:] == square:
            return True
    return (size,) in parameter_shapes(calls)


def factors_of(name: str, arguments: list[Argument]) -> tuple[Shape, Shape] | None:
    """Return the factors of a product with a matrix, None for any other call."""
    at = 0 if name in LINEAR else PRODUCTS.get(name)
    if at is None or len(arguments) < at + 2:
        return None
    left, right = arguments[at : at + 2]
    if not (isinstance(left, tuple) and isinstance(right, tuple)):
        return None
    if name in LINEAR:
        return (left, right) if len(left) > 1 and right else None
    return (left, right) if len(left) == len(right) == 2 else None


def forward_keys(calls: Calls) -> list[tuple[str, str, Shape | None]]:
    """Return the distinct calls of the forward pass: operator, shapes and hint."""
    code = calls.trace.code("phase", "forward")
    mine = calls.which[(calls.trace["phase"] == code) & (calls.which >= 0)]
    return [calls.keys[place] for place in np.unique(mine).tolist()]
