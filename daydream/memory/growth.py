"""How large allocations are when one size of the input changes: batch size, sequence length.

The operator that asked for memory says by its recorded shapes what that memory is: the result of a product,
something as large as one of its tensors, or as one over some of their dimensions. With the new size in these
shapes it has a new size too. So what is computed of parameters alone stays, and so do their gradients.

Memory of calls that become one: what one of them hands to the next is never stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from daydream.arrays import combinations, first_of, take
from daydream.costs.operators import Operator, bare_name, operator
from daydream.costs.resize.new_shapes import Resize, result_size, rows_of_scores
from daydream.costs.workload.calls import Calls, calls_of
from daydream.costs.workload.formulas import (
    Argument,
    Shape,
    all_tensors,
    elements,
    parse_shapes,
)
from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.calls import call_rows
from daydream.graph.groups import Groups
from daydream.lazy import regex
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    GRANULE,
    Allocations,
    is_kind,
    rounded,
)
from daydream.memory.enclosing import has_tensors, rows_that
from daydream.memory.liveness import in_phase, nearest
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

STAYS = ("parameter", "gradient", "optimizer_state", "bucket", "shard")  # whatever the input is
PASSES = ("data", "forward", "loss", "backward")
ITEM_BYTES = (4, 2, 8, 1)  # of an element; that of the operator's own type comes first
Reading = tuple[list[list[tuple[int, int]]], float]
"""What a call's memory may be: elements before and after, the surest first; and how its tensors grow."""

NUMBERS = 8  # bytes: what is no larger holds a single number, not samples


def resize_input(held: Allocations, old: int | None, factor: float, *, every: bool = False) -> None:
    """Give allocations the sizes that they have when a size of the input is `factor` times as large.

    Args:
        held: the allocations.
        old: the size as recorded: a batch, a length; None where no shape shows it.
        factor: how many times as large it becomes.
        every: all sizes equal to the old one change (a sequence length, which scores hold twice); else the
            first of a tensor (a batch).
    """
    before = (
        (held["begin"] == BEFORE)
        & (held["end"] < AFTER)
        & held.where(kind=("input", "activation", "temporary"))
    )
    changes = np.flatnonzero(~held.where(kind=STAYS) & (held.where(phase=PASSES) | before))
    if not len(changes):
        return
    recorded = held["recorded_bytes"][changes].astype(np.float64)
    on_gpu = held["device"][changes] >= 0
    # What no shape tells grows with the input if it holds more than numbers; what is no input may stay as it is.
    grown = np.where(recorded > np.where(on_gpu, GRANULE, NUMBERS), recorded * factor, recorded)
    may = np.where(is_kind(held, "input")[changes], grown, recorded)
    sizes = np.stack([np.minimum(may, grown), grown, np.maximum(may, grown)])
    if old is not None:
        by_shapes = _by_shapes(held, changes, old, round(old * factor), every=every)
        sizes = np.where(np.isnan(by_shapes), sizes, by_shapes)
    now = held["bytes"][changes] / np.maximum(recorded, 1)  # an earlier change of the same memory
    which = np.zeros(len(held), bool)
    which[changes] = True
    held.resize(which, np.rint(held.among(*sizes) * now))


def _by_shapes(
    held: Allocations, rows: np.ndarray, old: int, new: int, *, every: bool
) -> np.ndarray:
    """Return the least, expected and largest sizes before rounding, NaN where shapes do not tell: (3, rows)."""
    trace = held.trace
    known = _known.setdefault(trace, {})
    if (old, new, every) not in known:
        calls = calls_of(trace)
        known[old, new, every] = _Sizes(calls, Resize(calls, old, new, every=every))
    sizes = known[old, new, every]
    asked = asking_operators(held, rows)
    scores = rows_of_scores(sizes.calls) if sizes.resize.shared else np.zeros(len(trace), bool)
    keys = [take(trace[name], asked) for name in ("name", "shapes", "dtype")]
    keys += [take(sizes.calls.which, asked), take(scores, asked, False)]
    keys += [held["recorded_bytes"][rows], held["device"][rows] >= 0]
    of_key, distinct = combinations(keys)
    found = np.array([sizes.of(*key) for key in distinct], np.float64)
    return found[of_key].T


def asking_operators(held: Allocations, rows: np.ndarray) -> np.ndarray:
    """Return the innermost operator with tensors among its arguments around each allocation, -1 for none."""
    return nearest(held, rows_that(held.trace, has_tensors, "shapes"))[rows]


_known: WeakKeyDictionary[Trace, dict[tuple[int, int, bool], _Sizes]] = WeakKeyDictionary()


