"""Memory of calls that become one: what one of them hands to the next is never stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

import numpy as np

from daydream.costs.resize.flattened import SOFTMAX
from daydream.costs.resize.operands import BATCHED
from daydream.costs.workload.operator import bare_name
from daydream.costs.workload.shapes import parse_shapes
from daydream.costs.workload.tiles import result_size
from daydream.errors import NotApplicableError
from daydream.graph.groups import Groups
from daydream.graph.query.calls import call_rows
from daydream.lazy import regex
from daydream.memory.allocations import Allocations, rounded
from daydream.memory.asked import in_phase, nearest
from daydream.memory.growth import asking_operators
from daydream.trace.schema import UNKNOWN

SUM = regex(r"^aten::(add|sub)_?$")


def within(held: Allocations, pattern: str) -> np.ndarray:
    """Return which allocations an operator or range whose name matches asked for.

    Args:
        held: the allocations.
        pattern: regular expression on the names of the row that asked and of all around it.

    Returns:
        bool, shape (rows,).
    """
    search = re.compile(pattern).search
    hits = np.array([*(search(text) is not None for text in held.trace.text("name")), False])
    return nearest(held, hits[held.trace["name"]]) >= 0


def fuse(held: Allocations, chains: Groups, words: Mapping[str, str], *, first_stays: bool = False) -> None:
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
    calls, chain = calls[order], chain[order]
    first, last = (np.full(len(chains), UNKNOWN) for _ in range(2))
    first[chain[::-1]], last[chain] = calls[::-1], calls
    rows, is_first, is_last, is_sum = (np.zeros(len(trace) + 1, bool) for _ in range(4))
    rows[calls] = is_first[first[first >= 0]] = is_last[last[last >= 0]] = True
    sums = np.array([*(SUM.search(text) is not None for text in trace.text("name")), False])
    is_sum[:-1] = sums[trace["name"]]

    call = nearest(held, rows[:-1], forward=True)
    inside, backward = call >= 0, in_phase(held, "backward")
    saved, temporary = held.where(kind="activation"), held.where(kind="temporary")
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
    names, texts = trace.text("name"), trace.text("shapes")
    asked = asking_operators(held, np.arange(len(held)))
    keys = np.stack([np.append(trace[column], UNKNOWN)[asked] for column in ("name", "shapes")])
    distinct, of_key = np.unique(keys, axis=1, return_inverse=True)
    shapes = [
        (bare_name(names[name]), _results(names[name], texts[text]) if text >= 0 else [])
        for name, text in distinct.T.tolist()
    ]
    products = {shape for name, found in shapes if name in BATCHED for shape in found}
    sums = {(prod(shape), *shape[-2:]) for shape in products}
    of_softmax = {
        shape
        for name, found in shapes
        if name in SOFTMAX
        for shape in found
        if (prod(shape), *shape[-2:]) in sums
    }
    scores = {(prod(shape), *shape[-2:]) for shape in of_softmax}
    if not scores:
        raise NotApplicableError("no shapes show a softmax between two batched products")
    elements = np.array([
        max((prod(shape) for shape in found if (prod(shape), *shape[-2:]) in scores), default=0)
        for _, found in shapes
    ], np.int64)[of_key.reshape(-1)]  # fmt: skip
    width = np.array(
        [*({prod(shape): shape[-1] for shape in of_softmax}.get(each, 1) for each in elements.tolist())]
    )
    fits = np.zeros(len(held), bool)
    for size in (1, 2, 4):
        fits |= rounded(elements * size, held["device"]) == held["recorded_bytes"]
    goes = fits & (elements > 0) & held.where(kind=("activation", "temporary"))
    is_softmax = np.array([name in SOFTMAX for name, _ in shapes], bool)[of_key.reshape(-1)]
    saved = np.flatnonzero(goes & is_softmax & held.where(kind="activation"))
    held.add(
        saved, bytes=4 * elements[saved] // width[saved], recorded_bytes=4 * elements[saved] // width[saved]
    )
    held.remove(np.append(goes, np.zeros(len(saved), bool)))


def _results(name: str, text: str) -> list[tuple[int, ...]]:
    """Return shapes that a call's result may have: a batched product's own, else those of its tensors."""
    arguments = parse_shapes(text) or []
    if bare_name(name) in BATCHED:
        return [result_size(bare_name(name), arguments)]
    return [part for part in arguments if isinstance(part, tuple) and len(part) > 2]
