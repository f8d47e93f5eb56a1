"""How much more work each task has when one size of the input changes: batch size, sequence length.

The work of every call is computed again with the new size in its shapes. In a tensor,
the sizes equal to the old one change (of a batch only the first); without one, the
first that is a multiple of it: a flattened batch, or a batch times heads. Shapes of
parameters, as the trace lists them or as the weights of its operators show them, do
not change. A size that means two things (a batch of 128 in a model 128 wide) cannot be
told apart for certain: record at a size that occurs nowhere else.
"""

from __future__ import annotations

import json

import numpy as np

from daydream.costs.amount import Amount
from daydream.costs.calls import Calls, calls_of
from daydream.costs.forward_calls import forward_rows
from daydream.costs.shapes import Argument, Shape, parse_shapes
from daydream.costs.work import MATRIX_FAMILIES, bare_name, shapes_work
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection

WEIGHT_ARGUMENTS = {  # where operators take a parameter; of `addmm` the weight comes transposed
    "linear": (1, 2), "addmm": (0, 2), "embedding": (0,), "conv1d": (1, 2), "conv2d": (1, 2),
    "conv3d": (1, 2), "convolution": (1, 2), "layer_norm": (2, 3), "native_layer_norm": (2, 3),
    "batch_norm": (1, 2, 3, 4), "native_batch_norm": (1, 2, 3, 4), "cudnn_batch_norm": (1, 2, 3, 4),
    "miopen_batch_norm": (1, 2, 3, 4),
    "group_norm": (2, 3), "mkldnn_rnn_layer": (1, 2, 3, 4), "conv_transpose2d": (1, 2),
}  # fmt: skip


def resized_work(
    graph: Graph, selection: Selection, old: int, new: int, *, every: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much the FLOP and the bytes of each task grow when a size goes from `old` to `new`.

    `every`: all sizes equal to the old one change (a sequence length, which scores hold
    twice); else the first of a tensor (a batch). Tasks of unknown work get 1. Give both to
    `retime` as factors, or the larger to `scaled_time`.

    Raises `NotApplicableError` if no recorded shape holds the old size.
    """
    flop, nbytes = np.ones(len(selection)), np.ones(len(selection))
    trace = graph.trace
    rows = graph.columns["row"][selection.ids]
    if trace is None or not len(selection):
        return flop, nbytes
    calls = calls_of(trace)
    ratios = np.ones((2, len(calls.amounts) + 1))
    resized = _resized(calls, old, new, every=every)
    for place, (after, _, _) in resized.items():
        before = calls.amounts[place]
        if before.flop and after.flop:
            ratios[0, place] = after.flop / before.flop
        if before.elements and after.elements:
            ratios[1, place] = after.elements / before.elements
    if not resized:
        raise NotApplicableError(
            f"no operator of this trace works on a tensor with a size of {old}.\n"
            "       Give the size that the trace was recorded with; shapes must have been recorded."
        )
    there = np.flatnonzero(rows >= 0)
    which = calls.which_of_tasks(rows[there])
    flop[there], nbytes[there] = ratios[:, which]
    flop[there] = _as_forward(calls, rows[there], which, ratios[0], flop[there])
    return flop, nbytes


def _as_forward(
    calls: Calls, rows: np.ndarray, which: np.ndarray, ratios: np.ndarray, own: np.ndarray
) -> np.ndarray:
    """Return the FLOP ratios with those of backward matrix work as in the forward pass.

    Both gradients of a product grow as the product does. Their own shapes may not tell: of two
    square matrices neither says which one is the weight.
    """
    families = np.array([amount.family for amount in calls.amounts] + [""])
    matrix = np.isin(families, MATRIX_FAMILIES)
    forward = forward_rows(calls.trace, rows)
    origin = np.where(forward >= 0, calls.which[forward], -1)
    return np.where(matrix[which] & (origin >= 0) & matrix[origin], ratios[origin], own)


def resized_shapes(
    graph: Graph, selection: Selection, flop: np.ndarray, old: int, new: int, *, every: bool = False
) -> dict[int, tuple[str, Shape | None]]:
    """Return the new shapes, and output where known, of each distinct work (`Calls.which`) that has the size.

    Left out are those whose work would not grow by what `resized_work` says of all tasks: of a
    size that means two things, shapes alone do not tell which is meant.
    """
    trace = graph.trace
    if trace is None:
        return {}
    calls = calls_of(trace)
    rows = graph.columns["row"][selection.ids]
    there = np.flatnonzero(rows >= 0)
    which, growth = calls.which_of_tasks(rows[there]), flop[there]
    found = {}
    for place, (after, shapes, hint) in _resized(calls, old, new, every=every).items():
        before = calls.amounts[place].flop
        ratio = after.flop / before if before and after.flop else 1.0
        if np.allclose(growth[which == place], ratio):
            found[place] = (json.dumps(shapes, separators=(",", ":")), hint)
    return found


def _resized(
    calls: Calls, old: int, new: int, *, every: bool
) -> dict[int, tuple[Amount, list[Argument], Shape | None]]:
    """Return work, shapes and output at the new size, of each distinct work that has the old one."""
    resize = _Resize(old, new, parameter_shapes(calls), every=every)
    found = {}
    for place, (name, shapes, hint) in enumerate(calls.keys):
        after = resize.call(name, parse_shapes(shapes) or [], hint)
        if after is not None:
            found[place] = after
    return found


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


class _Resize:
    """A size that changes in every tensor but the parameters."""

    def __init__(self, old: int, new: int, parameters: set[Shape], *, every: bool) -> None:
        self.old, self.new, self.parameters, self.every = old, new, parameters, every

    def call(
        self, name: str, arguments: list[Argument], hint: Shape | None
    ) -> tuple[Amount, list[Argument], Shape | None] | None:
        """Return work, shapes and output of a call at the new size, None if the size does not occur in it.

        Of two readings of its shapes, the first that gives tensors that fit each other.
        """
        weights = WEIGHT_ARGUMENTS.get(bare_name(name))
        for equal_first in (True, False):
            changed = [
                self._argument(
                    part, equal_first=equal_first, is_weight=None if weights is None else place in weights
                )
                for place, part in enumerate(arguments)
            ]
            new_hint = None if hint is None else self._tensor(hint, equal_first=equal_first)
            if changed != arguments or new_hint != hint:
                amount = shapes_work(name, changed, new_hint)
                if amount is not None:
                    return amount, changed, new_hint
        return None

    def _argument(self, part: Argument, *, equal_first: bool, is_weight: bool | None) -> Argument:
        if isinstance(part, list):
            return [self._tensor(shape, equal_first=equal_first) for shape in part]
        return self._tensor(part, equal_first=equal_first, is_weight=is_weight)

    def _tensor(self, shape: Shape, *, equal_first: bool, is_weight: bool | None = None) -> Shape:
        """Return a tensor's new shape; where nobody says whether it is a weight, its shape does."""
        if not shape or (shape in self.parameters if is_weight is None else is_weight):
            return shape
        equal = [place for place, size in enumerate(shape) if size == self.old]
        if self.every and equal:
            return tuple(self.new if size == self.old else size for size in shape)
        # Features stand last: a size there is the least likely to be the one meant.
        leading = max(len(shape) - 1, 1)
        multiples = [place for place, size in enumerate(shape) if size and size % self.old == 0]
        choices = [*(place for place in equal if place < leading and equal_first), *multiples]
        if not choices:
            return shape
        place = choices[0]
        return (*shape[:place], shape[place] // self.old * self.new, *shape[place + 1 :])
