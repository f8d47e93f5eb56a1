"""The shapes that calls have when one size of the input changes: batch size, sequence length.

In a tensor, the sizes equal to the old one change, and those that are its number of pairs (of a batch only
the first); without one, the first that holds it flattened with others, or rows that were picked from it (see
`flattened.py`). Of a product with a matrix only the rows can hold a batch or tokens; of a weight's gradient
they are what is summed over. Shapes of parameters, as the trace lists them or as the weights of its operators
show them, do not change.

Where a length is also a number of features, it is told apart by where it stands: features stand last, tokens
before them. Only what is between the two products of an attention holds tokens twice.
"""

from __future__ import annotations

import json
from math import prod

from daydream.costs.resize.flattened import SOFTMAX, flattened_sizes, routed_rows
from daydream.costs.resize.operands import (
    BATCHED,
    LINEAR,
    PRODUCTS,
    WEIGHT_ARGUMENTS,
    factors_of,
    forward_keys,
    is_feature,
    parameter_shapes,
)
from daydream.costs.workload.amount import Amount
from daydream.costs.workload.calls import Calls
from daydream.costs.workload.operator import bare_name, shapes_work
from daydream.costs.workload.shapes import Argument, Shape, elements, parse_shapes
from daydream.costs.workload.tiles import FIRST


def as_text(arguments: list[Argument]) -> str:
    """Return arguments as a trace writes them."""
    return json.dumps(arguments, separators=(",", ":"))


Resized = tuple[
    Amount | None, list[Argument], Shape | None
]  # no amount: the new shapes do not fit each other


class Resize:
    """A size that changes in every tensor of a trace's calls but the parameters."""

    def __init__(self, calls: Calls, old: int, new: int, *, every: bool) -> None:
        self.old, self.new, self.every = old, new, every
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
                if bare_name(name) not in LINEAR:
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
        self._twice = scores or not self.shared or name in BATCHED or _is_of_scores(name, arguments)
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

    def _heads_as_long(self, name: str, arguments: list[Argument]) -> list[Argument] | None:
        """Return the arguments of an attention's product where heads are as wide as the sequence is long.

        Of its six products, forward and backward, one operand or the result is the scores, so all have the
        work of the first.
        """
        if not (self.shared and name in BATCHED):
            return None
        at = FIRST[name]
        square = (self.old, self.old)
        factors = [part for part in arguments[at : at + 2] if isinstance(part, tuple) and part[-2:] == square]
        if len(factors) < 2 or len(factors[0]) != 3:
            return None
        changed: list[Argument] = [(factors[0][0], self.new, self.old), (factors[1][0], self.old, self.new)]
        return [*arguments[:at], *changed, *arguments[at + 2 :]]

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
    return name in SOFTMAX and isinstance(first, tuple) and len(first) == 4 and first[2] == first[3]
