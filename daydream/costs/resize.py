"""How much more work each task has when one size of the input changes: batch size, sequence length.

The work of every call is computed again with the new size in its shapes. In a tensor, the sizes
equal to the old one change, and those that are its number of pairs (of a batch only the first);
without one, the first that is a multiple of it: a flattened batch, or a batch times heads. Of a product
with a matrix only the rows can hold a batch or tokens; of a weight's gradient they are what is summed over.
Shapes of parameters, as the trace lists them or as the weights of its operators
show them, do not change. A size that means two things (a batch of 128 in a model 128 wide) cannot
be told apart for certain: record at a size that occurs nowhere else. Where the new shapes of a call
do not fit each other its work is unknown, and grows in proportion.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from daydream.costs.amount import Amount
from daydream.costs.calls import Calls, calls_of
from daydream.costs.forward_calls import forward_rows
from daydream.costs.shapes import Argument, Shape, elements, parse_shapes
from daydream.costs.tiles import result_size
from daydream.costs.work import MATRIX_FAMILIES, bare_name, shapes_work
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.trace import Trace

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
}  # fmt: skip
# Products with a matrix: where the left factor stands; the right one is the next argument.
PRODUCTS = {
    "mm": 0, "_int_mm": 0, "_scaled_mm": 0, "_sparse_mm": 0, "addmm": 1, "_addmm_activation": 1,
}  # fmt: skip
LINEAR = ("linear", "mkldnn_linear", "mkldnn::_linear_pointwise")


@dataclass(frozen=True)
class Growth:
    """By how much FLOP and bytes grow; `known`: by shapes that fit each other. An entry a row, or a task.

    `results` is by how much the result of a product grows, NaN of other work: the gradient of a weight
    sums over more samples into a result of the same size.
    """

    flop: np.ndarray
    nbytes: np.ndarray
    known: np.ndarray
    results: np.ndarray


def resized_work(
    graph: Graph, selection: Selection, old: int, new: int, *, every: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much the FLOP and the bytes of each task grow when a size goes from `old` to `new`.

    `every`: all sizes equal to the old one change (a sequence length, which scores hold
    twice); else the first of a tensor (a batch). Tasks of unknown work get 1. Give both to
    `retime` as factors, or the larger to `scaled_time`.

    Raises `NotApplicableError` if no recorded shape holds the old size.
    """
    growth = growth_of(graph, selection, old, new, every=every)
    return growth.flop, growth.nbytes


def growth_of(graph: Graph, selection: Selection, old: int, new: int, *, every: bool = False) -> Growth:
    """Return the growth of each task, and whether its shapes tell it; see `resized_work`."""
    count = len(selection)
    if graph.trace is None or not count:
        return Growth(np.ones(count), np.ones(count), np.zeros(count, bool), np.full(count, np.nan))
    by_row = _growth_by_row(graph.trace, old, new, every=every)
    rows = graph.columns["row"][selection.ids]
    return Growth(*(values[rows] for values in (by_row.flop, by_row.nbytes, by_row.known, by_row.results)))


_known: WeakKeyDictionary[Trace, dict[tuple[int, int, bool], Growth]] = WeakKeyDictionary()


