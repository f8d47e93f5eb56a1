"""Work of an operator call: FLOP, bytes and family, from its name, input shapes and element type.

Unknown stays unknown: an operator with no formula, a call without shapes, a shape
that the formula needs and the profiler does not record. Strides, paddings, masks and
other arguments that are no tensors are not recorded; the output shape that a
convolution or a pooling needs is taken from the calls around it (`calls.py`) and
handed in as `hint`.

Shapes that a call needs and the profiler does not record, from the calls around it.

Stride and padding of a convolution or pooling are not recorded, but its output is: it
is the first input after the call, on its thread, that can be its output. An operator
that records only the size of a weight has the weight's shape in the call around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile

import numpy as np

from daydream.costs.operators import operator
from daydream.costs.workload import formulas
from daydream.costs.workload.formulas import Amount, Argument, Call, Shape, parse_shapes
from daydream.trace.schema import ITEM_BYTES, UNKNOWN
from daydream.trace.trace import Trace

NEEDS_OUTPUT = (
    "convolution",
    "conv_transpose",
    "pooling",
    "max_pooling",
)  # formulas: the hint is the output
NEEDS_WEIGHT = "gradient_of_weight"  # and the weight


def operator_work(op: str, shapes: str | None, hint: Shape | None = None) -> Amount | None:
    """Return the work of a call with these recorded shapes (JSON text), None where it is unknown.

    `hint` is the output shape of a convolution or pooling (`NEEDS_OUTPUT`), or the
    weight's shape of an operator that records only its size (`NEEDS_WEIGHT`).
    """
    arguments = parse_shapes(shapes)
    return None if arguments is None else shapes_work(op, arguments, hint)


def shapes_work(op: str, arguments: list[Argument], hint: Shape | None = None) -> Amount | None:
    """Return the work of a call with these arguments, as `parse_shapes` gives them."""
    row = operator(op)
    if not row.formula:
        return None
    formula: Callable[[Call], Amount | None] = getattr(formulas, row.formula, formulas.sized)
    try:
        return formula(Call(row, arguments, hint))
    except (IndexError, ValueError):  # a tensor or a dimension that it needs was not recorded
        return None


def itemsize(dtype: str | None) -> int | None:
    """Return the bytes of an element, None for an unknown type."""
    return None if dtype is None else ITEM_BYTES.get(dtype)


def by_thread(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return rows of a trace thread by thread, each in the order of time."""
    return rows[np.lexsort([trace[name][rows] for name in ("start_ns", "tid", "pid", "rank")])]


LOOK_AHEAD = 24  # rows after a call in which its output shows up as somebody's input


def hints_of(
    trace: Trace, operators: np.ndarray, rows: np.ndarray
) -> tuple[list[Shape], np.ndarray]:
    """Return output (or weight) shapes, and for each of `rows` which of them it needs, -1 for none.

    `operators` are all operator rows of the trace, `rows` those of interest.
    """
    needed = [operator(name).formula for name in trace.text("name")]
    needs_output = np.isin([*needed, ""], NEEDS_OUTPUT)[trace["name"][rows]]
    needs_weight = np.array([*needed, ""])[trace["name"][rows]] == NEEDS_WEIGHT
    hints: dict[Shape, int] = {}
    found = np.full(len(rows), UNKNOWN, np.int64)
    if not needs_output.any() and not needs_weight.any():
        return [], found
    search = _Search(trace, needed)
    order = by_thread(trace, operators)
    place = np.full(len(trace), UNKNOWN, np.int64)
    place[order] = np.arange(len(order))
    for index in np.flatnonzero(needs_output).tolist():  # a few hundred calls a step at most
        row = int(rows[index])
        shape = search.output(row, order[place[row] + 1 : place[row] + 1 + LOOK_AHEAD])
        if shape is not None:
            found[index] = hints.setdefault(shape, len(hints))
    for index in np.flatnonzero(needs_weight).tolist():
        parent = int(trace["parent"][rows[index]])
        around = search.tensors(parent) if parent >= 0 else []
        if len(around) >= 3:
            found[index] = hints.setdefault(around[2], len(hints))
    return list(hints), found


class _Search:
    """Shapes of a trace's calls, and what is around them."""

    def __init__(self, trace: Trace, formulas: list[str]) -> None:
        self.trace = trace
        self.formulas = formulas
        self.names = trace.text("name")
        self.parent = trace["parent"]

    def tensors(self, row: int) -> list[Shape]:
        """Return the shapes of a call's tensor inputs."""
        recorded = parse_shapes(self.trace.values("shapes", [row])[0])
        return [part for part in recorded or [] if isinstance(part, tuple) and part]

    def around(self, row: int) -> Iterator[int]:
        """Yield a row and those around it, the innermost first."""
        while row >= 0:
            yield row
            row = int(self.parent[row])

    def output(self, row: int, after: np.ndarray) -> Shape | None:
        """Return the first input among the calls after this one that can be its output."""
        inputs = self.tensors(row)
        if not inputs or len(inputs[0]) < 3:
            return None
        images = inputs[0]
        kernel = inputs[1] if len(inputs) > 1 and len(inputs[1]) == len(images) else None
        names = (self.names[self.trace["name"][outer]] for outer in self.around(row))
        convolutions = takewhile(lambda name: "conv" in name, names)
        transposed = any("transpose" in name for name in convolutions)  # it calls `convolution`
        for later in after.tolist():
            if self.trace["tid"][later] != self.trace["tid"][row]:
                return None
            inside = row in self.around(later)
            first = next(iter(self.tensors(later)), None)
            if first is None or (
                inside and self.formulas[self.trace["name"][later]] in NEEDS_OUTPUT
            ):
                continue  # the same call further in
            same = first == images and (kernel is None or inside)
            if same or (first == kernel and inside):
                continue
            if _can_be_output(first, images, kernel, transposed=transposed):
                return first
        return None


def _can_be_output(shape: Shape, images: Shape, kernel: Shape | None, *, transposed: bool) -> bool:
    """Say whether a convolution (or, without a kernel, a pooling) of `images` can have this output.

    Padding is taken to be no more than the kernel's size: out = size + 2 padding - kernel + 1.
    """
    if len(shape) != len(images) or shape[0] != images[0]:
        return False
    if kernel is None:
        return shape[1] == images[1]
    if transposed:
        return shape[1] % max(kernel[1], 1) == 0
    fits = zip(shape[2:], images[2:], kernel[2:], strict=True)
    return shape[1] == kernel[0] and all(out <= size + width + 1 for out, size, width in fits)
