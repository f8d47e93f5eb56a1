"""Which operands of recorded calls are parameters, and which are the factors of a product.

Where a size of the input hides in tensors: flattened with others, in rows that were picked, in scores.

Output tiles of matrix products: how many blocks' worth of work a kernel has, whatever its grid says.

Persistent kernels (CUTLASS 3, cuBLAS from Hopper on) start a block for each unit, and each works through
many tiles. Libraries write the tile into the kernel's name: `tilesize128x128x64`, `_128x64_`, `MT128x128x32`.

The shapes that calls have when one size of the input changes: batch size, sequence length.

In a tensor, the sizes equal to the old one change, and those that are its number of pairs (of a batch only
the first); without one, the first that holds it flattened with others, or rows that were picked from it
(see `flattened_sizes`). Of a product with a matrix only the rows can hold a batch or tokens; of a weight's
gradient they are what is summed over. Shapes of parameters, as the trace lists them or as the weights of
its operators show them, do not change.

Where a length is also a number of features, it is told apart by where it stands: features stand last, tokens
before them. Only what is between the two products of an attention holds tokens twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ceil, prod

import numpy as np

from daydream.arrays import take
from daydream.costs.operators import bare_name, operator
from daydream.costs.workload.calls import Calls, calls_of
from daydream.costs.workload.formulas import (
    Amount,
    Argument,
    Shape,
    all_tensors,
    parse_shapes,
)
from daydream.costs.workload.operator import by_thread, shapes_work
from daydream.graph.graph import Graph
from daydream.lazy import regex


def parameter_shapes(calls: Calls) -> set[Shape]:
    """Return the shapes of parameters, and of matrices also transposed."""
    trace = calls.trace
    found: set[Shape] = set()
    for parameter in trace.metadata.get("parameters") or []:
        found.add(tuple(parameter.get("shape") or ()))
    for name, shapes, _ in calls.keys:
        recorded = parse_shapes(shapes) or []
        for place in operator(name).parameters:
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
        op = operator(name)
        if (
            op.is_batched
            and len(tensors) > 1
            and all(len(t) == 3 and t[-2:] == square for t in tensors[:2])
        ):
            return True
        if op.family == "attention" and tensors and tensors[0][-2:] == square:
            return True
    return (size,) in parameter_shapes(calls)


def factors_of(name: str, arguments: list[Argument]) -> tuple[Shape, Shape] | None:
    """Return the factors of a product with a matrix, None for any other call."""
    op = operator(name)
    if op.formula not in ("mm", "addmm", "linear") or len(arguments) < op.first + 2:
        return None
    left, right = arguments[op.first : op.first + 2]
    if not (isinstance(left, tuple) and isinstance(right, tuple)):
        return None
    if op.formula == "linear":
        return (left, right) if len(left) > 1 and right else None
    return (left, right) if len(left) == len(right) == 2 else None


def forward_keys(calls: Calls) -> list[tuple[str, str, Shape | None]]:
    """Return the distinct calls of the forward pass: operator, shapes and hint."""
    code = calls.trace.code("phase", "forward")
    mine = calls.which[(calls.trace["phase"] == code) & (calls.which >= 0)]
    return [calls.keys[place] for place in np.unique(mine).tolist()]


def flattened_sizes(calls: Calls, old: int, parameters: set[Shape]) -> set[int]:
    """Return the multiples of a size that hold it: rows of products, batches of them, leading dimensions.

    A feature size may be a multiple of it too, so not every multiple holds it.
    """
    found = {old}
    for name, shapes, _ in forward_keys(calls):
        arguments = parse_shapes(shapes) or []
        factors = factors_of(bare_name(name), arguments)
        if factors is not None:
            found.add(prod(factors[0][:-1]))
        for shape in all_tensors(arguments):
            if len(shape) > 2 and shape not in parameters:
                found.add(shape[0])
                leading = [prod(shape[:many]) for many in range(1, len(shape))]
                found.update(size for many, size in enumerate(leading, 1) if old in shape[:many])
    return {size for size in found if size and size % old == 0}


def routed_rows(calls: Calls, flattened: set[int]) -> set[int]:
    """Return how many rows were picked from those of a whole batch, as tokens are for an expert."""
    trace = calls.trace
    names = trace.text("name")
    rows = calls.rows[trace["shapes"][calls.rows] >= 0]
    pairs = (
        np.unique(np.stack([trace["name"][rows], trace["shapes"][rows]]), axis=1).T.tolist()
        if len(rows)
        else []
    )
    found: set[int] = set()
    for name, shapes in pairs:
        if bare_name(names[name]).lstrip("_").startswith("index"):
            source, *others = all_tensors(parse_shapes(trace.text("shapes")[shapes]) or []) or [()]
            if len(source) > 1 and source[0] in flattened:
                found.update(shape[0] for shape in others if len(shape) == 1)
    return found - flattened


def rows_of_scores(calls: Calls) -> np.ndarray:
    """Mask of the operator rows that work on attention scores.

    They lie between two batched products with a softmax in between. What is copied behind the softmax is the
    second product's other factor.
    """
    trace = calls.trace
    ops = [operator(name) for name in trace.text("name")]
    kinds = np.array(
        [
            1 if op.is_batched else 2 if op.is_softmax else 3 if op.name == "copy" else 0
            for op in ops
        ]
    )
    mask = np.zeros(len(trace), bool)
    rows = by_thread(trace, calls.rows)
    kind = kinds[trace["name"][rows]] if len(kinds) else np.zeros(len(rows), int)
    thread = trace["tid"][rows]
    products = np.flatnonzero(kind == 1)
    for first, last in zip(products[:-1].tolist(), products[1:].tolist(), strict=True):
        softmax = np.flatnonzero(kind[first:last] == 2)
        if len(softmax) and thread[first] == thread[last]:
            inside = np.arange(first + 1, last)
            mask[rows[inside[(kind[inside] != 3) | (inside < first + softmax[0])]]] = True
    return mask


TILE = regex(r"(?:tilesize|tile_|MT|_)(\d{2,3})x(\d{2,3})(?:x|_)")
LARGEST = (256, 128)  # of the tiles in use; without one in the name, so many there are at least


def output_tiles(graph: Graph, names: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Return the tiles of each product's result, 0 where the call's product or shapes are unknown."""
    return _of_products(graph, names, calls, _tiles)


