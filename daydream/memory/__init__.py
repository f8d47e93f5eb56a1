"""Memory: what a step holds, when, for whom, and what a change makes of it.

Recorded events become allocations with a lifetime and a kind; optimizations edit that table; PyTorch's
allocator, replayed, tells what is reserved for it.

    Allocations                    what a step holds, a row an allocation: what `memory(held)` edits
    unchanged                      `memory = unchanged`: the change leaves memory as it is
    resize_input                   sizes when the batch or the sequence length is another
    parts_of, repeat, put_away     parts of the program; to run one once more; what is gone between two places
    fuse, hold_16_bits, shard      calls that become one; 16 bits; shares of several workers

What `__all__` names is promised to optimizations (docs/extending.md); the other names here are those of
optimizations that ship. All are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import lazy

if TYPE_CHECKING:
    from daydream.memory.allocations import (
        AFTER,
        BEFORE,
        STEP,
        Allocations,
        Moved,
        Parts,
        parts_of,
        place_before,
        put_away,
        repeat,
    )
    from daydream.memory.before import let_states_shrink
    from daydream.memory.growth import drop_scores, fuse, resize_input, within
    from daydream.memory.liveness import (
        KeptCalls,
        block_of_rows,
        calls_that_made,
        in_phase,
        input_of_parts,
        kept_calls,
        nearest,
        next_call,
        read_behind,
        until_next_call,
        used_until,
    )
    from daydream.memory.narrow import hold_8_bits, hold_16_bits
    from daydream.memory.prediction import unchanged
    from daydream.memory.shares import (
        add_buckets,
        add_copies,
        divide,
        gradient_bytes,
        hold_throughout,
        let_go_behind,
        scale_owned,
        shard,
    )

_HOMES = lazy.imports_of(__file__)

__all__ = [
    "Allocations",
    "Moved",
    "Parts",
    "calls_that_made",
    "fuse",
    "in_phase",
    "input_of_parts",
    "let_states_shrink",
    "parts_of",
    "place_before",
    "put_away",
    "repeat",
    "resize_input",
    "shard",
    "unchanged",
    "used_until",
]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
