"""An operator call from what a trace holds of it: name, shapes of its inputs, element type.

Arguments that are no tensors are not recorded. Where the amount of work does not depend on them
(factors, thresholds, probabilities) they get some value; stride and padding of a convolution
follow from the shape of its output; softmax runs along the last dimension. Where the
work does depend on them (indices, dimensions to reduce, windows of a pooling), and for
operators that are not torch's own, nobody guesses: `RebuildError` says why.

All tensors are contiguous and hold values from 0.5 to 1.5; of operators that change
their input all are 1, as values would grow or vanish from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from daydream.costs.operators import bare_name, operator
from daydream.costs.workload.formulas import Argument, Shape, elements, parse_shapes
from daydream.costs.workload.operator import itemsize

Run: TypeAlias = Callable[[], object]

UNRECORDED = {  # by trait
    "indexed": "works on indices, whose values are not recorded",
    "by-strides": "copies between layouts or types that are not recorded",
    "by-values": "its work depends on numbers that are not recorded",
}
MASKS = ("mask", "condition")
TRAINING = ("train", "training")
SOME_FLOAT = 0.5  # for probabilities and factors; a dropout of 0 or 1 would be a special case


class RebuildError(Exception):
    """An operator call cannot be made from what was recorded of it; the message says why."""


@dataclass(frozen=True)
class OperatorCall:
    """What a trace, or a change of it, says of a call. `output` is the shape of its result where known.

    `dtype` is torch's name of a type, or `tf32`: 32-bit data, products in TF32.
    """

    op: str
    shapes: str
    dtype: str | None
    output: Shape | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are handed in."""
        width = 4 if self.dtype == "tf32" else itemsize(self.dtype) or 8
        return width * sum(map(elements, parse_shapes(self.shapes) or []))


def rebuild(call: OperatorCall, device: str, *, trains: bool = True) -> list[Run]:
    """Return ways to make a call, the likeliest first; the first that torch takes is right.

    `trains`: batch norms and dropouts work as in training, else as in inference.

    Raises `RebuildError` if something that decides the work was not recorded.
    """
    name = bare_name(call.op)
    arguments = parse_shapes(call.shapes)
    if not call.op.startswith("aten::") or not operator(name).formula:
        raise RebuildError("not an operator of torch itself")
    if arguments is None:
        raise RebuildError("its shapes are not recorded")
    for trait in operator(name).traits & UNRECORDED.keys():
        raise RebuildError(UNRECORDED[trait])
    if name.endswith(("batch_norm", "batch_norm_backward")) and name != "cudnn_batch_norm_backward":
        _check_channels(arguments)
    make = _Maker(call, device, trains=trains)
    if operator(name).formula == "convolution":
        return [_convolution(make, arguments, call.output)]
    if name == "convolution_backward":
        return [_convolution_backward(make, arguments)]
    if name == "cudnn_batch_norm_backward":
        return [_cudnn_batch_norm_backward(make, arguments)]
    return list(_by_schema(call.op.removeprefix("aten::").split(".")[0], arguments, make))


class _Maker:
    """Tensors of a call."""

    def __init__(self, call: OperatorCall, device: str, *, trains: bool) -> None:
        import torch

        name = "float32" if call.dtype == "tf32" else call.dtype
        dtype = getattr(torch, name or "", None)
        if not isinstance(dtype, torch.dtype):
            raise RebuildError(
                "its element type is not recorded" if name is None else f"unknown type {name}"
            )
        if name is not None and name.startswith("float8"):
            raise RebuildError("torch has no operator of this kind in float8")
        self.torch = torch
        self.dtype = dtype
        self.device = device
        self.trains = trains
        name = call.op.split(".")[0]
        self.in_place = name.endswith("_") or "_fused_" in name

    def tensor(self, shape: Shape, *, mask: bool = False, device: str | None = None) -> Any:
        """Return a tensor of the call's type, or of truth values."""
        torch = self.torch
        device = device or self.device
        if mask or self.in_place or not shape or not self.dtype.is_floating_point:
            return torch.ones(shape, dtype=torch.bool if mask else self.dtype, device=device)
        return (torch.rand(shape, device=device) + 0.5).to(self.dtype)


def _by_schema(name: str, arguments: list[Argument], make: _Maker) -> Iterator[Run]:
    """Yield a call for each overload of the operator that takes as many arguments, of these kinds."""
    packet = getattr(make.torch.ops.aten, name, None)
    if packet is None:
        raise RebuildError("this torch has no such operator")
    reason = "its other arguments are not recorded"
    found = False
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        schema = operator._schema  # noqa: SLF001 - torch has no public name for it
        if len(schema.arguments) != len(arguments) or any(one.is_out for one in schema.arguments):
            continue
        try:
            values = [
                _value(parameter, part, bare_name(name), make, arguments)
                for parameter, part in zip(schema.arguments, arguments, strict=True)
            ]
        except RebuildError as error:
            reason = str(error)
            continue
        found = True
        yield _bound(operator, schema, values)
    if not found:
        raise RebuildError(reason)


def _bound(operator: Any, schema: Any, values: list[Any]) -> Run:
    positional = [
        value for one, value in zip(schema.arguments, values, strict=True) if not one.kwarg_only
    ]
    named = {
        one.name: value
        for one, value in zip(schema.arguments, values, strict=True)
        if one.kwarg_only
    }
    return lambda: operator(*positional, **named)


