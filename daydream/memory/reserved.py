"""What PyTorch's caching allocator reserves for a table of allocations: its requests, replayed in order.

Streams are not recorded with allocations; all of them are taken to be of one. What was held before the
recording lies where the metadata of `collect` says, block by block; without that it is asked for first, in the
order of the table, as where it really lay is not known. The list has sizes and addresses, and the table has
rows: a row that is freed within the recording lies at the address of that free, others lie in blocks of their
size, in order of address. What the totals hold together and nobody told apart lies in the blocks that are left.
A block that no row is found for is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    EVENT,
    KINDS,
    Allocations,
    on_device,
)
from daydream.memory.allocator import Usage, usage
from daydream.memory.settings import ALLOCATE, FREE, Part, Request, Segment, Settings
from daydream.trace.memory_events import MemoryEvents, blocks_in_use

UNKNOWN_KIND = KINDS.index("unknown")


@dataclass(frozen=True)
class Start:
    """What the allocator holds before the first request.

    Attributes:
        segments: its memory; ids are the rows of the table, below 0 where a row holds several blocks.
        inside: bytes of each row that lie in these segments, by row; the rest has to be asked for.
    """

    segments: tuple[Segment, ...]
    inside: dict[int, int]


def start_of(held: Allocations, rank: int, device: int) -> Start | None:
    """Return what a GPU's allocator held before the recording, None where that is not listed, or cannot be.

    Args:
        held: the allocations as recorded.
        rank: of the process.
        device: index of the GPU.
    """
    told = _told(held, rank, device)
    if not told or contradictory(held, rank, device):
        return None
    ids, inside = _placed(held, rank, device, blocks_in_use(told))
    return Start(tuple(_segment(each, ids) for each in told), inside)


def _told(held: Allocations, rank: int, device: int) -> list[dict[str, Any]]:
    told = held.trace.of_rank("held_before", rank) or {}
    segments = (told.get(str(device)) or {}).get("segments") or []
    return sorted(segments, key=lambda each: int(each["address"]))


def _is_sound(segment: dict[str, Any]) -> bool:
    """Tell whether blocks fill their segment and hold what was asked for."""
    blocks = segment["blocks"]
    fits = all(size > 0 and (asked is None or 0 <= asked <= size) for size, asked in blocks)
    return bool(blocks) and fits and sum(size for size, _ in blocks) == segment["total_size"]


def contradictory(held: Allocations, rank: int, device: int) -> int:
    """Return how many listed segments of a GPU cannot be as they are told: then none of them is used.

    Blocks do not fill theirs, or hold more than they have; or it begins inside the one before it.

    Args:
        held: the allocations.
        rank: of the process.
        device: index of the GPU.
    """
    told = _told(held, rank, device)
    odd = [not _is_sound(each) for each in told]
    for number, (one, other) in enumerate(pairwise(told), 1):
        odd[number] = odd[number] or one["address"] + one["total_size"] > other["address"]
    return sum(odd)


def _placed(
    held: Allocations, rank: int, device: int, blocks: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the id of what lies at each address, and of each row how many bytes lie somewhere."""
    own = on_device(held, rank, device) & (held["begin"] == BEFORE)
    own &= (held["bytes"] > 0) & (held["bytes"] == held["recorded_bytes"])
    rows = np.flatnonzero(own).tolist()
    ids: dict[int, int] = {}
    inside: dict[int, int] = {}

    def take(row: int, address: int, name: int) -> None:
        ids[address] = name
        inside[row] = inside.get(row, 0) + blocks.pop(address)

    for row in rows:
        address = _freed_address(held, row)
        if blocks.get(address) == held["bytes"][row]:
            take(row, address, row)
    by_size: dict[int, list[int]] = {}
    for address, size in reversed(blocks.items()):
        by_size.setdefault(size, []).append(address)  # the lowest address last
    for row in rows:
        alike = by_size.get(int(held["bytes"][row]))
        if row not in inside and held["kind"][row] != UNKNOWN_KIND and alike:
            take(row, alike.pop(), row)
    together = [row for row in rows if row not in inside and held["end"][row] == AFTER]
    for row in sorted(together, key=lambda one: -int(held["bytes"][one])):
        for address, size in list(blocks.items()):
            if inside.get(row, 0) + size <= held["bytes"][row]:
                take(row, address, -1 - address)
    return ids, inside


def _freed_address(held: Allocations, row: int) -> int:
    """Return where the free of a row says that it lay, -1 if that is not known."""
    events: MemoryEvents | None = held.trace.memory
    event, beyond = divmod(int(held["end"][row]), EVENT)
    if events is None or beyond or not 0 <= event < len(events):
        return -1
    same = events["bytes"][event] == -held["bytes"][row]
    return int(events["address"][event]) if same else -1


def _segment(told: dict[str, Any], ids: dict[int, int]) -> Segment:
    """Return a segment with the ids of what lies in it; free blocks that touch are one."""
    address = int(told["address"])
    parts: list[Part] = []
    for size, asked in told["blocks"]:
        part = Part(size, asked, ids[address]) if address in ids else Part(size)
        address += size
        if parts and part.requested is None and parts[-1].requested is None:
            part = Part(parts.pop().size + size)
        parts.append(part)
    return Segment(
        int(told["address"]),
        int(told.get("stream", 0)),
        told.get("pool") == "small",
        tuple(parts),
        bool(told.get("is_expandable")),
        int(bool(told.get("private"))),
    )


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
    asked = rows[sizes[rows] > 0]
    ended = rows[held["end"][rows] < AFTER]
    places = np.concatenate([held["begin"][asked], held["end"][ended]])
    frees = np.arange(len(places)) >= len(asked)
    order = np.lexsort((frees, places))  # at one place what begins comes before what ends
    which = np.concatenate([asked, ended])[order]
    free = frees[order]
    whats = np.where(free, FREE, ALLOCATE)
    amounts = np.where(free, 0, sizes[which])
    return list(map(Request, whats.tolist(), which.tolist(), amounts.tolist()))
