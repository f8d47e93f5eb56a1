"""What PyTorch's caching allocator reserves for a table of allocations: its requests, replayed in order.

Streams are not recorded with allocations; all of them are taken to be of one. What was held before the
recording is asked for first, in the order of the table; where it really lies is not known.
"""

from __future__ import annotations

import numpy as np

from daydream.memory.allocations import Allocations
from daydream.memory.requests import ALLOCATE, FREE, Request, Usage, usage
from daydream.memory.settings import Settings


def reserved_for(
    held: Allocations, rank: int, device: int, *, settings: Settings | None = None
) -> Usage | None:
    """Return what the allocator needs for a GPU's allocations; None for memory of the CPU, which has none."""
    return None if device < 0 else usage(requests_of(held, rank, device), settings=settings)


def requests_of(held: Allocations, rank: int, device: int) -> list[Request]:
    """Return the requests that a device's allocations make, in program order; their ids are the rows."""
    rows = np.flatnonzero((held["rank"] == rank) & (held["device"] == device) & (held["bytes"] > 0))
    ended = rows[np.isfinite(held["end"][rows])]
    places = np.concatenate([held["begin"][rows], held["end"][ended]])
    frees = np.arange(len(places)) >= len(rows)
    order = np.lexsort((frees, places))  # at one place what begins comes before what ends
    sizes = held["bytes"].tolist()
    which = np.concatenate([rows, ended])[order].tolist()
    return [
        Request(FREE, row) if free else Request(ALLOCATE, row, sizes[row])
        for row, free in zip(which, frees[order].tolist(), strict=True)
    ]
