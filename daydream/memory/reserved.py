"""What PyTorch's caching allocator reserves for a table of allocations: its requests, replayed in order.

Streams are not recorded with allocations; all of them are taken to be of one. What was held before the
recording lies where the metadata of `collect` says; without that it is asked for first, in the order of the
table, as where it really lay is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from daydream.memory.allocations import Allocations, on_device
from daydream.memory.requests import ALLOCATE, FREE, Request, Usage, usage
from daydream.memory.settings import Settings
from daydream.memory.start import start_of
from daydream.trace.schema import UNKNOWN


def reserved_for(
    held: Allocations,
    rank: int,
    device: int,
    *,
    settings: Settings | None = None,
) -> Usage | None:
    """Return what the allocator needs for a GPU's allocations; None for memory of the CPU, which has none.

    Args:
        held: the allocations as recorded.
        rank: of the process.
        device: index of the GPU, -1 for the CPU.
        settings: of the allocator. With those of the recording (None) what was held before lies where it lay,
            with others all of it is asked for anew.
    """
    if device < 0:
        return None
    start = start_of(held, rank, device) if settings is None else None
    if start is None:
        return usage(requests_of(held, rank, device), settings=settings)
    grows = any(segment.expandable for segment in start.segments)
    return usage(
        requests_of(held, rank, device, start.inside),
        settings=Settings(expandable_segments=True) if grows else None,
        start=start.segments,
    )


def recorded_reserved(held: Allocations, rank: int, device: int) -> int | None:
    """Return the most that a GPU's allocator had when it was recorded, None where that was not."""
    events = held.trace.memory
    if events is None or device < 0:
        return None
    mine = on_device(events, rank, device)
    most = int(events["reserved_bytes"][mine].max(initial=UNKNOWN))
    return None if most < 0 else most


def requests_of(
    held: Allocations, rank: int, device: int, inside: Mapping[int, int] | None = None
) -> list[Request]:
    """Return the requests that a device's allocations make, in program order; their ids are the rows.

    `inside` are bytes of rows that the allocator holds already: these are not asked for, and freed as others.
    """
    rows = np.flatnonzero(on_device(held, rank, device) & (held["bytes"] > 0))
    sizes = held["bytes"].copy()
    if inside:
        sizes[list(inside)] -= list(inside.values())
    asked, ended = rows[sizes[rows] > 0], rows[np.isfinite(held["end"][rows])]
    places = np.concatenate([held["begin"][asked], held["end"][ended]])
    frees = np.arange(len(places)) >= len(asked)
    order = np.lexsort((frees, places))  # at one place what begins comes before what ends
    which, free = np.concatenate([asked, ended])[order], frees[order]
    whats, amounts = np.where(free, FREE, ALLOCATE), np.where(free, 0, sizes[which])
    return list(map(Request, whats.tolist(), which.tolist(), amounts.tolist()))
