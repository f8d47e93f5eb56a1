"""Which layers' work a compiler fuses: predicted from the uncompiled recording, against what Inductor fused.

Both sides leave out what is no layer's work: sums of gradients where paths meet, which autograd does between two
nodes, and what moves less than a cache line, as counters of steps and constants do.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np

import daydream
from daydream.costs import work
from daydream.model.compiled_calls import fused_loops

CACHE_LINE = 64  # bytes
SUM_OF_GRADIENTS = ("aten::add", "aten::add_")

Pair = tuple[str, str, str]  # the pass and two layers; of one layer alone both are the same


def predicted_pairs(eager: Any, roots: set[str]) -> set[Pair]:
    """Return the layers whose work is predicted to be in one loop, two by two, each also with itself."""
    graph = daydream.build(eager)
    loops = fused_loops(graph)
    tasks = loops.by_group
    works = work(graph, tasks).family != None  # noqa: E711 - an array
    works &= ~((tasks.phase == "backward") & np.isin(tasks.op.astype(str), SUM_OF_GRADIENTS))
    number = np.repeat(np.arange(len(loops)), loops.sizes)
    found: set[Pair] = set()
    groups: dict[tuple[int, str], set[str]] = {}
    for place, layer, phase in zip(
        number[works].tolist(), tasks.layer[works], tasks.phase[works], strict=True
    ):
        groups.setdefault((place, phase), set()).add(_name(layer, roots))
    for (_, phase), layers in groups.items():
        found |= _pairs(phase, layers)
    return found


def inductors_pairs(compiled: Any, roots: set[str]) -> set[Pair]:
    """Return the layers whose work is in one fused kernel of Inductor's, as `predicted_pairs` does."""
    found: set[Pair] = set()
    for code in np.unique(compiled["handle"][compiled["handle"] >= 0]).tolist():
        identifier = compiled.handles.identifiers[code]
        if "fused" not in str(identifier):
            continue
        handles = compiled.handles[identifier]
        phase = "backward" if any(one.phase == "backward" for one in handles) else "forward"
        works = [one for one in handles if one.weight is None or one.weight >= CACHE_LINE]
        found |= _pairs(phase, {_name(one.layer, roots) for one in works})
    return found


def precision_and_recall(predicted: set[Pair], real: set[Pair]) -> tuple[float, float]:
    """Return which part of the predicted pairs is real, and which part of the real ones is predicted."""
    both = len(predicted & real)
    return both / max(len(predicted), 1), both / max(len(real), 1)


def _name(layer: str | None, roots: set[str]) -> str:
    return "" if layer is None or layer in roots else layer


def _pairs(phase: str, layers: Iterable[str]) -> set[Pair]:
    known = sorted(set(layers) - {""})
    return {(phase, one, one) for one in known} | {(phase, *both) for both in combinations(known, 2)}
