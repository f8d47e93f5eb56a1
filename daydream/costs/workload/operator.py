"""Work of an operator call: FLOP, bytes and family, from its name, input shapes and element type.

Unknown stays unknown: an operator with no formula, a call without shapes, a shape
that the formula needs and the profiler does not record. Strides, paddings, masks and
other arguments that are no tensors are not recorded; the output shape that a
convolution or a pooling needs is taken from the calls around it (`calls.py`) and
handed in as `hint`.
"""

from __future__ import annotations

from daydream.collect.derive.device_names import ITEM_BYTES
from daydream.costs.workload import experts, lookups, matrix, streaming
from daydream.costs.workload.amount import Amount
from daydream.costs.workload.matrix import Formula, tensors
from daydream.costs.workload.shapes import Argument, Shape, elements, parse_shapes
from daydream.lazy import regex

FORMULAS: dict[str, Formula] = {**matrix.FORMULAS, **streaming.FORMULAS, **lookups.FORMULAS}
NEEDS_OUTPUT = matrix.NEEDS_OUTPUT | lookups.NEEDS_OUTPUT
NEEDS_WEIGHT = matrix.NEEDS_WEIGHT
MATRIX_FAMILIES = ("matmul", "convolution", "attention", "recurrent")
COMPILED = regex(r"triton_(poi|red|per)_")  # Inductor's kernels: pointwise, reduction, persistent


def bare_name(op: str) -> str:
    """Return an operator's name without its namespace `aten`, overload and in-place underscore."""
    name = op.removeprefix("aten::")
    if "::" not in name:
        name = name.split(".")[0]
    return name.removesuffix("_")


def has_formula(op: str) -> bool:
    """Tell whether the work of an operator follows from shapes."""
    return bare_name(op) in FORMULAS or experts.formula_of(op) is not None


def operator_work(op: str, shapes: str | None, hint: Shape | None = None) -> Amount | None:
    """Return the work of a call with these recorded shapes (JSON text), None where it is unknown.

    `hint` is the output shape of a convolution or pooling (`NEEDS_OUTPUT`), or the
    weight's shape of an operator that records only its size (`NEEDS_WEIGHT`).
    """
    arguments = parse_shapes(shapes)
    return None if arguments is None else shapes_work(op, arguments, hint)


def shapes_work(op: str, arguments: list[Argument], hint: Shape | None = None) -> Amount | None:
    """Return the work of a call with these arguments, as `parse_shapes` gives them."""
    if COMPILED.match(op):
        return _compiled(arguments)
    formula = FORMULAS.get(bare_name(op)) or experts.formula_of(op)
    return None if formula is None else formula(arguments, hint)


def itemsize(dtype: str | None) -> int | None:
    """Return the bytes of an element, None for an unknown type."""
    return None if dtype is None else ITEM_BYTES.get(dtype)


def _compiled(arguments: list[Argument]) -> Amount | None:
    """A fused kernel reads or writes each buffer it is given; its arithmetic is not recorded."""
    found = tensors(arguments)
    return Amount("element-wise", None, sum(map(elements, found))) if found else None