def _growth_by_row(trace: Trace, old: int, new: int, *, every: bool) -> Growth:
    """Return the growth of every row of a trace, worked out once, and that of unknown work at the end."""
    asked = _known.setdefault(trace, {})
    if (old, new, every) in asked:
        return asked[old, new, every]
    calls = calls_of(trace)
    ratios = np.ones((2, len(calls.amounts) + 1))
    results = np.full(len(calls.amounts) + 1, np.nan)
    fits = np.ones(len(calls.amounts) + 1, bool)
    fits[-1] = False
    resized = _resized(calls, old, new, every=every)
    if not resized:
        raise NotApplicableError(
            f"no operator of this trace works on a tensor with a size of {old}.\n"
            "       Give the size that the trace was recorded with; shapes must have been recorded."
        )
    for place, (after, shapes, _) in resized.items():
        if after is None:
            ratios[:, place], fits[place] = new / old, False
            continue
        name, recorded, _ = calls.keys[place]
        was = prod(result_size(bare_name(name), parse_shapes(recorded) or []))
        if was:
            results[place] = prod(result_size(bare_name(name), shapes)) / was
        before = calls.amounts[place]
        if before.flop and after.flop:
            ratios[0, place] = after.flop / before.flop
        if before.elements and after.elements:
            ratios[1, place] = after.elements / before.elements
    rows = np.arange(len(trace))
    which = calls.which_of_tasks(rows)
    flop, nbytes = ratios[:, which]
    flop = _as_forward(calls, rows, which, ratios[0], flop)
    unknown = ((flop, 1.0), (nbytes, 1.0), (fits[which], False), (results[which], np.nan))
    growth = Growth(*(np.append(values, last) for values, last in unknown))
    asked[old, new, every] = growth
    return growth


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
        if after is None:
            continue
        before = calls.amounts[place].flop
        ratio = after.flop / before if before and after.flop else 1.0
        if np.allclose(growth[which == place], ratio):
            found[place] = (as_text(shapes), hint)
    return found


def as_text(arguments: list[Argument]) -> str:
    """Return arguments as a trace writes them."""
    return json.dumps(arguments, separators=(",", ":"))


Resized = tuple[
    Amount | None, list[Argument], Shape | None
]  # no amount: the new shapes do not fit each other


def _resized(calls: Calls, old: int, new: int, *, every: bool) -> dict[int, Resized]:
    """Return work, shapes and output at the new size, of each distinct work that has the old one."""
    resize = Resize(calls, old, new, every=every)
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