def tile_elements(
    graph: Graph, names: np.ndarray, calls: np.ndarray, blocks: np.ndarray
) -> np.ndarray:
    """Return the elements of the result that a block works out at once, 0 where nothing tells.

    By the tile in the kernel's name, else a product's result shared among the recorded blocks. Of
    convolutions those of the forward pass only: the gradient of a weight has no more tiles for more samples.
    """

    def size(_: str, op: str, arguments: list[Argument]) -> int:
        return -1 if operator(op).formula == "convolution" else prod(result_size(op, arguments))

    results = _of_products(graph, names, calls, size)
    sizes = {name: named_tile(name or "") for name in set(names.tolist())}
    named = np.array([prod(sizes[name] or (0,)) for name in names.tolist()], np.int64)
    shared = -(-results // np.maximum(blocks, 1))
    return np.where((results != 0) & (named > 0), named, np.maximum(shared, 0))


def _of_products(
    graph: Graph,
    names: np.ndarray,
    calls: np.ndarray,
    count: Callable[[str, str, list[Argument]], int],
) -> np.ndarray:
    """Return a number for each task by its kernel, operator and arguments; distinct ones are asked once."""
    found = np.zeros(len(names), np.int64)
    trace = graph.recorded
    if not len(trace):
        return found
    known = calls_of(trace)
    which = take(known.which, calls)
    seen: dict[tuple[str | None, int], int] = {}
    for index in np.flatnonzero(which >= 0).tolist():
        key = (names[index], int(which[index]))
        if key not in seen:
            op, shapes, _ = known.keys[key[1]]
            seen[key] = count(key[0] or "", bare_name(op), parse_shapes(shapes) or [])
        found[index] = seen[key]
    return found


def _tiles(kernel: str, op: str, arguments: list[Argument]) -> int:
    batch, rows, columns = result_size(op, arguments)
    tall, wide = named_tile(kernel) or LARGEST
    upright = ceil(rows / tall) * ceil(columns / wide)
    turned = ceil(rows / wide) * ceil(columns / tall)
    return batch * min(upright, turned)


def named_tile(kernel: str) -> tuple[int, int] | None:
    """Return the sizes of the tile in a kernel's name."""
    named = TILE.search(kernel)
    return (int(named[1]), int(named[2])) if named else None


def result_size(op: str, arguments: list[Argument]) -> tuple[int, int, int]:
    """Return batch, rows and columns of a product's result (`op` without its library); zeros for others."""
    product = operator(op)
    factors = [
        part
        for part in arguments[product.first : product.first + 2]
        if isinstance(part, tuple) and len(part) > 1
    ]
    if product.formula not in ("linear", "mm", "bmm", "addmm", "baddbmm") or len(factors) < 2:
        return 0, 0, 0
    left, right = factors
    columns = right[-2] if product.formula == "linear" else right[-1]
    batch = left[0] if product.is_batched else 1
    return batch, prod(left[:-1]) // max(batch, 1), columns


def as_text(arguments: list[Argument]) -> str:
    """Return arguments as a trace writes them."""
    return json.dumps(arguments, separators=(",", ":"))


Resized = tuple[
    Amount | None, list[Argument], Shape | None
]  # no amount: the new shapes do not fit each other


class Resize:
    """A size that changes in every tensor of a trace's calls but the parameters."""

    def __init__(self, calls: Calls, old: int, new: int, *, every: bool) -> None:
        self.old = old
        self.new = new
        self.every = every
        self.parameters = parameter_shapes(calls)
        self.shared = every and is_feature(calls, old)  # features have the size, too
        self._twice = True
        self.flattened = flattened_sizes(calls, old, self.parameters)
        self.routed = routed_rows(calls, self.flattened)
        self.rows: set[int] = set()  # of products in the forward pass: samples or tokens
        for name, shapes, _ in forward_keys(calls):
            factors = factors_of(bare_name(name), parse_shapes(shapes) or [])
            if factors is not None:
                self.rows.add(prod(factors[0][:-1]))
                if operator(name).formula != "linear":
                    self.parameters |= {factors[1], factors[1][::-1]}
        self.sizes = {old: new}
        if old > 3:  # of fewer, pairs are as many as the tokens, or one
            for each in (1, -1):  # pairs of tokens, each with itself or not
                pairs = old * (old + each) // 2
                if (pairs,) not in self.parameters:
                    self.sizes[pairs] = new * (new + each) // 2

    def call(
        self, name: str, arguments: list[Argument], hint: Shape | None, *, scores: bool = False
    ) -> Resized | None:
        """Return work, shapes and output of a call at the new size, None if the size does not occur in it.

        Of the readings of its shapes, the first that gives tensors that fit each other; no work
        where none does. `scores`: the call works on those of an attention, which hold a length twice.
        """
        name = bare_name(name)
        self._twice = (
            scores or not self.shared or operator(name).is_batched or _is_of_scores(name, arguments)
        )
        readings = self._readings(name, arguments, hint)
        for changed, new_hint in readings:
            amount = shapes_work(name, changed, new_hint)
            if amount is not None:
                return amount, changed, new_hint
        return (None, *readings[0]) if readings else None

    def _readings(
        self, name: str, arguments: list[Argument], hint: Shape | None
    ) -> list[tuple[list[Argument], Shape | None]]:
        factors = factors_of(name, arguments)
        if factors is not None:
            product = self._product(name, arguments, *factors)
            return [] if product == arguments else [(product, hint)]
        heads = self._heads_as_long(name, arguments)
        if heads is not None:
            return [(heads, hint)]
        weights = operator(name).parameters if operator(name).roles else None
        if name == "index_select" and arguments[:1] and arguments[0] in self.parameters:
            weights = (
                0,
            )  # as within `embedding`: the indices are no parameter, whatever their number
        found = []
        for equal_first in (True, False):
            changed = [
                self._argument(
                    part,
                    equal_first=equal_first,
                    is_weight=None if weights is None else place in weights,
                )
                for place, part in enumerate(arguments)
            ]
            new_hint = None if hint is None else self._tensor(hint, equal_first=equal_first)
            if changed != arguments or new_hint != hint:
                found.append((changed, new_hint))
        return found

    def _heads_as_long(self, name: str, arguments: list[Argument]) -> list[Argument] | None:
        """Return the arguments of an attention's product where heads are as wide as the sequence is long.

        Of its six products, forward and backward, one operand or the result is the scores, so all have the
        work of the first.
        """
        if not (self.shared and operator(name).is_batched):
            return None
        at = operator(name).first
        square = (self.old, self.old)
        factors = [
            part
            for part in arguments[at : at + 2]
            if isinstance(part, tuple) and part[-2:] == square
        ]
        if len(factors) < 2 or len(factors[0]) != 3:
            return None
        changed: list[Argument] = [
            (factors[0][0], self.new, self.old),
            (factors[1][0], self.old, self.new),
        ]
        return [*arguments[:at], *changed, *arguments[at + 2 :]]

    def _product(
        self, name: str, arguments: list[Argument], left: Shape, right: Shape
    ) -> list[Argument]:
        """Return the arguments of a product with a matrix where its rows, or what it sums over, changed."""
        if operator(name).formula == "linear":
            rows = self._tensor((*left[:-1], 0), equal_first=True, is_weight=False)[:-1]
            return [(*rows, left[-1]), *arguments[1:]]
        at = operator(name).first
        (m, k), n = left, right[1]
        if self._sums_over_rows(left, right):
            summed = self._size(k)
            return [*arguments[:at], (m, summed), (summed, n), *arguments[at + 2 :]]
        if left in self.parameters and right not in self.parameters:
            return [*arguments[:at], left, (k, self._size(n)), *arguments[at + 2 :]]
        before, behind = (
            [
                (self._size(m), n) if part == (m, n) else part for part in others
            ]  # what is added, an output
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
        if size in self.routed:
            return max(round(size * self.new / self.old), 1)
        return size // self.old * self.new if size % self.old == 0 else size

    def _argument(self, part: Argument, *, equal_first: bool, is_weight: bool | None) -> Argument:
        if isinstance(part, list):
            return [self._tensor(shape, equal_first=equal_first) for shape in part]
        return self._tensor(part, equal_first=equal_first, is_weight=is_weight)

    def _tensor(self, shape: Shape, *, equal_first: bool, is_weight: bool | None = None) -> Shape:
        """Return a tensor's new shape; where nobody says whether it is a weight, its shape does."""
        if not shape or (shape in self.parameters if is_weight is None else is_weight):
            return shape
        if self.every and self._twice and any(size in self.sizes for size in shape):
            return tuple(self.sizes.get(size, size) for size in shape)
        leading = range(max(len(shape) - 1, 1))  # features stand last
        equal = [place for place in leading if shape[place] == self.old and equal_first]
        held = [place for place in leading if shape[place] in self.flattened]
        picked = [0] if shape[0] in self.routed else []
        last = [len(shape) - 1] if self.every and self.old == shape[-1] and len(shape) == 2 else []
        choices = [*equal, *held, *picked, *last]
        if not choices:
            return shape
        place = choices[0]
        return (*shape[:place], self._size(shape[place]), *shape[place + 1 :])


def _is_of_scores(name: str, arguments: list[Argument]) -> bool:
    """Tell whether a softmax is over squares in four dimensions, as only scores are."""
    first = arguments[0] if arguments else ()
    return (
        operator(name).is_softmax
        and isinstance(first, tuple)
        and len(first) == 4
        and first[2] == first[3]
    )