def _value(
    parameter: Any, part: Argument, name: str, make: _Maker, arguments: list[Argument]
) -> Any:
    """Return what to hand in for a parameter of which this shape was recorded."""
    kind = str(parameter.type)
    if "Tensor" in kind:
        return _tensors(kind, part, make, mask=parameter.name in MASKS)
    if part:
        raise RebuildError("no overload takes tensors at these places")
    if parameter.name.startswith("dim") and operator(name).family != "softmax":
        raise RebuildError("the dimensions that it works along are not recorded")
    if parameter.name == "normalized_shape":
        return list(_weight_of_norm(arguments))
    plain: dict[str, Any] = {
        "number": 1,
        "float": SOME_FLOAT,
        "bool": make.trains and parameter.name in TRAINING,
        "List[bool]": [True, True, True],  # which gradients are asked for
    }
    known: dict[str, Any] = {"dim": -1, "input_dtype": make.dtype}
    if parameter.name in known:
        value = known[parameter.name]
    elif parameter.has_default_value():
        value = parameter.default_value
    elif kind in plain:
        value = plain[kind]
    elif kind.startswith("Optional"):
        value = None
    else:
        raise RebuildError(f"its argument {parameter.name} is not recorded")
    return value


def _tensors(kind: str, part: Argument, make: _Maker, *, mask: bool) -> Any:
    if "List" in kind:
        if part and not isinstance(part, list):
            raise RebuildError("no overload takes tensors at these places")
        return [make.tensor(shape) for shape in part if isinstance(shape, tuple)]
    if isinstance(part, list):
        raise RebuildError("no overload takes lists of tensors at these places")
    if not part and "Optional" in kind:
        return None
    if not part:
        return make.tensor((), device="cpu")  # as a number in an expression is
    return make.tensor(part, mask=mask)


def _weight_of_norm(arguments: list[Argument]) -> Shape:
    """Return the shape that a layer norm works over: that of its weight."""
    behind = arguments[arguments.index(()) + 1 :] if () in arguments else []
    inputs = next((part for part in arguments if isinstance(part, tuple) and part), ())
    for part in behind:
        if isinstance(part, tuple) and part and part == inputs[len(inputs) - len(part) :]:
            return part
    raise RebuildError("the dimensions that it normalizes over are not recorded")


def _check_channels(arguments: list[Argument]) -> None:
    """Raise `RebuildError` if a batch norm's vectors do not fit: torch would read beyond them."""
    shapes = [part for part in arguments if isinstance(part, tuple)]
    channels = shapes[0][1:2]
    if any(shape != channels for shape in shapes if len(shape) == 1):
        raise RebuildError("its shapes do not fit each other")


def _cudnn_batch_norm_backward(make: _Maker, arguments: list[Argument]) -> Run:
    """Return the call, with what the forward call hands to it; its buffer has no shape of its own."""
    images, gradient = (part for part in arguments[:2] if isinstance(part, tuple))
    if images != gradient or len(images) < 2:
        raise RebuildError("its shapes do not fit each other")
    aten = make.torch.ops.aten
    weight, bias, mean, variance = (
        make.tensor(images[1:2]).to(make.torch.float32) for _ in range(4)
    )
    inputs = make.tensor(images)
    given = make.tensor(gradient)
    epsilon = 1e-5
    _, kept_mean, kept_variance, buffer = aten.cudnn_batch_norm(
        inputs, weight, bias, mean, variance, True, 0.1, epsilon
    )
    return lambda: aten.cudnn_batch_norm_backward(
        inputs, given, weight, mean, variance, kept_mean, kept_variance, epsilon, buffer
    )


# convolutions -------------------------------------------------------------------------------------


def _convolution(make: _Maker, arguments: list[Argument], output: Shape | None) -> Run:
    images, weight, *rest = (part for part in arguments if isinstance(part, tuple))
    bias = next((part for part in rest[:1] if len(part) == 1 and part[0] == weight[:1][0]), None)
    options = _geometry(images, weight, output)
    tensors = [
        make.tensor(images),
        make.tensor(weight),
        None if bias is None else make.tensor(bias),
    ]
    return lambda: make.torch.ops.aten.convolution(*tensors, *options)


def _convolution_backward(make: _Maker, arguments: list[Argument]) -> Run:
    gradient, images, weight = (part for part in arguments[:3] if isinstance(part, tuple))
    options = _geometry(images, weight, gradient)
    tensors = [make.tensor(shape) for shape in (gradient, images, weight)]
    mask = [True, True, False]
    return lambda: make.torch.ops.aten.convolution_backward(*tensors, None, *options, mask)


def _geometry(images: Shape, weight: Shape, output: Shape | None) -> tuple[Any, ...]:
    """Return stride, padding, dilation, transposed, output padding and groups that give this output."""
    if output is None:
        raise RebuildError("its stride is not recorded, and neither is its output")
    if (
        not len(images) == len(weight) == len(output) >= 3
        or not prod(weight)
        or images[1] % weight[1]
    ):
        raise RebuildError("a convolution of this kind is not told by its shapes")
    if output[0] != images[0] or output[1] != weight[0]:
        raise RebuildError("its shapes are those of a transposed convolution")
    strides, paddings = zip(
        *(_stride(*sizes) for sizes in zip(images[2:], weight[2:], output[2:], strict=True)),
        strict=True,
    )
    plain = len(images) - 2
    return list(strides), list(paddings), [1] * plain, False, [0] * plain, images[1] // weight[1]


def _stride(size: int, width: int, out: int) -> tuple[int, int]:
    """Return the smallest stride, and the padding nearest to half the width, that give so many positions."""
    for stride in range(1, size + 1):
        for padding in sorted(range(width), key=lambda pad: (abs(pad - (width - 1) // 2), pad)):
            if size + 2 * padding >= width and (size + 2 * padding - width) // stride + 1 == out:
                return stride, padding
    raise RebuildError("no stride and padding give its output: it may be dilated")