class _Sizes:
    """New sizes of memory by the call that asked for it, each kind of call read once."""

    def __init__(self, calls: Calls, resize: Resize) -> None:
        self.calls = calls
        self.resize = resize
        self.factor = resize.new / resize.old
        self.names, self.shapes = calls.trace.text("name"), calls.trace.text("shapes")
        self.dtypes = calls.trace.text("dtype")
        self._read: dict[tuple[int, int, int, int], Reading] = {}

    def of(
        self, name: int, shapes: int, dtype: int, work: int, scores: int, nbytes: int, on_gpu: int
    ) -> tuple[float, float, float]:
        """Return the least, expected and largest new size in bytes, NaN where shapes do not tell."""
        if shapes < 0:
            return (np.nan,) * 3
        if nbytes <= NUMBERS:
            return (float(nbytes),) * 3
        key = (name, shapes, work, scores)
        if key not in self._read:
            self._read[key] = self._reading(*key)
        sorts, growth = self._read[key]
        known = itemsize(self.dtypes[dtype]) if dtype >= 0 else None
        widths = dict.fromkeys([known or ITEM_BYTES[0], *ITEM_BYTES])
        for width, sizes in product(widths, sorts):
            fits = [new * width for old, new in sizes if _fits(old * width, nbytes, on_gpu)]
            if fits:
                return self._range(nbytes, fits[0], fits)
        grown = nbytes * growth  # as its inputs, or as some of them
        return self._range(nbytes, grown, [nbytes, grown])

    def _range(
        self, nbytes: int, expected: float, sizes: list[float]
    ) -> tuple[float, float, float]:
        """Return the least, expected and largest of these sizes.

        Where features have the size that changes too, a tensor that seems to hold it twice may hold it once.
        """
        once = nbytes * self.factor
        if (
            self.resize.shared
            and expected > 0
            and abs(np.log(expected / nbytes)) > 1.5 * abs(np.log(self.factor))
        ):
            sizes = [*sizes, once]
        return min(sizes), expected, max(sizes)

    def _reading(self, name: int, shapes: int, work: int, scores: int) -> Reading:
        op = bare_name(self.names[name])
        old = parse_shapes(self.shapes[shapes]) or []
        hint = self.calls.keys[work][2] if work >= 0 else None
        after = self.resize.call(op, old, hint, scores=bool(scores))
        new, new_hint = (old, hint) if after is None else after[1:]
        pairs = list(zip(all_tensors(old), all_tensors(new), strict=True))
        growth = [prod(changed) / prod(shape) for shape, changed in pairs if prod(shape)]
        strongest = max(growth, key=lambda factor: abs(np.log(factor)), default=1.0)
        results = [
            *_products(op, old, new),
            *([(prod(hint), prod(new_hint))] if hint and new_hint else []),
        ]
        return [results, [*_wholes(old, new, pairs)], [*_partly(pairs)]], strongest


