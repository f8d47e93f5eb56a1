"""Twins: two optimizations that are the same change in a trace. A ranking names one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.predict.notes import preference

if TYPE_CHECKING:
    from daydream.predict.ranking import Ranked
    from daydream.transforms.registry import Optimization


def without_twins(
    found: Sequence[tuple[Ranked, Optimization]],
) -> tuple[list[tuple[Ranked, Optimization]], dict[str, str]]:
    """Return what is left if of two that are the same change here one goes, and the reasons for those gone.

    The same are two that exclude each other, edit as many tasks and give the same step. The one with
    fewer notes stays, then the first by name.
    """
    kept: list[tuple[Ranked, Optimization]] = []
    same: dict[str, str] = {}
    for ranked, optimization in sorted(found, key=lambda pair: preference(pair[0].notes, pair[0].name)):
        twin = next((name for name, other in _figures(kept, optimization) if other == _figure(ranked)), None)
        if twin is None:
            kept.append((ranked, optimization))
        else:
            same[ranked.name] = f"the same change as {twin} in this trace"
    return [pair for pair in found if pair in kept], same


def _figures(
    found: Sequence[tuple[Ranked, Optimization]], excluded: Optimization
) -> list[tuple[str, tuple[int | None, ...]]]:
    """Return the figures of those that cannot be combined with an optimization."""
    return [
        (ranked.name, _figure(ranked))
        for ranked, each in found
        if each.name in excluded.excludes or excluded.name in each.excludes
    ]


def _figure(ranked: Ranked) -> tuple[int | None, ...]:
    return ranked.predicted_ns, ranked.changed, ranked.inserted, ranked.removed
