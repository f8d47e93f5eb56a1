"""Which of the ranked optimizations are worth trying together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from daydream.transforms import stages
from daydream.transforms.registry import Optimization

if TYPE_CHECKING:
    from daydream.predict.ranking import Ranked


def couples_of(
    found: Sequence[tuple[Ranked, Optimization]], by: str
) -> list[tuple[Optimization, Optimization]]:
    """Return the pairs worth trying, those first that save most together if they do not touch each other.

    Args:
        found: what was ranked.
        by: `time`, or `memory`: then what lowers the peak is worth trying.
    """
    if by == "memory":
        less = [
            (ranked.memory.before_bytes - ranked.memory.after_bytes, optimization)
            for ranked, optimization in found if ranked.memory is not None
        ]  # fmt: skip
        return _largest([pair for pair in less if pair[0] > 0])
    hardware = stages.NEEDS[stages.HARDWARE]
    worth = [
        (ranked.as_run.saving_ns, optimization)
        for ranked, optimization in found
        if ranked.as_run is not None and ranked.gains and ranked.needs != hardware
    ]
    return _largest(worth)


def _largest(worth: Sequence[tuple[float, Optimization]]) -> list[tuple[Optimization, Optimization]]:
    couples = sorted(combinations(worth, 2), key=lambda couple: -couple[0][0] - couple[1][0])
    return [(one, other) for (_, one), (_, other) in couples]