def _fits(nbytes: int, recorded: int, on_gpu: int) -> bool:
    return (-(-nbytes // GRANULE) * GRANULE if on_gpu else nbytes) == recorded


def _products(op: str, old: list[Argument], new: list[Argument]) -> Iterator[tuple[int, int]]:
    """Yield the size of what a product or a look-up makes, before and after."""
    before = prod(result_size(op, old))
    after = prod(result_size(op, new))
    if before:
        yield before, after
    if op == "embedding" and len(old) > 1:
        weight = old[0]
        places = (old[1], new[1])
        if isinstance(weight, tuple) and weight:
            yield elements(places[0]) * weight[-1], elements(places[1]) * weight[-1]


def _wholes(
    old: list[Argument], new: list[Argument], pairs: list[tuple[Shape, Shape]]
) -> Iterator[tuple[int, int]]:
    """Yield the size of what is as large as a tensor, as a list of tensors, or as all tensors broadcast."""
    yield from ((prod(one), prod(other)) for one, other in pairs)
    for one, other in zip(old, new, strict=True):
        if isinstance(one, list):
            yield elements(one), elements(other)
    with suppress(ValueError):
        before, after = (prod(np.broadcast_shapes(*sides)) for sides in zip(*pairs, strict=True))
        yield before, after


def _partly(pairs: list[tuple[Shape, Shape]]) -> Iterator[tuple[int, int]]:
    """Yield the size of what is as large as a tensor over its first, its last, or one of its dimensions."""
    for one, other in pairs:
        places = range(1, len(one))
        yield from ((prod(one[:at]), prod(other[:at])) for at in reversed(places))
        yield from ((prod(one[at:]), prod(other[at:])) for at in places)
        yield from zip(one, other, strict=True)


SUM = regex(r"^aten::(add|sub)_?$")


def within(held: Allocations, pattern: str) -> np.ndarray:
    """Return which allocations an operator or range whose name matches asked for.

    Args:
        held: the allocations.
        pattern: regular expression on the names of the row that asked and of all around it.

    Returns:
        bool, shape (rows,).
    """
    return nearest(held, rows_that(held.trace, re.compile(pattern).search)) >= 0


def fuse(
    held: Allocations, chains: Groups, words: Mapping[str, str], *, first_stays: bool = False
) -> None:
    """Let the calls of each chain be one: only what the last one gives is stored, in the backward pass too.

    Where a chain begins with a sum whose result was saved, that stays: it stands for the chain's input.

    Args:
        held: the allocations.
        chains: work of forward calls of the trace's graph as recorded, a group a chain.
        words: the calls of a chain, by the names that `find_chains` was given.
        first_stays: what the first call of a chain gives is stored, too.
    """
    trace = held.trace
    names = "|".join(f"(?:{word})" for word in words.values())
    calls = call_rows(chains.tasks.graph, chains.by_group.ids, names)
    chain = np.repeat(np.arange(len(chains)), chains.sizes)[calls >= 0]
    calls = calls[calls >= 0]
    order = np.lexsort((trace["start_ns"][calls], chain))
    calls = calls[order]
    chain = chain[order]
    first = take(calls, first_of(chain, len(chains)))
    last = np.full(len(chains), UNKNOWN)
    last[chain] = calls
    rows, is_first, is_last = (np.zeros(len(trace) + 1, bool) for _ in range(3))
    rows[calls] = is_first[first[first >= 0]] = is_last[last[last >= 0]] = True
    is_sum = np.append(rows_that(trace, SUM.search), False)

    call = nearest(held, rows[:-1], forward=True)
    inside = call >= 0
    backward = in_phase(held, "backward")
    saved = held.where(kind="activation")
    temporary = held.where(kind="temporary")
    stays = is_first[call] & (is_sum[call] & saved | first_stays)
    goes = inside & ~backward & ~is_last[call] & ~stays & (saved | temporary)
    # Behind the first call, or the second, stands what the gradient of the chain is handed on to.
    given = is_last[call] if first_stays else ~is_first[call]
    goes |= inside & backward & temporary & given
    held.remove(goes)


def drop_scores(held: Allocations) -> None:
    """Take away what holds the scores of attention, in both passes.

    Scores are what a softmax works on that a product of two activations made; all that is as large, with the
    same two last sizes, holds some too. One value a row stays for the backward pass, as fused attention keeps
    it. Where heads are as wide as a sequence is long, queries, keys and values look the same and go too.

    Args:
        held: the allocations.

    Raises:
        NotApplicableError: shapes show no scores.
    """
    trace = held.trace
    texts = [*trace.text("shapes"), None]
    asked = asking_operators(held, np.arange(len(held)))
    of_key, distinct = combinations([take(trace[name], asked) for name in ("name", "shapes")])
    shapes: list[
        tuple[Operator, list[Shape]]
    ] = []  # that a call's result may have: a batched product's own
    for name, text in distinct:
        op = operator(trace.text("name")[name])
        arguments = parse_shapes(texts[text]) or []
        found = [part for part in arguments if isinstance(part, tuple) and len(part) > 2]
        shapes.append(
            (op, [result_size(op.name, arguments)] if op.is_batched and arguments else found)
        )

    def alike(shape: Shape) -> tuple[int, ...]:
        return prod(shape), *shape[-2:]

    products = {alike(shape) for op, found in shapes if op.is_batched for shape in found}
    of_softmax = {
        shape
        for op, found in shapes
        if op.is_softmax
        for shape in found
        if alike(shape) in products
    }
    if not of_softmax:
        raise NotApplicableError("no shapes show a softmax between two batched products")
    scores = set(map(alike, of_softmax))
    widths = {prod(shape): shape[-1] for shape in of_softmax}
    sizes = [
        max((prod(one) for one in found if alike(one) in scores), default=0) for _, found in shapes
    ]
    elements = np.array(sizes)[of_key]
    fits = [
        rounded(elements * size, held["device"]) == held["recorded_bytes"] for size in (1, 2, 4)
    ]
    goes = np.any(fits, axis=0) & (elements > 0) & held.where(kind=("activation", "temporary"))
    is_softmax = np.array([op.is_softmax for op, _ in shapes])[of_key]
    saved = np.flatnonzero(goes & is_softmax & held.where(kind="activation"))
    kept = [4 * many // widths.get(many, 1) for many in elements[saved].tolist()]
    held.add(saved, bytes=kept, recorded_bytes=kept)
    held.remove(np.append(goes, np.zeros(len(saved), bool)))
