"""Memory: what a step holds, when, for whom, and what a change makes of it.

Recorded events become allocations with a lifetime and a kind; optimizations edit that table; PyTorch's
allocator, replayed, tells what is reserved for it.

    Allocations                    what a step holds, a row an allocation: what `memory(held)` edits
    unchanged                      `memory = unchanged`: the change leaves memory as it is
    resize_input                   sizes when the batch or the sequence length is another

These names are promised to optimizations (docs/extending.md) and are loaded when they are first used.
Files below are the package's own, and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import lazy

if TYPE_CHECKING:
    from daydream.memory.allocations import Allocations
    from daydream.memory.growth import resize_input
    from daydream.memory.narrow import narrow
    from daydream.memory.passes import (
        Moved,
        Parts,
        block_of_rows,
        in_phase,
        next_call,
        parts_of,
        place_before,
        renumber,
        repeat,
        scale_owned,
        used_until,
    )
    from daydream.memory.prediction import unchanged

_HOMES = {
    "daydream.memory.allocations": ("Allocations",),
    "daydream.memory.growth": ("resize_input",),
    "daydream.memory.narrow": ("narrow",),
    "daydream.memory.passes": (
        "Moved", "Parts", "block_of_rows", "in_phase", "next_call", "parts_of", "place_before", "renumber",
        "repeat", "scale_owned", "used_until",
    ),
    "daydream.memory.prediction": ("unchanged",),
}  # fmt: skip

__all__ = [
    "Allocations", "Moved", "Parts", "block_of_rows", "in_phase", "narrow", "next_call", "parts_of",
    "place_before", "renumber", "repeat", "resize_input", "scale_owned", "unchanged", "used_until",
]  # fmt: skip

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