class Resize:
    """A size that changes in every tensor of a trace's calls but the parameters."""

    def __init__(self, calls: Calls, old: int, new: int, *, every: bool) -> None:
        self.old, self.new, self.every = old, new, every
        self.parameters = parameter_shapes(calls)
        self.rows: set[int] = set()  # of products in the forward pass: samples or tokens
        for name, shapes, _ in _forward_keys(calls):
            factors = _factors(bare_name(name), parse_shapes(shapes) or [])
            if factors is not None:
                self.rows.add(prod(factors[0][:-1]))
                if bare_name(name) not in LINEAR:
                    self.parameters |= {factors[1], factors[1][::-1]}
        self.sizes = {old: new}
        if old > 3:  # of fewer, pairs are as many as the tokens, or one
            for each in (1, -1):  # pairs of tokens, each with itself or not
                pairs = old * (old + each) // 2
                if (pairs,) not in self.parameters:
                    self.sizes[pairs] = new * (new + each) // 2

    def call(self, name: str, arguments: list[Argument], hint: Shape | None) -> Resized | None:
        """Return work, shapes and output of a call at the new size, None if the size does not occur in it.

        Of the readings of its shapes, the first that gives tensors that fit each other; no work
        where none does.
        """
        name = bare_name(name)
        readings = self._readings(name, arguments, hint)
        for changed, new_hint in readings:
            amount = shapes_work(name, changed, new_hint)
            if amount is not None:
                return amount, changed, new_hint
        return (None, *readings[0]) if readings else None

    def _readings(
        self, name: str, arguments: list[Argument], hint: Shape | None
    ) -> list[tuple[list[Argument], Shape | None]]:
        factors = _factors(name, arguments)
        if factors is not None:
            product = self._product(name, arguments, *factors)
            return [] if product == arguments else [(product, hint)]
        weights = WEIGHT_ARGUMENTS.get(name)
        if name == "index_select" and arguments[:1] and arguments[0] in self.parameters:
            weights = (0,)  # as within `embedding`: the indices are no parameter, whatever their number
        found = []
        for equal_first in (True, False):
            changed = [
                self._argument(
                    part, equal_first=equal_first, is_weight=None if weights is None else place in weights
                )
                for place, part in enumerate(arguments)
            ]
            new_hint = None if hint is None else self._tensor(hint, equal_first=equal_first)
            if changed != arguments or new_hint != hint:
                found.append((changed, new_hint))
        if found and hint is None:
            found.append((self._aligned(arguments), None))
        return found

    def _aligned(self, arguments: list[Argument]) -> list[Argument]:
        """Return the arguments where the largest one says which dimension is meant, as in a broadcast."""
        shapes = [part for part in arguments if isinstance(part, tuple)]
        largest = max(shapes, key=elements, default=())
        new = self._tensor(largest, equal_first=True)
        places = [at - len(new) for at in range(len(new)) if new[at] != largest[at]]

        def change(shape: Shape) -> Shape:
            meant = {at for at in places if -at <= len(shape) and shape[at] == largest[at]}
            return tuple(new[at] if at in meant else shape[at] for at in range(-len(shape), 0))

        return [change(part) if isinstance(part, tuple) else part for part in arguments]

    def _product(self, name: str, arguments: list[Argument], left: Shape, right: Shape) -> list[Argument]:
        """Return the arguments of a product with a matrix where its rows, or what it sums over, changed."""
        if name in LINEAR:
            rows = self._tensor((*left[:-1], 0), equal_first=True, is_weight=False)[:-1]
            return [(*rows, left[-1]), *arguments[1:]]
        at = PRODUCTS[name]
        (m, k), n = left, right[1]
        if self._sums_over_rows(left, right):
            summed = self._size(k)
            return [*arguments[:at], (m, summed), (summed, n), *arguments[at + 2 :]]
        if left in self.parameters and right not in self.parameters:
            return [*arguments[:at], left, (k, self._size(n)), *arguments[at + 2 :]]
        before, behind = (
            [(self._size(m), n) if part == (m, n) else part for part in others]  # what is added, an output
            for others in (arguments[:at], arguments[at + 2 :])
        )
        return [*before, (self._size(m), k), right, *behind]

    def _sums_over_rows(self, left: Shape, right: Shape) -> bool:
        """Tell whether a product is the gradient of a weight: it sums over samples or tokens."""
        (m, k), n = left, right[1]
        uses = left in self.parameters or right in self.parameters
        if uses != ((m, n) in self.parameters):
            return not uses
        if (m in self.rows) != (k in self.rows):
            return k in self.rows
        return m % self.old != 0

    def _size(self, size: int) -> int:
        return size // self.old * self.new if size % self.old == 0 else size

    def _argument(self, part: Argument, *, equal_first: bool, is_weight: bool | None) -> Argument:
        if isinstance(part, list):
            return [self._tensor(shape, equal_first=equal_first) for shape in part]
        return self._tensor(part, equal_first=equal_first, is_weight=is_weight)

    def _tensor(self, shape: Shape, *, equal_first: bool, is_weight: bool | None = None) -> Shape:
        """Return a tensor's new shape; where nobody says whether it is a weight, its shape does."""
        if not shape or (shape in self.parameters if is_weight is None else is_weight):
            return shape
        equal = [place for place, size in enumerate(shape) if size == self.old]
        if self.every and any(size in self.sizes for size in shape):
            return tuple(self.sizes.get(size, size) for size in shape)
        # Features stand last: a size there is the least likely to be the one meant.
        leading = max(len(shape) - 1, 1)
        multiples = [place for place, size in enumerate(shape) if size and size % self.old == 0]
        choices = [*(place for place in equal if place < leading and equal_first), *multiples]
        if not choices:
            return shape
        place = choices[0]
        return (*shape[:place], shape[place] // self.old * self.new, *shape[place + 1 :])


def _factors(name: str, arguments: list[Argument]) -> tuple[Shape, Shape] | None:
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


def _forward_keys(calls: Calls) -> list[tuple[str, str, Shape | None]]:
    """Return the distinct calls of the forward pass."""
    code = calls.trace.code("phase", "forward")
    mine = calls.which[(calls.trace["phase"] == code) & (calls.which >= 0)]
    return [calls.keys[place] for place in np.unique(mine).tolist()]
